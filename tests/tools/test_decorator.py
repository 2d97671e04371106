"""Rules of tools that are written as Python functions."""

from __future__ import annotations

import asyncio
import datetime
import enum
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from ninelives.tools import decorator
from ninelives.tools.base import Output, Place, Threads, Tool, ToolRefused
from ninelives.tools.decorator import ToolsError, load_tools, tool, tool_of
from ninelives.tools.registry import Toolbox
from tests.tools.conftest import Caller, eventually


@pytest.fixture
def threads() -> Iterator[Threads]:
    pool = Threads(2)
    yield pool
    pool.close()


Run = Callable[..., "asyncio.Future[Output]"]


@pytest.fixture
def run(threads: Threads, place: Place) -> Run:
    """Call a function as an agent would: through a toolbox, with JSON."""

    def call(fn: Callable[..., object], at: Place | None = None, **arguments: object) -> asyncio.Future[Output]:
        made = tool_of(fn, threads)
        return asyncio.ensure_future(Caller(Toolbox([made]), at or place)(made.name, **arguments))

    return call


class Color(enum.Enum):
    RED = "red"


class Point(Struct):
    x: int
    y: int = 0


@tool(effect="read", label="Looking", emoji="🌦")
async def weather(
    city: Annotated[str, Meta(description="Name of the city.")],
    place: Place,
    days: Annotated[int, Meta(ge=1, le=7)] = 1,
    unit: Literal["c", "f"] = "c",
) -> dict[str, object]:
    """The weather of a city.

    From the nearest station."""
    return {"city": city, "days": days, "unit": unit, "call": place.call_id}


def test_the_signature_is_the_schema_and_the_docstring_the_description(threads: Threads) -> None:
    made = tool_of(weather, threads)
    assert (made.name, made.effect, made.label, made.emoji) == ("weather", "read", "Looking", "🌦")
    assert made.description == "The weather of a city.\n\nFrom the nearest station."
    assert made.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city."},
            "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


async def test_a_marked_function_can_be_called_as_before(place: Place) -> None:
    assert (await weather("Bern", place))["city"] == "Bern"


async def test_an_async_function_gets_its_arguments_and_the_place(run: Run, place: Place) -> None:
    output = await run(weather, city="Bern", days=2)
    assert msgspec.json.decode(output.text) == {"city": "Bern", "days": 2, "unit": "c", "call": place.call_id}


def test_a_tool_without_more_words_is_a_write(threads: Threads) -> None:
    @tool
    def send(text: str) -> None:
        pass

    made = tool_of(send, threads)
    assert (made.name, made.description, made.effect) == ("send", "send", "write")

    @tool(name="post")
    def other(text: str) -> None:
        pass

    assert tool_of(other, threads).name == "post"


async def test_a_sync_function_runs_in_a_thread(run: Run) -> None:
    def where(n: int) -> str:
        return f"{threading.current_thread().name} {n}"

    assert (await run(where, n=3)).text.startswith("ninelives-tools")


async def test_rich_types_are_made_of_json(run: Run) -> None:
    def rich(point: Point, color: Color, day: datetime.date, points: list[Point], more: dict[str, int] | None = None):  # type: ignore[no-untyped-def]
        assert isinstance(point, Point) and color is Color.RED and points[0].y == 2
        return [point, color, day, more]

    output = await run(rich, point={"x": 1}, color="red", day="2026-02-03", points=[{"x": 1, "y": 2}])
    assert output.text == '[{"x":1,"y":0},"red","2026-02-03",null]'
    output = await run(rich, point={"x": "1"}, color="red", day="2026-02-03", points=[])
    assert output.is_error and "Expected `int`, got `str` - at `$.point.x`" in output.text


async def test_what_a_function_gives_becomes_text(run: Run) -> None:
    def give(kind: str) -> object:
        return {
            "text": "é",
            "none": None,
            "list": [1, {"a": None}],
            "error": Output("bad", is_error=True),
            "object": object(),
        }[kind]

    assert (await run(give, kind="text")).text == "é"
    assert (await run(give, kind="none")).text == "[done]"
    assert (await run(give, kind="list")).text == '[1,{"a":null}]'
    assert await run(give, kind="error") == Output("bad", is_error=True)
    output = await run(give, kind="object")
    assert output.is_error and output.text.startswith("It was done, but its result (object) cannot be shown")


async def test_a_refusal_is_told_and_any_other_error_goes_up(run: Run) -> None:
    def refuse() -> None:
        raise ToolRefused("not today")

    def fail() -> None:
        raise KeyError("x")

    def leave() -> None:
        sys.exit(3)

    async def leave_too() -> None:
        sys.exit(3)

    def stop() -> None:
        raise StopIteration

    assert await run(refuse) == Output("not today", is_error=True)
    with pytest.raises(KeyError):
        await run(fail)
    for fn in (leave, leave_too, stop):
        with pytest.raises(RuntimeError):
            await run(fn)


async def test_progress_can_be_told_from_a_thread_and_from_the_loop(run: Run, place: Place) -> None:
    told: list[tuple[str, str]] = []

    def listen(text: str) -> None:
        told.append((text, threading.current_thread().name))

    def threaded(place: Place) -> None:
        for n in range(3):
            place.progress(f"step {n}")

    async def looped(at: Place) -> None:
        at.progress("a")
        await asyncio.sleep(0)
        at.progress("b")

    here = msgspec.structs.replace(place, progress=listen)
    await run(threaded, here)
    await run(looped, here)
    assert [text for text, _ in told] == ["step 0", "step 1", "step 2", "a", "b"]
    assert {name for _, name in told} == {threading.current_thread().name}


async def test_progress_that_floods_is_bounded(run: Run, place: Place) -> None:
    told: list[str] = []

    def flood(place: Place) -> None:
        for n in range(5_000):
            place.progress(f"{n} " + "x" * 10_000)

    await run(flood, msgspec.structs.replace(place, progress=told.append))
    assert max(map(len, told)) <= decorator.PROGRESS_CHARS and told[-1].startswith("4999 ")


async def test_a_thread_that_outlives_its_call_tells_nothing_more(run: Run, place: Place) -> None:
    told: list[str] = []
    go_on, ended = threading.Event(), threading.Event()

    def slow(place: Place) -> None:
        place.progress("begun")
        go_on.wait(20)
        place.progress("too late")
        ended.set()

    output = await run(slow, msgspec.structs.replace(place, progress=told.append, timeout_s=2.0))
    assert output.is_error and "perhaps still going on: it was not done after 2 s" in output.text
    go_on.set()
    await eventually(ended.is_set)
    await asyncio.sleep(0)
    assert told == ["begun"]


def _untyped(x) -> None: ...  # type: ignore[no-untyped-def]
def _starred(*x: int) -> None: ...
def _keywords(**x: int) -> None: ...
def _positional(x: int, /) -> None: ...
def _complex(x: threading.Thread) -> None: ...
def _forward(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (_untyped, "The parameter x of _untyped has no type"),
        (_starred, "takes \\*x"),
        (_keywords, "takes \\*\\*x"),
        (_positional, "only have parameters that are passed by name"),
        (_complex, "have no JSON Schema"),
        (_forward, "cannot be read: name 'Nowhere' is not defined"),
    ],
)
def test_a_signature_without_a_schema_is_refused_with_its_name(
    fn: Callable[..., object], says: str, threads: Threads
) -> None:
    with pytest.raises(ToolsError, match=says):
        tool_of(fn, threads)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "my_tools_of_a_test.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from ninelives.tools.decorator import tool\n"
        "from ninelives.tools.base import Place\n"
        "@tool(effect='read')\n"
        "def one(thing: Thing) -> str:\n    'First.'\n    return thing.name\n"
        "@tool\n"
        "async def two(place: Place) -> str:\n    'Second.'\n    return place.owner\n"
        "def plain(n: int) -> int:\n    return n\n"
        "import msgspec\n"
        "class Thing(msgspec.Struct):\n    name: str\n"
        "several = [one, two]\n"
        "number = 3\n"
    )
    yield path
    for name in ("my_tools_of_a_test", "ninelives_tools_my_tools_of_a_test", "broken_of_a_test", "empty_of_a_test"):
        sys.modules.pop(name, None)


def names(tools: list[Tool]) -> list[str]:
    return [each.name for each in tools]


async def test_tools_are_found_in_modules_objects_and_files(module: Path, threads: Threads, place: Place) -> None:
    name = module.stem
    assert names(load_tools([name], threads)) == ["one", "two"]
    assert names(load_tools([f"{name}:two"], threads)) == ["two"]
    assert names(load_tools([f"{name}:plain"], threads)) == ["plain"]
    assert names(load_tools([f"{name}:several"], threads)) == ["one", "two"]
    assert names(load_tools([f"{name}:one", name], threads)) == ["one", "two"]
    loaded = load_tools([str(module)], threads)
    assert names(loaded) == ["one", "two"]
    assert (await Caller(Toolbox(loaded), place)("one", thing={"name": "x"})).text == "x"
    assert load_tools([], threads) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module_at_all", r"tools.modules 'no_such_module_at_all' cannot be loaded: ModuleNotFoundError"),
        ("my_tools_of_a_test:nothing", "AttributeError"),
        ("my_tools_of_a_test:number", "names int, which is neither"),
        ("broken_of_a_test", "cannot be loaded: ZeroDivisionError"),
        ("empty_of_a_test", "has no function with @tool"),
        ("/no/such/file.py", "There is no Python file /no/such/file.py"),
        ("", "cannot be loaded: ValueError"),
    ],
)
def test_what_cannot_be_loaded_is_named_with_the_reason(module: Path, threads: Threads, name: str, says: str) -> None:
    (module.parent / "broken_of_a_test.py").write_text("1 / 0\n")
    (module.parent / "empty_of_a_test.py").write_text("")
    with pytest.raises(ToolsError, match=says):
        load_tools([name], threads)


def test_two_tools_of_one_name_are_named_both(module: Path, threads: Threads) -> None:
    with pytest.raises(ToolsError, match="both have a tool named 'one'"):
        load_tools([module.stem, str(module)], threads)


def test_a_name_that_upstreams_refuse_is_refused_at_start(module: Path, threads: Threads) -> None:
    text = module.read_text()
    module.write_text(text.replace("effect='read'", "name='a b'"))
    with pytest.raises(ToolsError, match=f"tools.modules '{module.stem}': @tool\\(name='a b'\\): use up to 64"):
        load_tools([module.stem], threads)
    module.write_text(text.replace("def one(", "def öne(").replace("[one, two]", "[two]"))
    importlib.invalidate_caches()
    with pytest.raises(ToolsError, match="has a tool named 'öne'"):
        load_tools([str(module)], threads)


@pytest.fixture
def package(module: Path) -> Path:
    """An installed package, as pip would leave it: its entry point names the module."""
    metadata = module.parent / "my_tools-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-tools\nVersion: 1.0\n")
    points = metadata / "entry_points.txt"
    points.write_text(f"[ninelives.tools]\nmine = {module.stem}\n")
    importlib.invalidate_caches()
    return points


def test_tools_of_installed_packages_are_found_by_entry_point(package: Path, module: Path, threads: Threads) -> None:
    assert names(load_tools([], threads)) == ["one", "two"]
    assert names(load_tools([module.stem], threads)) == ["one", "two"], "a module that is named too is loaded once"


@pytest.mark.parametrize(
    ("target", "found"), [("my_tools_of_a_test:two", ["two"]), ("my_tools_of_a_test:several", ["one", "two"])]
)
def test_an_entry_point_may_name_one_function_or_a_list(
    package: Path, threads: Threads, target: str, found: list[str]
) -> None:
    package.write_text(f"[ninelives.tools]\nmine = {target}\n")
    assert names(load_tools([], threads)) == found


def test_an_entry_point_that_cannot_be_loaded_is_named(package: Path, threads: Threads) -> None:
    package.write_text("[ninelives.tools]\ngone = no_such_module_at_all\n")
    with pytest.raises(ToolsError, match="the entry point gone = no_such_module_at_all cannot be loaded"):
        load_tools([], threads)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: tool("weather"), "@tool was given 'weather', which is no function. Use keywords"),  # type: ignore[call-overload]
        (lambda: tool(approval="read"), r"@tool\(approval='read'\): use one of none, write, network, exec"),  # type: ignore[call-overload]
        (lambda: tool(effect="none"), r"@tool\(effect='none'\): use one of read, idempotent, write"),  # type: ignore[call-overload]
        (lambda: tool(name=""), r"@tool\(name=''\): use up to 64"),
        (lambda: tool(len), "@tool cannot mark <built-in function len>. Define a function"),
    ],
)
def test_a_wrong_use_of_the_decorator_says_what_to_do(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises(ToolsError, match=says):
        wrong()


def test_the_decorator_keeps_the_type_of_the_function() -> None:
    """mypy checks this file: the marked function is called with the types of the plain one."""

    @tool
    def double(n: int) -> int:
        return 2 * n

    @tool(effect="read")
    def shout(text: str) -> str:
        return text.upper()

    number: int = double(2)
    text: str = shout("a")
    assert (number, text) == (4, "A")


def test_importing_the_decorator_imports_no_built_in_tool() -> None:
    code = (
        "import sys, ninelives.tools.decorator; print(*(m for m in sys.modules if 'builtin.' in m or 'aiohttp' in m))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
