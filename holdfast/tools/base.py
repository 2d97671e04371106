"""What a tool is. Owns: the Tool Protocol, its effect and the two steps of a call (prepare, then run). Refuses to
know: models and runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from holdfast.core.events import Effect, Outcome, Process

Use = Literal["", "workspace", "memory"]
"""What a tool needs of the machine's disk: nothing, the files of the workspace, or the notes that an owner keeps."""


class Home(Protocol):
    """Which machine a workspace is on, where a server has several. See tools/homes.py."""

    async def away(self, use: Use) -> str:
        """Why it cannot be used here, in words for the model; empty where it can."""
        ...


class Here:
    """The Home of everything on a server that is one machine."""

    async def away(self, use: Use) -> str:
        """See Home.away."""
        return ""


HERE = Here()


class Place(Struct, frozen=True):
    """Where a call happens, and within which bounds."""

    owner: str
    session: str
    call_id: str
    """Also the idempotency key: the same on every attempt at this call."""
    workspace: Path
    state: Path = Path("/nonexistent")
    """A directory of this owner for what tools remember (memory, todo, cwd): outside of the workspace."""
    memory_scope: str = ""
    """Whose memory it is, where the caller narrows it (X-Hermes-Session-Key)."""
    timeout_s: float = 60.0
    output_bytes: int = 1_048_576
    progress: Callable[[str], None] = lambda text: None
    home: Home = HERE


class Output(Struct, frozen=True):
    """What a call gave. An error is something the model can read and act on."""

    text: str
    is_error: bool = False
    outcome: Outcome = "known"
    """Unknown: nobody can say whether it happened."""


class Deed(Protocol):
    """A call that is ready and has not done anything yet."""

    process: Process | None
    """The process that waits for permission to begin, where there is one (house rule 6.8)."""

    async def run(self) -> Output:
        """Do it. Called at most once, after ToolStarted is committed. Cancellation ends whatever was begun."""
        ...

    async def abandon(self) -> None:
        """It will not be run after all."""
        ...


class Tool(Protocol):
    """One tool of the agent."""

    name: str
    description: str
    schema: dict[str, object]
    """JSON Schema of the arguments object."""
    effect: Effect
    label: str
    emoji: str

    async def prepare(self, arguments: dict[str, object], place: Place) -> Deed:
        """Check the arguments (raise ToolRefused when they are wrong) and get ready without any effect."""
        ...


class ToolRefused(Exception):
    """The call cannot be made as asked; the text is for the model to read."""
