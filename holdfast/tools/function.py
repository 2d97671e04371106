"""A tool made of one async function. Owns: FunctionTool and its deed, which keeps the bounds of time and bytes.
Refuses to know: what the function does. A refusal raised by the function is told to the model; any other exception
is a bug of the function and goes up to whoever runs the deed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from holdfast.core.events import Effect, Process
from holdfast.tools.base import Deed, Output, Place, ToolRefused, Use
from holdfast.tools.text import bounded

Work = Callable[[dict[str, object], Place], Awaitable[Output | str]]


class FunctionTool(Struct, kw_only=True):
    """The function gets checked arguments and the place; it gives an Output, or a text that is no error."""

    name: str
    description: str
    schema: dict[str, object]
    fn: Work
    effect: Effect = "write"
    label: str = ""
    emoji: str = ""
    late: str = "stopped"
    """What has become of it when its time is over."""
    local: Use = ""
    """What it needs of this machine's disk: refused where that is on another machine."""

    async def prepare(self, arguments: dict[str, object], place: Place) -> Deed:
        """Nothing to get ready: the function begins in run()."""
        return _FunctionDeed(self, arguments, place)


class _FunctionDeed:
    def __init__(self, tool: FunctionTool, arguments: dict[str, object], place: Place) -> None:
        self.process: Process | None = None
        self._tool = tool
        self._arguments = arguments
        self._place = place

    async def run(self) -> Output:
        """Call the function, within the time and the bytes of the place."""
        seconds = self._place.timeout_s
        try:
            async with asyncio.timeout(seconds) as clock:
                given = await self._tool.fn(self._arguments, self._place)
        except ToolRefused as refusal:
            return Output(str(refusal), is_error=True)
        except TimeoutError:
            if not clock.expired():
                raise
            return Output(f"[{self._tool.late}: it was not done after {seconds:g} s]", is_error=True)
        output = Output(given) if isinstance(given, str) else given
        data = output.text.encode("utf-8", "replace")
        return Output(bounded(data, self._place.output_bytes), output.is_error)

    async def abandon(self) -> None:
        """Nothing was begun."""
