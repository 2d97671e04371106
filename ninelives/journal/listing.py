"""Lists runs in their sessions. Owns: when a run is listed, and what is listed again after a failure. Refuses to know:
what a session shows (core/sessions.py), and how it is stored.

Theory of operation. Runs are listed in batches, a moment after they end, so that the end of a run costs nothing more.
What ended here is known. The store knows which runs are not listed: it is asked at a start, after a failure, where more
ended than is kept in memory, and when somebody asks for sessions. What it names is read from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ninelives.core.errors import Damaged, IllegalEvent
from ninelives.core.sessions import TEXT_BYTES, SessionTurn, turn_of
from ninelives.core.spec import is_short
from ninelives.core.state import RunState
from ninelives.journal.base import Logger, Sessions
from ninelives.journal.values import Gone, StoreUnavailable

LIST_S = 1.0
"""How long after its end a run is listed, if nobody asks for sessions before."""
LIST_RUNS = 64
PAUSE_S = 0.02
"""Between two batches, so that running streams get in between."""
MOST_BYTES = 8 * 1024 * 1024
"""Of texts that wait to be listed. What ends beyond that is read again."""
CATCH_UP_S = 2.0
"""How long somebody who asks for sessions waits for what is not listed yet, after the start of a big old store."""


class SessionLister:
    """Lists the runs of one durable store in their sessions."""

    def __init__(self, sessions: Sessions, look: Callable[[str, str], Awaitable[RunState | None]], log: Logger) -> None:
        """`look` reads the state of a run."""
        self._sessions = sessions
        self._look = look
        self._log = log
        self._ended: dict[Gone, SessionTurn | asyncio.Future[SessionTurn]] = {}
        self._bytes = 0
        self._asks_store = True
        """The store may know of runs that are not in `_ended`."""
        self._unreadable: set[Gone] = set()
        self._due = asyncio.Event()
        self._due.set()

    def ended(self, state: RunState) -> None:
        """A run has ended here: its journal needs not be read again."""
        accepted = state.facts.accepted
        if accepted.spec.kept not in ("stored", "hours"):
            return
        self._due.set()
        turn = _made(state)
        self._bytes += len(turn.text) if isinstance(turn, SessionTurn) else TEXT_BYTES
        if self._bytes > MOST_BYTES:
            self._asks_store = True
        else:
            self._ended[accepted.owner, state.facts.run] = turn

    async def run(self) -> None:
        """List what the last process left, then what ends, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.sleep(LIST_S)
            try:
                await self._list_ended()
                while self._asks_store:
                    self._asks_store = await self._list_some(None, begun=False)
                    await asyncio.sleep(PAUSE_S)
            except StoreUnavailable as error:
                self._log.warning("sessions_not_listed", reason=str(error))
                self._asks_store = True
                self._due.set()

    async def _list_ended(self) -> None:
        """List what ended here, oldest first."""
        ended, self._ended, self._bytes = self._ended.values(), {}, 0
        turns = [await _whole(turn) for turn in ended]
        for start in range(0, len(turns), LIST_RUNS):
            await self._sessions.list_turns(turns[start : start + LIST_RUNS])
            await asyncio.sleep(PAUSE_S)

    async def catch_up(self, owner: str) -> None:
        """List what this owner has, runs at work too. What takes longer than CATCH_UP_S is left to run()."""
        end = asyncio.get_running_loop().time() + CATCH_UP_S
        more = True
        while more and asyncio.get_running_loop().time() < end:
            more = await self._list_some(owner, begun=True)
            await asyncio.sleep(0)

    async def _list_some(self, owner: str | None, *, begun: bool) -> bool:
        """List some runs and stored turns that the store names, oldest first. False if there are none left."""
        due = await self._sessions.unlisted(owner, LIST_RUNS + len(self._unreadable), begun=begun)
        due = [each for each in due if each not in self._unreadable]
        found = [turn for each in due if (turn := await self._turn_of(*each)) is not None]
        found = found or await self._sessions.unlisted_turns(owner, LIST_RUNS)
        if found:
            await self._sessions.list_turns(found)
        for each in due:
            self._ended.pop(each, None)
        return bool(found)

    async def _turn_of(self, owner: str, run: str) -> SessionTurn | None:
        """What a run shows. None if it is gone, or cannot be read."""
        if (known := self._ended.get((owner, run))) is not None:
            return await _whole(known)
        try:
            state = await self._look(owner, run)
        except (Damaged, IllegalEvent) as error:  # also a run of a newer release (R18): its own release lists it
            self._log.warning("run_not_listed", run=run, reason=str(error))
            self._unreadable.add((owner, run))
            return None
        return await _whole(_made(state)) if state is not None else None


def _made(state: RunState) -> SessionTurn | asyncio.Future[SessionTurn]:
    """What a run shows. A long request is hashed in a thread: ten megabytes would stop the loop for 60 ms."""
    if is_short(state.facts.accepted.spec):
        return turn_of(state)
    return asyncio.get_running_loop().run_in_executor(None, turn_of, state)


async def _whole(turn: SessionTurn | asyncio.Future[SessionTurn]) -> SessionTurn:
    return turn if isinstance(turn, SessionTurn) else await turn
