"""A tool made of one async function. Owns: FunctionTool and its execution, which keeps the bounds of time and bytes.
Refuses to know: what the function does. The model is told a ToolRefused of the function. Any other exception is a bug
in the function and reaches the caller of run()."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from ninelives.core.events import Effect, Process
from ninelives.tools.base import ApprovalClass, Execution, Output, Place, Reach, ToolRefused, Use, bounded

Work = Callable[[dict[str, object], Place], Awaitable[Output | str]]


class FunctionTool(Struct, kw_only=True):
    """The function gets checked arguments and the place. It returns an Output, or a text for success."""

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
