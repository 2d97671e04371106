"""Whether answers reached those who waited for them. Owns: telling the store, as far as this process knows: an answer
is delivered when its last byte was handed to the transport; a connection is lost when it broke before that; and at a
start all connections of the process before are lost, however it ended. A draining server tells of no loss: its next
start does, so that the time to come back begins only when somebody is there again. Refuses to know: connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.engine.base import Log
from holdfast.journal.base import Deliveries, StoreUnavailable


class Handover:
    """The words of one process about its callers."""

    def __init__(self, deliveries: Callable[[], Deliveries], now_ms: Callable[[], int], log: Log) -> None:
        self._deliveries = deliveries
        self._now_ms = now_ms
        self._log = log
        self.closing = False

    async def begin(self) -> None:
        """Before the first request: whoever waited before is gone."""
        await self._say(self._deliveries().strand(self._now_ms()))

    async def answered(self, owner: str, run: str) -> None:
        """The whole answer was handed over."""
        await self._say(self._deliveries().answered(owner, run))

    async def lost(self, owner: str, run: str) -> None:
        """The connection broke before."""
        if not self.closing:
            await self._say(self._deliveries().lost(owner, run, self._now_ms()))

    async def _say(self, word: Awaitable[None]) -> None:
        """A store that takes nothing now costs a retry its run, never the caller its answer."""
        try:
            await word
        except StoreUnavailable as error:
            self._log.warning("delivery_not_noted", reason=str(error))
