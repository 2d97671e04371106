"""HTTP to a place that may be down, frozen or somebody else next time. Owns: a request that gives up on a line that is
silent for longer than keepalives allow, as any client with a read timeout does. Refuses to know: what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ninelives.drill.wire import Exchange

SILENT_S = 4.0
"""Several keepalives of a trial."""
WHOLE_S = 30.0
Json = dict[str, Any]


class Request(Exchange):
    """An exchange with an address of its own."""

    def __init__(
        self,
        line: Line,
        method: str,
        path: str,
        body: Json | None = None,
        on_data: Callable[[bytes], None] | None = None,
        **headers: str,
    ) -> None:
        super().__init__(line.port, method, path, body, on_data, Host=f"{line.host}:{line.port}", **headers)
        self.host = line.host
        self.heard_at = 0.0
        """When the last bytes came, by the loop's clock."""
        self.gave_up = False

    async def follow(self, silent_s: float = SILENT_S, seconds: float = 600.0) -> Request:
        """Send and take in all that comes; a line that says nothing for so long is given up."""
        loop = asyncio.get_running_loop()
        self.heard_at = loop.time()
        task = asyncio.create_task(self.run(seconds))
        try:
            while not task.done():
                left = self.heard_at + silent_s - loop.time()
                if left <= 0:
                    self.gave_up = True
                    break
                await asyncio.wait({task}, timeout=left)
        finally:
            if not task.done():
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self

    def _receive(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        super()._receive(data)


class Line(NamedTuple):
    """Where to ask."""

    host: str
    port: int

    async def get(self, path: str, seconds: float = WHOLE_S) -> Request:
        """GET to the end; status 0 where there was none."""
        return await self._whole(Request(self, "GET", path), seconds)

    async def post(self, path: str, body: Json | None = None, seconds: float = WHOLE_S, **headers: str) -> Request:
        """POST to the end; status 0 where there was none."""
        return await self._whole(Request(self, "POST", path, body or {}, **headers), seconds)

    async def delete(self, path: str, seconds: float = WHOLE_S) -> Request:
        """DELETE to the end; status 0 where there was none."""
        return await self._whole(Request(self, "DELETE", path), seconds)

    async def _whole(self, request: Request, seconds: float) -> Request:
        try:
            await request.run(seconds)
        except TimeoutError:
            request.gave_up = True
        return request


async def until_so(holds: Callable[[], Awaitable[bool]], seconds: float = WHOLE_S, what: str = "") -> None:
    """Ask until it is so, with a deadline: what is waited for happens in another process."""
    try:
        async with asyncio.timeout(seconds):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
