"""Tools that are written as plain Python functions. Owns: the `@tool` decorator, the schema that it derives from a
typed signature and a docstring, the call (async in the loop, sync in a thread) with its progress, and the discovery by
entry point (`ninelives.tools`) and by name (`tools.modules`). Refuses to know: what the functions do.

`@tool` only marks a function. Importing a module registers nothing, and the function can be called as before."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
import threading
import typing
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast, overload

import msgspec
from msgspec import Struct

from ninelives.core.events import Effect
from ninelives.tools.arguments import as_struct, schema_with_defaults
from ninelives.tools.base import APPROVAL_CLASSES, ApprovalClass, FunctionTool, Output, Place, Threads, Tool, is_name
from ninelives.tools.entry_points import entry_points_of
from ninelives.tools.homes import place_for_function

GROUP = "ninelives.tools"
PROGRESS_CHARS = 2_000
PROGRESS_WAITING = 100
"""Progress texts that may wait for the event loop. The oldest is dropped when there are more."""

_MARK = "__ninelives_tool__"
_EFFECTS = ("read", "idempotent", "write")

F = TypeVar("F", bound=Callable[..., object])


class ToolsError(Exception):
    """A tool cannot be offered. The text names the tool and says why."""


class ToolMark(Struct, frozen=True):
    """The arguments of `@tool`."""

    effect: Effect = "write"
    label: str = ""
    emoji: str = ""
    name: str | None = None
    approval: ApprovalClass | None = None


@overload
def tool(fn: F, /) -> F: ...
@overload
def tool(
    *,
    effect: Effect = "write",
    label: str = "",
    emoji: str = "",
    name: str | None = None,
    approval: ApprovalClass | None = None,
) -> Callable[[F], F]: ...
def tool(
    fn: F | None = None,
    /,
    *,
    effect: Effect = "write",
    label: str = "",
    emoji: str = "",
    name: str | None = None,
    approval: ApprovalClass | None = None,
) -> F | Callable[[F], F]:
    """Offer a function to the agent as a tool. Use it with or without arguments.

        @tool(effect="read", label="Looking up the weather", emoji="🌦")
        async def weather(city: Annotated[str, Meta(description="Name of the city.")], place: Place) -> Weather:
            '''Temperature and wind of a city, now.'''

    The model sees the function's name, its docstring, and a JSON Schema made of the parameters. Every parameter needs a
    type that msgspec can convert. The result is a str, an Output, or anything that msgspec can encode as JSON. Raise
    ToolRefused to tell the model what is wrong; any other exception is an error of the tool.

    A parameter of type Place (or one named `place` without a type) is not shown to the model. It has the call's id,
    which stays the same when the call is repeated after a crash, and `place.progress(text)` reports progress. A sync
    function runs in a thread.

    effect: what a second call with the same arguments would do. "read": nothing. "idempotent": the same as one call.
        "write": more than one call. After a crash an interrupted "write" is never repeated; the others are.
    label, emoji: shown to people while the call runs. The first required text argument takes the place of the label.
    approval: what a call may do: "none", "write" (change something), "network" (send data elsewhere) or "exec" (run a
        program). With tools.approval = "on-write" a person is asked about all but "none". Left out: "none" for the
        effect "read", otherwise "write".
    name: what the model calls it, if not the function's name: up to 64 of A-Z, a-z, 0-9, _ and -.

    Raises ToolsError if an argument is wrong. Parameters are checked when the server loads the tool."""
    if fn is not None and not callable(fn):
        raise ToolsError(f"@tool was given {fn!r}, which is no function. Use keywords, such as @tool(name=...).")
    if effect not in _EFFECTS:
        raise ToolsError(f"@tool(effect={effect!r}): use one of {', '.join(_EFFECTS)}.")
    if approval is not None and approval not in APPROVAL_CLASSES:
        raise ToolsError(f"@tool(approval={approval!r}): use one of {', '.join(APPROVAL_CLASSES)}.")
    if name is not None and not is_name(name):
        raise ToolsError(f"@tool(name={name!r}): use up to 64 of A-Z, a-z, 0-9, _ and -.")

    def mark(function: F) -> F:
        try:
            setattr(function, _MARK, ToolMark(effect, label, emoji, name, approval))
        except AttributeError as error:
            raise ToolsError(
                f"@tool cannot mark {function!r}. Define a function that calls it, and mark that."
            ) from error
        return function

    return mark if fn is None else mark(fn)


def tool_of(fn: Callable[..., object], threads: Threads) -> Tool:
    """Make a Tool of a function, marked or not. A sync function runs in `threads`."""
    mark: ToolMark = getattr(fn, _MARK, ToolMark())
    name = mark.name or str(getattr(fn, "__name__", type(fn).__name__))
    shape = _Shape(fn, name)
    return FunctionTool(
        name=name,
        description=inspect.getdoc(fn) or name.replace("_", " "),
        schema=schema_with_defaults(shape.arguments),
        fn=_work(fn, shape, threads),
        effect=mark.effect,
        approval=mark.approval,
        label=mark.label,
        emoji=mark.emoji,
        late="stopped" if shape.is_async else "not waited for any longer, and perhaps still going on",
    )


class _Shape:
    """A signature: the arguments as a Struct, and the names of the parameters that get the Place."""

    def __init__(self, fn: Callable[..., object], name: str) -> None:
        self.is_async = inspect.iscoroutinefunction(fn)
        self.places: list[str] = []
        try:
            types = typing.get_type_hints(fn, include_extras=True)
            parameters = inspect.signature(fn).parameters.values()
        except (NameError, TypeError, ValueError) as error:
            raise ToolsError(f"The signature of {name} cannot be read: {error}.") from error
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in parameters:
            kind = types.get(parameter.name)
            if kind in (Place, Place | None) or (kind is None and parameter.name == "place"):
                self.places.append(parameter.name)
            else:
                fields.append(_field(name, parameter, kind))
        try:
            self.arguments = msgspec.defstruct(name or "tool", fields, kw_only=True, forbid_unknown_fields=True)
            schema_with_defaults(self.arguments)
        except (TypeError, ValueError) as error:
            raise ToolsError(
                f"The parameters of {name} have no JSON Schema: {error}. Use types that msgspec supports."
            ) from error

    def filled(self, arguments: dict[str, object], place: Place) -> dict[str, object]:
        """The keyword arguments of a call."""
        given = as_struct(self.arguments, arguments)
        return {field: getattr(given, field) for field in given.__struct_fields__} | dict.fromkeys(self.places, place)


def _field(name: str, parameter: inspect.Parameter, kind: object) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolsError(f"{name} takes {parameter}, but a tool can only have parameters that are passed by name.")
    if kind is None:
        raise ToolsError(
            f"The parameter {parameter.name} of {name} has no type. Add one, such as {parameter.name}: str."
        )
    if parameter.default is parameter.empty:
        return (parameter.name, kind)
    return (parameter.name, kind, parameter.default)


def _work(
    fn: Callable[..., object], shape: _Shape, threads: Threads
) -> Callable[[dict[str, object], Place], Awaitable[Output | str]]:
    async def work(arguments: dict[str, object], place: Place) -> Output | str:
        relay = _Relay(place.progress)
        place = await place_for_function(place) if shape.places else place
        filled = shape.filled(arguments, msgspec.structs.replace(place, progress=relay.tell))
        try:
            made = _call(fn, filled) if shape.is_async else await threads.run(_call, fn, filled)
            if inspect.isawaitable(made):
                made = await made
        except SystemExit as error:
            raise RuntimeError("it tried to end the server") from error
        finally:
            relay.close()
        return _text(made)

    return work


def _call(fn: Callable[..., object], filled: dict[str, object]) -> object:
    """Call the function. Exceptions that threads and the event loop treat specially become ordinary errors."""
    try:
        return fn(**filled)
    except (SystemExit, StopIteration) as error:
        raise RuntimeError(f"it raised {type(error).__name__}") from error


def _text(made: object) -> Output | str:
    if isinstance(made, (str, Output)):
        return made
    if made is None:
        return "[done]"
    try:
        return msgspec.json.encode(made).decode()
    except (TypeError, ValueError, RecursionError) as error:
        words = f"It was done, but its result ({type(made).__name__}) cannot be shown: {error}"
        return Output(words, is_error=True)


class _Relay:
    """Passes progress from any thread to the loop. Drops what comes after the end (a thread may outlive its call), and
    the oldest texts if they come too fast."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress: Callable[[str], None] | None = progress
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque(maxlen=PROGRESS_WAITING)

    def tell(self, text: str) -> None:
        """May be called from any thread."""
        with self._lock:
            if self._progress is None:
                return
            if not self._waiting:
                self._loop.call_soon_threadsafe(self._flush)
            self._waiting.append(str(text)[:PROGRESS_CHARS])

    def close(self) -> None:
        """Pass on what waits, and nothing after it."""
        self._flush()
        with self._lock:
            self._progress = None

    def _flush(self) -> None:
        with self._lock:
            waiting, progress = list(self._waiting), self._progress
            self._waiting.clear()
        if progress is not None:
            for text in waiting:
                progress(text)


def load_tools(modules: Sequence[str], threads: Threads) -> list[Tool]:
    """Load the tools of installed packages (entry points) and of `modules`: `package.module`, `package.module:object`
    or `path/to/file.py`. An object is a function, a Tool, or a list of them; of a module, all marked functions.

    Raises ToolsError, with the name and the reason, if one of them cannot be loaded."""
    found: dict[str, tuple[Tool, str]] = {}
    seen: list[object] = []
    for origin, thing in _candidates(modules):
        if any(thing is each for each in seen):
            continue  # named twice, say by an entry point and by its module
        seen.append(thing)
        made = _as_tool(thing, origin, threads)
        if not is_name(made.name):
            raise ToolsError(f"{origin} has a tool named {made.name!r}. Use up to 64 of A-Z, a-z, 0-9, _ and -.")
        if made.name in found:
            raise ToolsError(
                f"{origin} and {found[made.name][1]} both have a tool named {made.name!r}. Rename one: @tool(name=...)."
            )
        found[made.name] = (made, origin)
    return [each for each, _ in found.values()]


def _candidates(modules: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Every object that should be a tool, and where it came from."""
    for point in entry_points_of(GROUP):
        origin = f"the entry point {point.name} = {point.value}"
        yield from ((origin, each) for each in _members(_loaded(origin, point.load), origin))
    for name in modules:
        origin = f"tools.modules {name!r}"
        yield from ((origin, each) for each in _members(_loaded(origin, partial(imported, name)), origin))


def _members(thing: object, origin: str) -> Sequence[object]:
    if isinstance(thing, ModuleType):
        if marked := [each for each in vars(thing).values() if hasattr(each, _MARK)]:
            return marked
        raise ToolsError(f"{origin} has no function with @tool. Mark one, or name it: module:function.")
    return thing if isinstance(thing, (list, tuple)) else [thing]


def _loaded(origin: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except ToolsError as error:
        raise ToolsError(f"{origin}: {error}") from error
    except Exception as error:  # the edge: importing foreign code may raise anything
        raise ToolsError(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error


def imported(name: str) -> object:
    """What `package.module`, `package.module:object`, `path/to/file.py` or `path/to/file.py:object` names. It runs code
    of the user, so anything can be raised."""
    place, _, attribute = name.partition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    thing: object = module
    for part in attribute.split(".") if attribute else ():
        thing = getattr(thing, part)
    return thing


def _from_file(path: Path) -> ModuleType:
    """The module in a file, which may import those beside it. It is executed once, however often it is named."""
    path = path.expanduser().absolute()
    name = f"ninelives_tools_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ToolsError(f"There is no Python file {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints are looked up there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _as_tool(thing: object, origin: str, threads: Threads) -> Tool:
    if hasattr(thing, "prepare") and hasattr(thing, "schema"):
        return cast(Tool, thing)
    if not callable(thing):
        raise ToolsError(f"{origin} names {type(thing).__name__}, which is neither a function with @tool nor a Tool.")
    try:
        return tool_of(thing, threads)
    except ToolsError as error:
        raise ToolsError(f"{origin}: {error}") from error
