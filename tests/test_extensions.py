"""Extensions (docs/api/python.md): entry points of other packages, and what a program passes to create_app()."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ninelives import Settings, StartError, create_app
from ninelives.app.create import ServerApp
from ninelives.app.errors import ConfigError
from ninelives.app.extensions import model_scheme
from ninelives.app.settings import load_given
from tests.asgi import http_scope

KEY = "extension-key-0123456789abcdef"
FREE = {"tools.sandbox": "off", "tools.approval": "never"}
NAMES = itertools.count()
CODE = '''
from ninelives import events, tool
from ninelives.models.base import Finished, Text

class Echo:
    resumable = True

    async def end_leftovers(self, state): ...

    async def run(self, turn):
        text = f"echo of {turn.state.facts.accepted.spec.input[-1]['content']}"
        yield events.TextDelta(text)
        yield events.MessageCompleted(text)
        yield events.RunCompleted()

echo = Echo()

def make_echo():
    return Echo()

class Parrot:
    def __init__(self, upstream):
        self.name, self.upstream = upstream.name, upstream
        self.closed = False

    async def stream(self, ask):
        names = [tool["function"]["name"] for tool in ask.tools]
        yield [Text(f"{self.upstream.url} {self.name} retries {self.upstream.retries} {'shout' in names}")]
        yield [Finished("stop", events.Usage())]

    async def probe(self):
        return True

    async def close(self):
        self.closed = True

@tool(effect="read")
def shout(text: str) -> str:
    """Text in capitals."""
    return text.upper()

async def polite(question):
    return f"You said {question}"

def broken(*args):
    raise ValueError("no licence")

number = 42
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a package with entry points, as pip would: a module and its metadata on the path."""

    def install(group: str, **points: str) -> str:
        name = f"fake_extension_{next(NAMES)}"
        site = tmp_path / name
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(CODE)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{point} = {value.replace('MODULE', name)}\n" for point, value in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        return name

    yield install
    for name in [name for name in sys.modules if name.startswith("fake_extension_")]:
        del sys.modules[name]


def settings(tmp_path: Path, **options: object) -> Settings:
    given = {name.replace("__", "."): value for name, value in options.items()}
    base = {"server.data_dir": str(tmp_path / "data"), "server.key": KEY, **FREE}
    return Settings.load({**base, **given}, env={"HOME": str(tmp_path)})


async def ask(app: ServerApp, path: str, body: object = None) -> Any:
    """One request from a client that stays until it is answered."""
    sent: list[dict[str, Any]] = []
    messages = [{"type": "http.request", "body": json.dumps(body).encode() if body else b""}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"authorization": f"Bearer {KEY}", "host": "127.0.0.1:8642", "content-type": "application/json"}
    await app(http_scope("POST" if body else "GET", path, headers), receive, send)
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    assert sent[0]["status"] == 200, answer
    return answer


async def said(app: ServerApp, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return str((await ask(app, "/v1/chat/completions", body))["choices"][0]["message"]["content"])


@pytest.mark.parametrize("value", ["MODULE:echo", "MODULE:Echo", "MODULE:make_echo"])
async def test_an_installed_agent_is_served_as_a_model_of_its_name(value: str, package: Any, tmp_path: Path) -> None:
    package("ninelives.agents", repeat=value)
    app = create_app(settings(tmp_path))
    async with app.running():
        assert [each["id"] for each in (await ask(app, "/v1/models"))["data"]] == ["hermes-agent", "repeat"]
        assert await said(app, "repeat") == "echo of hello"
        body = {"model": "repeat", "input": "again"}
        assert (await ask(app, "/v1/responses", body))["output"][0]["content"][0]["text"] == "echo of again"
        assert await said(app, "hermes-agent") != "echo of hello"


async def test_an_installed_function_and_one_of_the_program_are_served_as_agents(package: Any, tmp_path: Path) -> None:
    package("ninelives.agents", polite="MODULE:polite")

    async def own(question: str, ctx: Any) -> str:
        return f"{ctx.run_id[:4]} {question}"

    app = create_app(settings(tmp_path), agents={"own": own})
    async with app.running():
        assert await said(app, "polite") == "You said hello"
        assert await said(app, "own") == "run_ hello"


async def test_an_agent_of_the_program_wins_over_an_installed_one(package: Any, tmp_path: Path) -> None:
    module = importlib.import_module(package("ninelives.agents", repeat="MODULE:echo"))

    class Other(module.Echo):  # type: ignore[misc, name-defined]
        async def run(self, turn: Any) -> Any:
            from ninelives import events

            yield events.TextDelta("other")
            yield events.MessageCompleted("other")
            yield events.RunCompleted()

    app = create_app(settings(tmp_path), agents={"repeat": Other()})
    async with app.running():
        assert await said(app, "repeat") == "other"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("MODULE:number", "is int, which cannot be served"),
        ("MODULE:broken", "failed: ValueError: no licence"),
        ("MODULE:absent", "cannot be loaded: AttributeError"),
        ("absent_module:echo", "cannot be loaded: ModuleNotFoundError"),
    ],
)
async def test_an_agent_that_cannot_be_had_stops_the_start_and_is_named(
    value: str, says: str, package: Any, tmp_path: Path
) -> None:
    package("ninelives.agents", repeat=value)
    with pytest.raises(StartError, match="the entry point repeat = ") as refused:
        async with create_app(settings(tmp_path)).running():
            raise AssertionError("it started")
    assert says in str(refused.value)


async def test_an_agent_with_the_name_of_a_profile_stops_the_start(package: Any, tmp_path: Path) -> None:
    package("ninelives.agents", **{"hermes-agent": "MODULE:echo"})
    with pytest.raises(ConfigError, match="Two agents have the name 'hermes-agent'"):
        async with create_app(settings(tmp_path)).running():
            raise AssertionError("it started")


@pytest.mark.parametrize("url", ["parrot:", "parrot:Amazon"])
async def test_model_url_with_a_name_and_a_colon_is_an_installed_model(url: str, package: Any, tmp_path: Path) -> None:
    package("ninelives.models", parrot="MODULE:Parrot")
    package("ninelives.tools", shouting="MODULE:shout")
    app = create_app(settings(tmp_path, model__url=url, model__name="grey", model__retries=7))
    async with app.running() as server:
        assert await said(app, "hermes-agent") == f"{url} grey retries 7 True"
        (model,) = server.assembled.agents.models
    assert model.closed, "the server closes the models that it made"  # type: ignore[attr-defined]


async def test_a_profile_can_have_an_installed_model(package: Any, tmp_path: Path) -> None:
    package("ninelives.models", parrot="MODULE:Parrot")
    profile = "[profiles.bird]\nmodel_url = 'parrot:'\nmodel_name = 'green'\ntools = []\n"
    (tmp_path / "ninelives.toml").write_text(profile)
    base = {"server.data_dir": str(tmp_path / "data"), "server.key": KEY, **FREE}
    app = create_app(Settings.load(base, config=tmp_path / "ninelives.toml", env={"HOME": str(tmp_path)}))
    async with app.running():
        assert await said(app, "bird") == "parrot: green retries 2 False"


async def test_demo_is_the_demo_model_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    (tmp_path / "ninelives.toml").write_text("[profiles.other]\nmodel_url = 'demo:'\n")
    base = {"server.data_dir": str(tmp_path / "data"), "server.key": KEY, **FREE, "model.url": "demo:"}
    app = create_app(Settings.load(base, config=tmp_path / "ninelives.toml", env={"HOME": str(tmp_path)}))
    async with app.running() as server:
        assert "demo model" in server.model
        for name in ("hermes-agent", "other"):
            assert "scripted demo model" in await said(app, name)


@pytest.mark.parametrize(
    ("value", "url", "says"),
    [
        ("MODULE:Parrot", "eagle:", "names the model extension 'eagle', which is not installed. Installed: parrot"),
        ("MODULE:number", "parrot:", "is int, not a function that makes a Model"),
        ("MODULE:broken", "parrot:", "failed: ValueError: no licence"),
        ("builtins:repr", "parrot:", "made str, which is not a Model"),
    ],
)
async def test_a_model_that_cannot_be_had_stops_the_start_and_is_named(
    value: str, url: str, says: str, package: Any, tmp_path: Path
) -> None:
    package("ninelives.models", parrot=value)
    with pytest.raises(ConfigError) as refused:
        async with create_app(settings(tmp_path, model__url=url)).running():
            raise AssertionError("it started")
    assert says in str(refused.value)


def test_a_url_without_a_scheme_is_refused_and_is_no_name_of_a_model(tmp_path: Path) -> None:
    for url in ("localhost:11434", "localhost:11434/v1", "ftp://host", "127.0.0.1:8000"):
        with pytest.raises(ConfigError, match=r"model\.url cannot be"):
            settings(tmp_path, model__url=url)
    urls = ("http://h", "https://h", "parrot:", "parrot:x")
    assert [model_scheme(url) for url in urls] == ["", "", "parrot", "parrot"]


async def test_a_tool_and_a_model_of_the_program_are_used(package: Any, tmp_path: Path) -> None:
    module = importlib.import_module(package("other.group"))
    model = module.Parrot(type("Up", (), {"name": "given", "url": "own", "retries": 0}))
    app = create_app(settings(tmp_path), tools=[module.shout], model=model)
    async with app.running():
        assert await said(app, "hermes-agent") == "own given retries 0 True"
        tools = (await ask(app, "/v1/toolsets"))["data"]
        assert "shout" in json.dumps(tools)
    with pytest.raises(ConfigError, match="Two tools have the name 'shout'"):
        async with create_app(settings(tmp_path), tools=[module.shout, module.shout]).running():
            raise AssertionError("it started")


async def test_a_failed_start_is_reported_to_the_lifespan(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    app = create_app(settings(tmp_path))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "cannot be used: it is a file" in sent[0]["message"]
    with pytest.raises(RuntimeError, match="not running"):
        await ask(app, "/health")


def test_settings_of_a_program_are_checked_like_those_of_a_file() -> None:
    from ninelives.app.settings import LimitSettings, ServerSettings

    for wrong, says in (
        (Settings(server=ServerSettings(host="0.0.0.0")), "set server.key or API_SERVER_KEY"),
        (Settings(server=ServerSettings(key="short")), "is refused"),
        (Settings(limits=LimitSettings(queue=-1)), "limits.queue cannot be"),
        (Settings(limits=LimitSettings(queue="many")), "limits.queue cannot be"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=says):
            create_app(wrong)
    text = Settings(server=ServerSettings(port="9", cors_origins="https://a.example"))  # type: ignore[arg-type]
    server = load_given(text).settings.server
    assert (server.port, server.cors_origins) == (9, ("https://a.example",))


async def test_a_start_that_fails_lets_go_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Any) -> None:
        raise ConfigError("no tools today")

    with monkeypatch.context() as patch:
        patch.setattr("ninelives.app.agents.Agents.start", fail)
        with pytest.raises(ConfigError, match="no tools today"):
            async with create_app(settings(tmp_path)).running():
                raise AssertionError("it started")
    async with create_app(settings(tmp_path)).running() as server:
        assert server.model


async def test_a_server_whose_engine_failed_answers_503(tmp_path: Path) -> None:
    app = create_app(settings(tmp_path))
    async with app.running() as server:
        engine = server.assembled.engine
        engine.failed = True
        with pytest.raises(AssertionError, match="must be restarted"):
            await ask(app, "/v1/models")
        assert engine.stats()["degraded"]
