"""Tools that are written as plain Python functions. Owns: the `@tool` mark, the way from a typed signature and a
docstring to a schema, the call (async in the loop, sync in a thread), progress from inside it, and finding such
functions by entry point (`holdfast.tools`) and by name (`tools.modules`). Refuses to know: what the functions do.

A mark is only a mark: nothing is registered when a module is imported, and the function can be called as before.

    @tool(effect="read", label="Looking up the weather", emoji="🌦")
    async def weather(city: Annotated[str, Meta(description="Name of the city.")], place: Place) -> dict[str, float]:
        '''Temperature and wind of a city, now.'''

A parameter of type Place (or named `place` without a type) is not shown to the model: through it the function knows
the call's id, which is the same when the call is made again after a crash, and tells how far it is."""

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

from holdfast.core.events import Effect
from holdfast.tools.arguments import schema_with_defaults, taken
from holdfast.tools.base import Output, Place, Tool
from holdfast.tools.function import FunctionTool
from holdfast.tools.homes import lent
from holdfast.tools.registry import is_name
from holdfast.tools.threads import Threads

GROUP = "holdfast.tools"
PROGRESS_CHARS = 2_000
PROGRESS_WAITING = 100
"""Progress that may wait for the event loop; then the oldest is dropped."""

_MARK = "__holdfast_tool__"
_EFFECTS = ("read", "idempotent", "write")

F = TypeVar("F", bound=Callable[..., object])


class ToolsError(Exception):
    """A tool of the user's cannot be offered; the text names it and says why."""


class Mark(Struct, frozen=True):
    """What `@tool` says of a function."""

    effect: Effect = "write"
    label: str = ""
    emoji: str = ""
    name: str | None = None


@overload
def tool(fn: F, /) -> F: ...
@overload
def tool(
    *, effect: Effect = "write", label: str = "", emoji: str = "", name: str | None = None
) -> Callable[[F], F]: ...
def tool(
    fn: F | None = None, /, *, effect: Effect = "write", label: str = "", emoji: str = "", name: str | None = None
) -> F | Callable[[F], F]:
    """Mark a function as a tool. `effect` says what a repetition would do: nothing (read), the same as once
    (idempotent), or more (write: after a crash such a call is never repeated by itself)."""
    if effect not in _EFFECTS:
        raise ToolsError(f"effect {effect!r} is none of {', '.join(_EFFECTS)}.")

    def mark(function: F) -> F:
        setattr(function, _MARK, Mark(effect, label, emoji, name))
        return function

    return mark if fn is None else mark(fn)


def tool_of(fn: Callable[..., object], threads: Threads) -> Tool:
    """The Tool behind a function, marked or not; a sync function runs in `threads`."""
    mark: Mark = getattr(fn, _MARK, Mark())
    name = mark.name or str(getattr(fn, "__name__", type(fn).__name__))
    shape = _Shape(fn, name)
    return FunctionTool(
        name=name,
        description=inspect.getdoc(fn) or name.replace("_", " "),
        schema=schema_with_defaults(shape.arguments),
        fn=_work(fn, shape, threads),
        effect=mark.effect,
        label=mark.label,
        emoji=mark.emoji,
        late="stopped" if shape.is_async else "not waited for any longer, and perhaps still going on",
    )


class _Shape:
    """A signature: the arguments as a Struct, and the names of parameters that take the place."""

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
            raise ToolsError(f"The parameters of {name} cannot be told to a model: {error}.") from error

    def filled(self, arguments: dict[str, object], place: Place) -> dict[str, object]:
        """The keyword arguments of a call."""
        given = taken(self.arguments, arguments)
        return {field: getattr(given, field) for field in given.__struct_fields__} | dict.fromkeys(self.places, place)


def _field(name: str, parameter: inspect.Parameter, kind: object) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolsError(f"{name} takes {parameter}; a tool has only parameters that can be given by name.")
    if kind is None:
        raise ToolsError(f"The parameter {parameter.name} of {name} has no type.")
    if parameter.default is parameter.empty:
        return (parameter.name, kind)
    return (parameter.name, kind, parameter.default)


def _work(
    fn: Callable[..., object], shape: _Shape, threads: Threads
) -> Callable[[dict[str, object], Place], Awaitable[Output | str]]:
    async def work(arguments: dict[str, object], place: Place) -> Output | str:
        relay = _Relay(place.progress)
        place = await lent(place) if shape.places else place
        filled = shape.filled(arguments, msgspec.structs.replace(place, progress=relay.tell))
        try:
            made = _kept(fn, filled) if shape.is_async else await threads.run(_kept, fn, filled)
            if inspect.isawaitable(made):
                made = await made
        except SystemExit as error:
            raise RuntimeError("it tried to end the server") from error
        finally:
            relay.close()
        return _text(made)

    return work


def _kept(fn: Callable[..., object], filled: dict[str, object]) -> object:
    """Call it; what would go through a thread's or the loop's machinery in a wrong way is made an ordinary error."""
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
        words = f"It was done, but what came of it ({type(made).__name__}) cannot be shown: {error}"
        return Output(words, is_error=True)


class _Relay:
    """Progress on its way from any thread to the loop. Told after the end it is dropped, for a thread may outlive
    the call; told too fast, the oldest is."""

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
        """What waits is told, and nothing after it."""
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
    """The tools of installed packages and of the named modules: `package.module`, `package.module:object` or
    `path/to/file.py`. ToolsError where one of them cannot be had, with its name and the reason."""
    found: dict[str, tuple[Tool, str]] = {}
    seen: list[object] = []
    for origin, thing in _things(modules):
        if any(thing is each for each in seen):
            continue  # named twice, say by an entry point and by its module
        seen.append(thing)
        made = _made(thing, origin, threads)
        if not is_name(made.name):
            raise ToolsError(f"{origin} has a tool named {made.name!r}: use up to 64 of A-Z, a-z, 0-9, _ and -.")
        if made.name in found:
            raise ToolsError(f"{origin} and {found[made.name][1]} both have a tool named {made.name!r}.")
        found[made.name] = (made, origin)
    return [each for each, _ in found.values()]


def _things(modules: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Each thing that should be a tool, with words for where it came from."""
    from importlib.metadata import entry_points  # not for those who only want the mark: it is slow to import

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        origin = f"the entry point {point.name} = {point.value}"
        yield from ((origin, each) for each in _parts(_loaded(origin, point.load), origin))
    for name in modules:
        origin = f"tools.modules {name!r}"
        yield from ((origin, each) for each in _parts(_loaded(origin, partial(_named, name)), origin))


def _parts(thing: object, origin: str) -> Sequence[object]:
    if isinstance(thing, ModuleType):
        if marked := [each for each in vars(thing).values() if hasattr(each, _MARK)]:
            return marked
        raise ToolsError(f"{origin} has no function with @tool.")
    return thing if isinstance(thing, (list, tuple)) else [thing]


def _loaded(origin: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except ToolsError:
        raise
    except Exception as error:  # the edge to code of others, which may fail in any way when it is imported
        raise ToolsError(f"{origin} cannot be loaded: {type(error).__name__}: {error}") from error


def _named(name: str) -> object:
    place, _, attribute = name.partition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    thing: object = module
    for part in attribute.split(".") if attribute else ():
        thing = getattr(thing, part)
    return thing


def _from_file(path: Path) -> ModuleType:
    path = path.expanduser().absolute()
    name = f"holdfast_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ToolsError(f"There is no Python file {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where types of its signatures are looked up
    spec.loader.exec_module(module)
    return module


def _made(thing: object, origin: str, threads: Threads) -> Tool:
    if hasattr(thing, "prepare") and hasattr(thing, "schema"):
        return cast(Tool, thing)
    if not callable(thing):
        raise ToolsError(f"{origin} names {type(thing).__name__}, which is neither a function with @tool nor a Tool.")
    try:
        return tool_of(thing, threads)
    except ToolsError as error:
        raise ToolsError(f"{origin}: {error}") from error
