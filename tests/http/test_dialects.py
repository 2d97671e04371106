"""One row is a dialect: the tables of dialects/ and http/routes agree, and rows of other packages are served too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ninelives.app.assemble import Assembled, assemble
from ninelives.app.settings import load
from ninelives.core import ids
from ninelives.dialects import DIALECTS
from ninelives.http.routes import GROUP, SERVED, DialectsError, check_complete, served_dialects
from ninelives.models.scripted import ScriptedModel
from ninelives.observe.log import Log
from tests.asgi import Answer, call

KEY = "tiny-key-0123456789abcdef"
AUTH = {"host": "127.0.0.1:8642", "authorization": f"Bearer {KEY}", "content-type": "application/json"}


def test_every_dialect_has_a_route_class_and_every_route_class_a_dialect() -> None:
    check_complete(SERVED)
    for wrong in (SERVED[:-1], (*SERVED, SERVED[0]), SERVED[::-1]):
        with pytest.raises(DialectsError, match="add the missing row"):
            check_complete(wrong)


def test_a_row_is_named_as_its_folder_its_projection_and_its_key() -> None:
    folders = {each.parent.name for each in Path(ids.__file__).parents[1].glob("dialects/*/parse.py")}
    assert set(DIALECTS) == folders
    for name, row in DIALECTS.items():
        assert row.name == name
        assert bool(row.prefix) == bool(row.renders) == ids.is_shown(name)
        if row.renders:
            assert row.projection().name == name


def install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Install entry points, and forget the prefixes that they register."""
    points = [EntryPoint(name, f"tests.http.tiny_dialect:{value}", GROUP) for name, value in values.items()]

    def installed(group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    monkeypatch.setattr("ninelives.http.routes.entry_points_of", installed)
    monkeypatch.setattr(ids, "_PREFIXES", dict(ids._PREFIXES))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("COLLIDES", "the entry point mine = .*COLLIDES: The id prefix 'resp_' of 'other' collides"),
        ("TWICE", "TWICE and ninelives both have a dialect 'chat'"),
        ("TinyRoutes", "TinyRoutes is no ServedDialect"),
        ("Gone", "Gone cannot be loaded"),
    ],
)
def test_a_dialect_that_does_not_fit_is_named_at_start(monkeypatch: pytest.MonkeyPatch, value: str, says: str) -> None:
    install(monkeypatch, mine=value)
    with pytest.raises(DialectsError, match=says):
        served_dialects()


@pytest_asyncio.fixture
async def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Assembled]:
    install(monkeypatch, tiny="TINY")
    flags = {"server.data_dir": str(tmp_path), "server.key": KEY, "tools.sandbox": "off", "tools.approval": "never"}
    made = await assemble(load(None, {"HOME": str(tmp_path)}, flags), KEY, Log(lambda: "", None), ScriptedModel())
    await made.start()
    yield made
    await made.stop()


async def test_a_dialect_of_another_package_is_served_and_described(built: Assembled) -> None:
    async def staying(scope: Any, receive: Any, send: Any) -> None:
        """A caller who does not leave before the answer."""
        await built.app({**scope, "extensions": {"ninelives.disconnect": lambda told: lambda: None}}, receive, send)

    async def ask(method: str, path: str, body: Any = None) -> Answer:
        return await call(staying, method, path, AUTH, b"" if body is None else msgspec.json.encode(body))

    made = (await ask("POST", "/v1/tiny", {"say": "hello"})).json()
    assert made["id"].startswith("tiny_") and made["said"]
    assert (await ask("GET", f"/v1/tiny/{made['id']}")).json() == made
    replayed = await ask("GET", f"/v1/tiny/{made['id']}?stream=true")
    *texts, last = [msgspec.json.decode(line[6:]) for line in replayed.body.splitlines() if line]
    assert ("".join(texts), last) == (made["said"], None)
    streamed = await ask("POST", "/v1/tiny", {"say": "hello", "stream": True})
    assert streamed.body == replayed.body
    run = (await ask("GET", f"/v1/runs/{made['id']}")).json()
    assert run["status"] == "completed" and run["output"].replace("\n", "") == made["said"].replace("\n", "")
    assert run["run_id"] in {each["run_id"] for each in (await ask("GET", "/v1/runs")).json()["data"]}

    capabilities = (await ask("GET", "/v1/capabilities")).json()
    assert capabilities["dialects"] == ["chat", "completions", "responses", "messages", "runs", "tiny"]
    assert "POST /v1/tiny" in capabilities["routes"]
    document = (await ask("GET", "/openapi.json")).json()
    assert {"name": "Tiny", "description": "Plain text lines."} in document["tags"]
    assert document["paths"]["/v1/tiny"]["post"]["tags"] == ["Tiny"]
    assert {"TinyRequest", "TinyAnswer"} <= set(document["components"]["schemas"])

    assert (await ask("DELETE", f"/v1/tiny/{made['id']}")).json()["object"] == "tiny.deleted"
    assert (await ask("GET", f"/v1/tiny/{made['id']}")).error()["message"].startswith("Tiny answer not found")
