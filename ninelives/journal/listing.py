"""Lists runs in their sessions. Owns: when a run is listed, and what is listed again after a failure. Refuses to know:
what a session shows (core/sessions.py), and how it is stored.

Theory of operation. The store knows which runs are not listed. They are listed in batches and out of the way: when no
run has ended for a while and none is at work, when somebody asks for sessions, or when many wait. So listing costs
nothing at the end of a run, and little while a server is busy: on PostgreSQL a run costs as much as six flushes. The
newest ended runs are kept in memory; others are read from the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ninelives.core.errors import Damaged, IllegalEvent
from ninelives.core.rope import LARGE_BYTES, LARGE_WORK, alone
from ninelives.core.sessions import SessionTurn, turn_of
from ninelives.core.spec import is_short
from ninelives.core.state import RunState
from ninelives.journal.base import Logger, Sessions
from ninelives.journal.values import Gone, StoreUnavailable

CALM_S = 5.0
"""Runs are listed when none has ended for this long, if nobody asks for sessions before."""
BUSY_S = 60.0
"""How long they wait for the end of runs that are at work."""
MOST_RUNS = 4_096
"""So many do not wait for that: somebody who asks for sessions would wait for them."""
KEPT_RUNS = 1_024
"""Ended runs with short requests that are kept in memory until they are listed. Others are read again, each with two
hops between threads."""
LIST_RUNS = 64
PAUSE_S = 0.02
"""Between two batches, so that running streams get in between."""
CATCH_UP_S = 2.0
"""How long somebody who asks for sessions waits for what is not listed yet, after the start of a big old store."""


class SessionLister:
    """Lists the runs of one durable store in their sessions."""

    def __init__(
        self,
        sessions: Sessions,
        look: Callable[[str, str], Awaitable[RunState | None]],
        is_busy: Callable[[], bool],
        log: Logger,
    ) -> None:
        """`look` reads the state of a run. `is_busy`: whether runs are at work here."""
        self._sessions = sessions
        self._look = look
        self._is_busy = is_busy
        self._log = log
        self._ended: dict[Gone, RunState] = {}
        self._waiting = 0
        """How many have ended here since the last round."""
        self._unreadable: set[Gone] = set()
        self._due = asyncio.Event()
        self._due.set()

    def ended(self, state: RunState) -> None:
        """A run has ended here."""
        accepted = state.facts.accepted
        if accepted.spec.kept not in ("stored", "hours"):
            return
        self._waiting += 1
        self._due.set()
        if len(self._ended) < KEPT_RUNS and is_short(accepted.spec):
            self._ended[accepted.owner, state.facts.run] = state

    async def run(self) -> None:
        """List what the last process left, then what ends, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self._calm()
            self._waiting = 0
            try:
                more = True
                while more:
                    more = await self._list_some(None, begun=False)
                    await asyncio.sleep(PAUSE_S)
                self._ended.clear()  # what is left is gone from the store
            except StoreUnavailable as error:
                self._log.warning("sessions_not_listed", reason=str(error))
                self._due.set()

    async def _calm(self) -> None:
        """Wait until no run has ended for a while and none is at work, or many wait."""
        time = asyncio.get_running_loop().time
        before, end = -1, time() + BUSY_S
        while self._waiting < MOST_RUNS and (before < self._waiting or (self._is_busy() and time() < end)):
            before = self._waiting
            await asyncio.sleep(CALM_S)

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
        if (kept := self._ended.get((owner, run))) is not None:  # it has a short request
            return turn_of(kept)
        try:
            state = await self._look(owner, run)
        except (Damaged, IllegalEvent) as error:  # also a run of a newer release (R18): its own release lists it
            self._log.warning("run_not_listed", run=run, reason=str(error))
            self._unreadable.add((owner, run))
            return None
        if state is None or is_short(state.facts.accepted.spec):
            return turn_of(state) if state is not None else None
        # A long request is hashed in a thread: ten megabytes would stop the loop for 60 ms.
        return await asyncio.get_running_loop().run_in_executor(LARGE_WORK, alone, LARGE_BYTES, turn_of, state)
