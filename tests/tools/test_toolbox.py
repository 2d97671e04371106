"""Rules of the toolbox: how a model's words become a call."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ninelives.tools.base import (
    FunctionTool,
    Output,
    Place,
    Reach,
    Tool,
    ToolRefused,
    approval_class,
    bounded,
    reach_of,
)
from ninelives.tools.registry import Toolbox, builtin_tools
from ninelives.tools.sandbox.kinds import NoSandbox


async def _echo(arguments: dict[str, object], place: Place) -> str:
    return msgspec.json.encode(arguments).decode()


def _tool(name: str = "echo", **fields: object) -> FunctionTool:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "ratio": {"type": "number"},
            "flag": {"type": "boolean"},
            "mode": {"type": "string", "enum": ["a", "b"]},
            "either": {"type": ["string", "null"]},
            "free": {},
        },
        "required": ["text"],
    }
    made = FunctionTool(name=name, description="Echo.", schema=schema, fn=_echo, label="Echoing", emoji="🔊")
    return msgspec.structs.replace(made, **fields)


def test_tools_that_need_a_sandbox_are_there_only_where_there_is_one() -> None:
    shell = {"terminal", "process", "execute_code"}
    there = {tool.name for tool in builtin_tools("off")}
    assert there >= shell | {"read_file", "write_file", "search_files"}
    assert {tool.name for tool in builtin_tools(NoSandbox("it is not there"))} == there - shell


def test_effects_are_declared_by_what_a_repetition_would_do() -> None:
    effects = {tool.name: tool.effect for tool in builtin_tools("off")}
    assert effects == {
        "terminal": "write",
        "process": "write",
        "execute_code": "write",
        "read_file": "read",
        "write_file": "idempotent",
        "search_files": "read",
        "patch": "write",
        "web_fetch": "read",
        "todo": "idempotent",
        "memory": "idempotent",
    }


def test_approval_classes_are_declared_by_what_a_call_may_do() -> None:
    classes = {tool.name: approval_class(tool) for tool in builtin_tools("off")}
    assert classes == {
        "terminal": "exec",
        "process": "exec",
        "execute_code": "exec",
        "read_file": "none",
        "write_file": "write",
        "search_files": "none",
        "patch": "write",
        "web_fetch": "network",
        "todo": "none",
        "memory": "write",
    }


def test_a_call_that_the_tool_cannot_judge_has_the_class_of_the_tool() -> None:
    for tool in builtin_tools("off"):
        assert reach_of(tool, {"action": 7, "url": "no url", "items": 7}) == Reach(approval_class(tool))


def test_schemas_are_those_of_chat_completions_and_small() -> None:
    toolbox = Toolbox(builtin_tools("off"))
    assert toolbox.current().schemas is toolbox.current().schemas
    assert len(msgspec.json.encode(toolbox.current().schemas)) < 8_000
    for schema in toolbox.current().schemas:
        assert schema["type"] == "function"
        function = msgspec.convert(schema["function"], dict[str, object])
        assert set(function) == {"name", "description", "parameters"}
        assert msgspec.convert(function["parameters"], dict[str, object])["type"] == "object"


def test_two_tools_cannot_have_one_name_nor_a_name_that_upstreams_refuse() -> None:
    with pytest.raises(ValueError):
        Toolbox([_tool(), _tool()])
    for name in ("", "a b", "é", "x" * 65, "a\n"):
        with pytest.raises(ValueError):
            Toolbox([_tool(name)])


class _Changing:
    """A provider."""

    def __init__(self) -> None:
        self.offer: list[Tool] = []

    def tools(self) -> list[Tool]:
        return self.offer

    def expected(self, name: str) -> Tool | None:
        return _tool(name) if name == "soon" else None


async def test_tools_that_come_and_go_change_the_schemas_only_then(place: Place) -> None:
    provider = _Changing()
    toolbox = Toolbox([_tool("fixed")], [provider])
    before = toolbox.current().schemas
    assert toolbox.current().schemas is before and toolbox.names() == ("fixed",)
    provider.offer = [_tool("new"), _tool("fixed", description="Mine."), _tool("a b"), _tool("new")]
    after = toolbox.current().schemas
    assert len(after) == 2 and toolbox.current().schemas is after
    assert toolbox.names() == ("fixed", "new") and toolbox.current().left_out == ("fixed", "a b", "new")
    assert (await (await toolbox.prepare("new", '{"text": ""}', place)).run()).text == '{"text":""}'
    provider.offer = []
    assert toolbox.names() == ("fixed",) and toolbox.get("new") is None
    assert toolbox.get("soon") is not None and toolbox.names() == ("fixed",)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("{", "not valid JSON"),
        ("not json", "not valid JSON"),
        ('{"text": "a"} {"text": "b"}', "not valid JSON"),
        ('{"text": "\\ud800"}', "not valid JSON"),
        ('{"text": "\ud800"}', "not valid JSON"),
        ('{"text": NaN}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must be a JSON object, not array"),
        ("null", "must be a JSON object, not null"),
        ('"{}"', "must be a JSON object, not string"),
        ("", "text is missing. Fields: text, count (optional)"),
        ("{}", "text is missing"),
        ('{"text": null}', "text must be of type string, not null"),
        ('{"text": 1}', "text must be of type string, not integer"),
        ('{"text": "", "txt": 1}', "there is no field 'txt'"),
        ('{"text": "", "count": "1"}', "count must be of type integer, not string"),
        ('{"text": "", "count": 1.5}', "count must be of type integer, not number"),
        ('{"text": "", "count": true}', "count must be of type integer, not boolean"),
        ('{"text": "", "count": 0}', "count must be at least 1"),
        ('{"text": "", "count": 10}', "count must be at most 9"),
        ('{"text": "", "flag": 1}', "flag must be of type boolean, not integer"),
        ('{"text": "", "mode": "c"}', "mode must be one of a, b"),
        ('{"text": "", "either": 1}', "either must be of type string or null"),
        ('{"count": 0, "x": 1}', "text is missing; count must be at least 1; there is no field 'x'"),
    ],
)
async def test_wrong_arguments_are_refused_with_words_to_act_on(raw: str, says: str, place: Place) -> None:
    with pytest.raises(ToolRefused) as refused:
        await Toolbox([_tool()]).prepare("echo", raw, place)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("raw", "given"),
    [
        ('{"text": "é"}', {"text": "é"}),
        (' {"text": "", "count": 2.0, "ratio": 1}', {"text": "", "count": 2, "ratio": 1}),
        ('{"text": "", "count": null, "flag": false}', {"text": "", "flag": False}),
        ('{"text": "", "mode": "a", "free": [1, {}]}', {"text": "", "mode": "a", "free": [1, {}]}),
    ],
)
async def test_right_arguments_reach_the_tool(raw: str, given: dict[str, object], place: Place) -> None:
    execution = await Toolbox([_tool()]).prepare("echo", raw, place)
    assert msgspec.json.decode((await execution.run()).text) == given


async def test_a_tool_that_does_not_exist_is_refused_with_those_that_do(place: Place) -> None:
    toolbox = Toolbox([_tool("one"), _tool("two")])
    assert toolbox.names() == ("one", "two")
    assert toolbox.get("one") is not None and toolbox.get("three") is None
    with pytest.raises(ToolRefused, match=r"There is no tool 'three'. Tools: one, two\."):
        await toolbox.prepare("three", "{}", place)


def test_a_label_is_the_first_line_of_what_the_call_is_about() -> None:
    toolbox = Toolbox(builtin_tools("off"))
    assert toolbox.label("terminal", '{"command": "\\n make test\\nrm x"}') == "make test"
    assert toolbox.label("terminal", '{"command": "echo \\u001b[31m"}') == "echo  [31m"
    assert toolbox.label("read_file", '{"path": "a/b.txt"}') == "a/b.txt"
    assert toolbox.label("search_files", '{"pattern": "x+"}') == "x+"
    assert toolbox.label("read_file", "{broken") == "Reading a file"
    assert toolbox.label("none", "{}") == "none"
    long = toolbox.label("terminal", msgspec.json.encode({"command": "x" * 500}).decode())
    assert len(long) == 80 and long.endswith("…")
    optional = {"type": "object", "properties": {"text": {"type": "string"}}}
    assert Toolbox([_tool()]).label("echo", '{"text": "  "}') == "Echoing"
    assert Toolbox([_tool(label="")]).label("echo", "{}") == "echo"
    assert Toolbox([_tool(label="", schema=optional)]).label("echo", "{}") == "echo"


async def test_a_function_keeps_the_bounds_of_its_place(place: Place) -> None:
    async def flood(arguments: dict[str, object], place: Place) -> str:
        return "é" * 10_000

    async def hang(arguments: dict[str, object], place: Place) -> str:
        await asyncio.Event().wait()
        return ""

    async def refuse(arguments: dict[str, object], place: Place) -> Output:
        raise ToolRefused("not so")

    async def slow_elsewhere(arguments: dict[str, object], place: Place) -> str:
        raise TimeoutError("the function's own")

    small = msgspec.structs.replace(place, output_bytes=1001, timeout_s=0.05)
    output = await (await _tool(fn=flood).prepare({}, small)).run()
    assert output.text == "é" * 500 + "\n[output cut: the first 1001 bytes of 20000 are shown]"
    output = await (await _tool(fn=hang).prepare({}, small)).run()
    assert output == Output("[stopped: it was not done after 0.05 s]", is_error=True)
    output = await (await _tool(fn=refuse).prepare({}, small)).run()
    assert output == Output("not so", is_error=True)
    with pytest.raises(TimeoutError, match="own"):
        await (await _tool(fn=slow_elsewhere).prepare({}, small)).run()


def test_text_of_any_bytes_stays_within_its_bound() -> None:
    for data in (bytes(range(256)) * 10, b"\0" * 2560, "日本語".encode() * 300, b"\xff" * 2560):
        text = bounded(data, 1000)
        shown, _, note = text.rpartition("\n")
        assert len(shown.encode()) <= 1000 and note.startswith("[output cut")
        assert "\0" not in text and len(msgspec.json.encode(text)) < 2000
    assert bounded(b"tab\tesc\x1b[0m\r\n", 100) == "tab\tesc\x1b[0m\r\n"
