"""Rules of the models without a model, and of how a real one is found where none was configured."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from ninelives.core.errors import AgentError
from ninelives.core.events import Usage
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text
from ninelives.models.find import PUBLIC_NAME, PUBLIC_URL, Local, find_model
from ninelives.models.openai import Upstream
from ninelives.models.scripted import ScriptedModel
from ninelives.testing.fake_upstream import FakeUpstream
from ninelives.testing.playbook import PlaybookModel, asked, said

USER = {"role": "user", "content": "hello there"}
ASSISTANT = {"role": "assistant", "content": None}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "wrote 12 bytes"}


def tool(name: str, *fields: str) -> dict[str, object]:
    properties = {field: {"type": "string"} for field in fields}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


TOOLS = (tool("write_file", "path", "content"), tool("search_files", "pattern"), tool("terminal", "command"))


async def answer(model: Any, *messages: dict[str, object], **more: Any) -> list[Part]:
    return [part async for parts in model.stream(Ask(messages, **more)) for part in parts]


async def demo(*messages: dict[str, object], **more: Any) -> tuple[str, list[CallPiece], Finished]:
    parts = await answer(ScriptedModel(pace_s=0, slow_pace_s=0), *messages, **more)
    assert isinstance(parts[-1], Finished)
    calls = [part for part in parts if isinstance(part, CallPiece)]
    return "".join(part.text for part in parts if isinstance(part, Text)), calls, parts[-1]


async def test_the_demo_says_plainly_what_it_is_and_how_to_get_a_real_model() -> None:
    text, calls, end = await demo(USER)
    assert "scripted demo model" in text and "NINELIVES_MODEL_URL" in text and "--model-url" in text
    assert (calls, end.reason) == ([], "stop")


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("hello there", "write_file", {"path": "hello.txt", "content": "hello there\n"}),
        ("please find TODO in my files", "search_files", {"pattern": "TODO"}),
        ("Search for 'needle'", "search_files", {"pattern": "needle"}),
        ("search", "search_files", {"pattern": "hello"}),
        ("run ls -la", "terminal", {"command": "ls -la"}),
    ],
)
async def test_the_demo_shows_the_tool_that_fits_the_words(text: str, name: str, arguments: dict[str, str]) -> None:
    said_, (call,), end = await demo({"role": "user", "content": [{"type": "text", "text": text}]}, tools=TOOLS)
    assert "demo" in said_
    assert (call.index, call.name, msgspec.json.decode(call.arguments)) == (0, name, arguments)
    assert end.reason == "tool_calls"


async def test_the_demo_uses_what_is_offered_under_the_names_that_the_tool_gives() -> None:
    _, (call,), _ = await demo(USER, tools=(tool("read_file", "file_path"),))
    assert (call.name, call.arguments) == ("read_file", '{"file_path":"hello.txt"}')
    assert (await demo(USER, tools=(tool("unknown"),)))[1] == []
    assert (await demo(USER, tools=TOOLS, options={"tool_choice": "none"}))[1] == []


async def test_the_demo_ends_after_a_tool_result_and_tells_it() -> None:
    text, calls, end = await demo(USER, ASSISTANT, RESULT, tools=TOOLS)
    assert "wrote 12 bytes" in text and "--model-url" in text
    assert (calls, end.reason) == ([], "stop")


async def test_the_demo_is_the_same_every_time_and_counts_words() -> None:
    first = await demo(USER, tools=TOOLS)
    assert first == await demo(USER, tools=TOOLS)
    assert first[2].usage == Usage(2, len(first[0].split()) + len(first[1][0].arguments.split()))
    assert await demo() and await demo({"role": "user", "content": None})


async def test_the_demo_paces_its_words() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    parts = await answer(ScriptedModel(pace_s=0.5, sleep=sleep), USER)
    assert waits == [0.5] * (len(parts) - 1)


SLOW = {"role": "user", "content": "work slowly, please"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
SHELL = (tool("terminal", "command"), tool("read_file", "path"))


async def test_the_slow_scene_lasts_about_20_seconds_and_uses_two_tools() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    model, calls, talk = ScriptedModel(sleep=sleep), [], [SLOW]
    for _ in range(3):
        parts = await answer(model, *talk, tools=SHELL)
        calls += [part.name for part in parts if isinstance(part, CallPiece)]
        talk += [CALLED, RESULT]
    assert calls == ["terminal", "read_file"]
    assert 17 < sum(waits) < 23
    assert "wrote 12 bytes" in "".join(part.text for part in parts if isinstance(part, Text))


async def test_the_slow_scene_is_played_without_a_sandbox_too_and_asks_nobody() -> None:
    """`todo` and `search_files` need no approval."""
    tools = (tool("todo", "items"), tool("search_files", "pattern"), tool("write_file", "path"))
    made = [await demo(SLOW, *[CALLED, RESULT] * n, tools=tools) for n in range(3)]
    assert [[call.name for call in calls] for _, calls, _ in made] == [["todo"], ["search_files"], []]
    assert (await demo(SLOW, tools=SHELL, options={"tool_choice": "none"}))[1] == []


async def test_the_slow_scene_goes_on_after_a_steer_and_ends_with_its_turn() -> None:
    steer = {"role": "user", "content": "be brief"}
    text, (call,), _ = await demo(SLOW, CALLED, RESULT, steer, tools=SHELL)
    assert 'You wrote: "be brief"' in text and call.name == "read_file"
    ended = {"role": "assistant", "content": "Both tools have finished."}
    text, _, _ = await demo(SLOW, CALLED, RESULT, CALLED, RESULT, ended, steer, tools=SHELL)
    assert "still the scripted demo model" in text


async def test_a_playbook_answers_by_the_rounds_since_the_last_user_message() -> None:
    model = PlaybookModel([asked(("f", "{}"), ("g", "{}"), text="wait"), said("a", "b")])
    first = [Text("wait"), CallPiece(0, "f", "{}"), CallPiece(1, "g", "{}"), Finished("tool_calls", Usage(1, 1))]
    second = [Text("a"), Text("b"), Finished("stop", Usage(1, 1))]
    assert await answer(model, USER) == first
    assert await answer(model, USER, ASSISTANT, RESULT, RESULT) == second
    assert await answer(model, USER, ASSISTANT, RESULT, RESULT) == second
    assert await answer(model, USER, ASSISTANT, USER) == first
    assert [len(ask.messages) for ask in model.asks] == [1, 4, 4, 3]
    with pytest.raises(AgentError, match="no message 2"):
        await answer(model, USER, ASSISTANT, ASSISTANT)


async def test_a_playbook_can_wait_sleep_and_fail() -> None:
    gate = asyncio.Event()
    model = PlaybookModel([[Text("a"), gate, 0.0, Text("b"), AgentError("upstream_cut", "cut")]])
    stream = model.stream(Ask((USER,)))
    assert await anext(stream) == [Text("a")]
    later = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    assert not later.done() and model.open == 1
    gate.set()
    assert await later == [Text("b")]
    with pytest.raises(AgentError, match="cut"):
        await anext(stream)
    assert model.open == 0


async def test_a_playbook_counts_the_streams_that_were_not_let_go() -> None:
    model = PlaybookModel([[Text("a"), asyncio.Event()]])
    stream = model.stream(Ask((USER,)))
    await anext(stream)
    await stream.aclose()
    assert model.open == 0


async def found(env: dict[str, str], locals_: list[Local]) -> Upstream | None:
    model = await find_model(env, locals_)
    return model.upstream if model else None


async def test_the_environment_names_the_model_before_local_ports_are_tried() -> None:
    async with FakeUpstream() as up:
        here = [Local("fake", up.port)]
        assert await found({"OPENAI_API_KEY": "k"}, here) == Upstream(PUBLIC_URL, PUBLIC_NAME, "k")
        assert await found({"OPENAI_BASE_URL": up.url}, here) == Upstream(up.url, "fake-model")
        named = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}
        assert await found(named, here) == Upstream("http://127.0.0.1:9/v1", "m", "k")


async def test_a_local_server_is_found_by_its_port_and_gives_its_first_model_that_can_chat() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = Local("closed", closed.getsockname()[1])
        assert await find_model({}, [nobody]) is None
        async with FakeUpstream() as up:
            up.models = ["nomic-embed", "llama", "qwen"]
            here = await find_model({}, [nobody, Local("Ollama", up.port)])
            assert here is not None and here.upstream == Upstream(up.url, "llama")
            assert here.by == f"Ollama on this machine, found on port {up.port}"


@pytest.mark.parametrize("models", [[], ["nomic-embed"]])
async def test_a_local_server_without_a_model_that_can_chat_is_passed_over(models: list[str]) -> None:
    async with FakeUpstream() as up:
        up.models = models
        assert await find_model({}, [Local("there", up.port)]) is None
