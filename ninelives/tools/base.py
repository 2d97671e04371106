"""What a tool is. Owns: the Tool Protocol, its effect, its approval class, the two steps of a call (prepare, then run),
and what tools of all kinds need: threads for work that blocks, the bound of an output, and FunctionTool, which makes a
tool of one async function. Refuses to know: models and runs, when a person is asked, and what a function does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal, ParamSpec, Protocol, TypeVar, get_args, runtime_checkable

from msgspec import Struct

from ninelives.core.events import Effect, Outcome, Process

P = ParamSpec("P")
T = TypeVar("T")
Use = Literal["", "workspace", "memory"]
"""What a tool needs from the disk of this machine: nothing, the files of the workspace, or the notes of its owner."""


ApprovalClass = Literal["none", "write", "network", "exec"]
"""What a call may do, for the question whether a person must approve it: nothing to fear, change something, send data
to another machine, or run a program. It is apart from the effect, which says what happens after a crash."""
APPROVAL_CLASSES: tuple[ApprovalClass, ...] = get_args(ApprovalClass)


class Home(Protocol):
    """The machine that a workspace is on, if the server runs on several. See tools/homes.py."""

    async def refusal(self, use: Use) -> str:
        """Why it cannot be used on this machine, as a text for the model. Empty if it can."""
        ...


class Here:
    """The Home of every workspace on a server that is one machine."""

    async def refusal(self, use: Use) -> str:
        """See Home.refusal."""
        return ""


HERE = Here()


class Quota(Protocol):
    """What the workspace of a call may hold. See tools/quota.py."""

    async def refusal(self) -> str:
        """Why nothing can be written now, as a text for the model. Empty if something can."""
        ...

    async def room(self) -> int:
        """How many bytes can be written."""
        ...

    async def exceeded(self) -> str:
        """Wait until more was written than is allowed. Returns a note for the model. Cancel it to stop watching."""
        ...


class Unlimited:
    """The Quota of a workspace without bounds."""

    async def refusal(self) -> str:
        """See Quota.refusal."""
        return ""

    async def room(self) -> int:
        """See Quota.room."""
        return 1 << 60

    async def exceeded(self) -> str:
        """See Quota.exceeded."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never


UNLIMITED = Unlimited()


class Place(Struct, frozen=True):
    """Where a call runs, and within which bounds."""

    owner: str
    session: str
    call_id: str
    """Also the idempotency key: it is the same on every attempt at this call."""
    workspace: Path
    state: Path = Path("/nonexistent")
    """A directory of this owner for what tools keep (memory, todo, folder), outside the workspace."""
    apart: str = ""
    """The run, where nothing that a shell keeps for the next command may outlast it (B6). The session is only read."""
    scratch: dict[str, bytes] | None = None
    """Where that is kept instead, if the run is in memory only: nothing of it may be on the disk."""
    memory_scope: str = ""
    """Whose memory it is, if the caller narrows it (X-Hermes-Session-Key)."""
    timeout_s: float = 60.0
    output_bytes: int = 1_048_576
    progress: Callable[[str], None] = lambda text: None
    home: Home = HERE
    quota: Quota = UNLIMITED
    may_visit: Callable[[str], bool] = lambda host: True
    """Whether a call of class network may go on to another host than the one that was approved (a redirect)."""


class Output(Struct, frozen=True):
    """The result of a call. The model reads an error and can act on it."""

    text: str
    is_error: bool = False
    outcome: Outcome = "known"
    """Whether the call took effect. "unknown" if nobody can say."""


class Execution(Protocol):
    """A call that is ready and has had no effect yet."""

    process: Process | None
    """The process that waits for permission to begin, if there is one (R8 in docs/architecture.md)."""

    async def run(self) -> Output:
        """Make the call. Called at most once, after ToolStarted is committed. Cancellation ends what it has started."""
        ...

    async def abandon(self) -> None:
        """Release what prepare() made, because run() will not be called."""
        ...


class Reach(Struct, frozen=True):
    """What one call may do."""

    approval: ApprovalClass
    host: str = ""
    """Class network: the one host that it contacts, in lower case. Empty: not known."""
    command: str | None = None
    """Class exec: the shell command that it runs. None: something else runs, such as Python code."""


class Tool(Protocol):
    """A tool of the agent. Two attributes are optional. `approval` is its ApprovalClass; without it, a read has the
    class none and any other tool the class write. `reach(arguments)` gives the Reach of one call, if calls differ."""

    name: str
    description: str
    schema: dict[str, object]
    """JSON Schema of the arguments object."""
    effect: Effect
    label: str
    emoji: str

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """Check the arguments and get ready, without any effect. Raises ToolRefused if they are wrong."""
        ...


def approval_class(tool: Tool) -> ApprovalClass:
    """The approval class of a tool."""
    given: ApprovalClass | None = getattr(tool, "approval", None)
    return given or ("none" if tool.effect == "read" else "write")


def reach_of(tool: Tool, arguments: dict[str, object]) -> Reach:
    """What a call with these arguments may do. Arguments that the tool cannot judge have the class of the tool."""
    own: Callable[[dict[str, object]], Reach] | None = getattr(tool, "reach", None)
    try:
        return Reach(approval_class(tool)) if own is None else own(arguments)
    except ToolRefused:
        return Reach(approval_class(tool))


@runtime_checkable
class ForgetfulTool(Protocol):
    """A tool that keeps something for as long as a run lasts (Place.apart)."""

    async def forget(self, place: Place) -> bool:
        """Delete it: the run is about to be forgotten. False: it is on another machine."""
        ...


_NAME = re.compile(r"\A[A-Za-z0-9_-]{1,64}\Z")


def is_name(name: str) -> bool:
    """Whether model servers accept this as the name of a tool."""
    return _NAME.match(name) is not None


class ToolRefused(Exception):
    """The call cannot be made as asked. The model reads the text."""


class Threads:
    """A pool of threads for blocking work. Every caller waits, so its queue holds at most one piece of work per call in
    progress. A thread cannot be stopped: if its caller is cancelled, the work goes on to its end. So the work must
    bound itself, in bytes and in time."""

    def __init__(self, size: int = 4) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="ninelives-tools")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in one of the threads and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    def close(self) -> None:
        """Accept no more work. Threads end when they have finished theirs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f]")
"""Control characters that mean nothing in text. Each takes six bytes in JSON, and SQL text cannot hold a NUL."""


def bounded(data: bytes, limit: int, total: int | None = None) -> str:
    """`data` as text of at most `limit` bytes, with a note if that is less than the `total` that there was."""
    total = len(data) if total is None else total
    text = _CONTROL.sub("\ufffd", data[:limit].decode("utf-8", "replace"))
    encoded = text.encode()
    if total <= limit and len(encoded) <= limit:
        return text
    text = encoded[:limit].decode("utf-8", "ignore")
    return f"{text}\n[output cut: the first {limit} bytes of {total} are shown]"


Work = Callable[[dict[str, object], Place], Awaitable[Output | str]]


class FunctionTool(Struct, kw_only=True):
    """A tool made of one async function. It gets checked arguments and the place, and returns an Output, or a text for
    success. The model is told a ToolRefused of the function. Any other exception is a bug in the function and reaches
    the caller of run()."""

    name: str
    description: str
    schema: dict[str, object]
    fn: Work
    effect: Effect = "write"
    approval: ApprovalClass | None = None
    reach: Callable[[dict[str, object]], Reach] | None = None
    """The reach of one call, where calls differ."""
    label: str = ""
    emoji: str = ""
    late: str = "stopped"
    """What happens to the function when its time is over, for the error text."""
    local: Use = ""
    """What it needs from the disk. The call is refused if that is on another machine."""
    grows: bool = False
    """It writes to the workspace. The call is refused if that is full."""

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """Nothing to prepare: the function is called in run()."""
        return _FunctionExecution(self, arguments, place)


class _FunctionExecution(Struct):
    tool: FunctionTool
    arguments: dict[str, object]
    place: Place
    process: Process | None = None

    async def run(self) -> Output:
        """Call the function, within the time and the bytes of the place."""
        seconds = self.place.timeout_s
        try:
            async with asyncio.timeout(seconds) as clock:
                given = await self.tool.fn(self.arguments, self.place)
        except ToolRefused as refusal:
            return Output(str(refusal), is_error=True)
        except TimeoutError:
            if not clock.expired():
                raise
            return Output(f"[{self.tool.late}: it was not done after {seconds:g} s]", is_error=True)
        output = Output(given) if isinstance(given, str) else given
        data = output.text.encode("utf-8", "replace")
        return Output(bounded(data, self.place.output_bytes), output.is_error)

    async def abandon(self) -> None:
        """Nothing was started."""
