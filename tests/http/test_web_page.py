"""The web page as files and headers (A4): open, closed to everything from elsewhere, and nothing in it can turn text
into markup. What it does in a browser is in tests/ui."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
import pytest_asyncio

from ninelives.app.assemble import Assembled, assemble
from ninelives.app.settings import load
from ninelives.models.scripted import ScriptedModel
from ninelives.observe.log import Log
from tests.asgi import Answer, call

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "page-key-0123456789abcdef"
HOST = {"host": "127.0.0.1:8642"}
WEB = {file.name: file.read_text() for file in files("ninelives").joinpath("web").iterdir() if file.is_file()}
SCRIPTS = {name: text for name, text in WEB.items() if name.endswith(".js")}
FIRST_PAINT_BYTES = 60_000
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|setHTML|DOMParser"
    r"|createContextualFragment|setTimeout\(['\"`]|localStorage|document\.cookie"
)
"""Ways from text to markup or code, and places where a key would outlive its tab."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def built(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Assembled]:
    data: Path = tmp_path_factory.mktemp("page")
    flags = {"server.data_dir": str(data), "server.key": KEY, "tools.sandbox": "off"}
    made = await assemble(load(None, {"HOME": str(data)}, flags), KEY, Log(lambda: "", None), ScriptedModel())
    await made.start()
    yield made
    await made.stop()


async def fetched(built: Assembled, path: str) -> Answer:
    return await call(built.app, "GET", path, HOST)


def directives(answer: Answer) -> dict[str, str]:
    told = answer.header("content-security-policy") or ""
    return dict(part.strip().partition(" ")[::2] for part in told.split(";"))


async def test_a4_the_page_and_its_files_are_open_and_no_other_path_is(built: Assembled) -> None:
    assert (await fetched(built, "/")).body.decode() == WEB["index.html"]
    for name, text in WEB.items():
        answer = await fetched(built, f"/static/{name}")
        assert (answer.status, answer.body.decode()) == (200, text), name
        assert answer.header("x-content-type-options") == "nosniff"
    for path in ("/static/", "/static/nothing.js", "/static/../core/ids.py", "/static/%2e%2e/py.typed"):
        assert (await fetched(built, path)).status == 404, path
    assert (await call(built.app, "POST", "/static/page.js", HOST)).status == 401
    assert (await fetched(built, "/v1/runs")).status == 401


async def test_a_policy_allows_own_files_only_and_no_text_as_markup(built: Assembled) -> None:
    for path in ("/", "/static/page.js"):
        policy = directives(await fetched(built, path))
        own = ("script-src", "style-src", "img-src", "connect-src")
        assert {name: policy.pop(name) for name in own} == dict.fromkeys(own, "'self'")
        assert policy.pop("require-trusted-types-for") == "'script'"
        assert set(policy.values()) == {"'none'"} and {"default-src", "frame-ancestors", "trusted-types"} <= set(policy)


class Attributes(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen += [(tag, name, value or "") for name, value in attrs]


async def test_the_page_has_no_inline_script_and_loads_own_files_only() -> None:
    tags = Attributes()
    tags.feed(WEB["index.html"])
    assert not [each for each in tags.seen if each[1].startswith("on") or each[1] == "style"]
    loaded = [value for _, name, value in tags.seen if name in ("src", "href") and not value.startswith("#")]
    assert set(loaded) <= {"/docs", *(f"/static/{name}" for name in WEB)}, loaded
    assert re.findall(r"<script[^>]*>([^<]*)", WEB["index.html"]) == [""] and "<style" not in WEB["index.html"]


async def test_no_file_names_another_server_and_every_import_is_a_file() -> None:
    for name, text in WEB.items():
        elsewhere = [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"]
        assert not elsewhere and "//cdn" not in text and "url(" not in text, name
    for name, text in SCRIPTS.items():
        imported = re.findall(r"""^import\b[^;]*?["']([^"']+)["'];""", text, re.MULTILINE)
        assert all(each.startswith("./") and each[2:] in SCRIPTS for each in imported), (name, imported)


@pytest.mark.parametrize("name", sorted(SCRIPTS))
async def test_a_script_says_what_it_owns_and_has_no_way_from_text_to_markup(name: str) -> None:
    text = SCRIPTS[name]
    assert "Owns:" in text.partition("import")[0] and "Refuses to know:" in text.partition("import")[0]
    assert MARKUP.findall(text) == []


def loaded(name: str) -> set[str]:
    """A file, and all that it imports before it runs."""
    found = {name}
    for each in re.findall(r"""^import\b[^;]*?["']\./([^"']+)["'];""", WEB[name], re.MULTILINE):
        found |= loaded(each)
    return found


LATER = r"""import\("\./([a-z-]+\.js)"\)"""
VIEWS = sorted(re.findall(LATER, WEB["page.js"]))


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "run.js"])
async def test_the_first_paint_of_a_view_is_small(view: str) -> None:
    files = loaded("page.js") | loaded(view) | {"index.html", "page.css", "icon.svg"}
    assert sum(len(WEB[name].encode()) for name in files) < FIRST_PAINT_BYTES, sorted(files)


async def test_the_inspector_is_loaded_when_a_run_is_opened_and_every_file_by_some_view() -> None:
    beyond = loaded("run.js") - loaded("page.js")
    assert sum(len(WEB[name].encode()) for name in beyond) < FIRST_PAINT_BYTES
    later = {name for text in SCRIPTS.values() for name in re.findall(LATER, text)}
    used = set().union(*map(loaded, later), loaded("page.js"))
    assert set(SCRIPTS) <= used
