"""Durable steps without a server: a run in a file of the program that makes it. Owns: LocalJournal, one SQLite file,
and LocalRun, one attempt at one run in it. Refuses to know: frameworks, and what a step does.

Theory of operation. The program names its run. The first time the run is opened; later, also after kill -9, it is
claimed again, and steps.py replays what it finished. The code of the program makes steps; a task beside it writes their
events. A run that was left by an error stays open: the program goes on with it when it is started again. One that was
left without an error is complete. Then it only gives back what it recorded."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType

from ninelives.agents.base import Turn
from ninelives.agents.steps import CallPlan, Made, StepFailed, Steps
from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.admission import Asked
from ninelives.core.errors import AgentError
from ninelives.core.spec import Resolved, Spec
from ninelives.core.state import RunState, apply, fold
from ninelives.journal.sqlite.lock import DirectoryHeld, DirectoryLock
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Mark, Opened, Opening, Record, Slice, Verdict

OWNER = HOLDER = "local"


class LocalJournal:
    """The runs of a program, in `FOLDER/durable.db`. The file is open while runs are under way, and one process at a
    time can use it."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._opening = asyncio.Lock()
        self.claiming = asyncio.Lock()
        """Held while a run is opened or claimed."""
        self._store: SqliteStore | None = None
        self._lock: DirectoryLock | None = None
        self._users = 0

    async def enter(self) -> SqliteStore:
        """The open file. Raises AgentError where another process has it."""
        async with self._opening:
            if self._store is None:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                try:
                    self._lock = DirectoryLock(self._folder)
                except DirectoryHeld as error:
                    raise AgentError("journal_in_use", f"{self._folder} is in use by another process.") from error
                self._store = await SqliteStore.open_at(self._folder / "durable.db", "full", _now_ms)
            self._users += 1
            return self._store

    async def leave(self) -> None:
        """The last one closes the file."""
        async with self._opening:
            self._users -= 1
            if self._users == 0 and self._store is not None and self._lock is not None:
                store, self._store = self._store, None
                await store.close()
                self._lock.release()


class LocalRun:
    """One attempt at a run, as a context manager."""

    def __init__(self, journal: LocalJournal, name: str) -> None:
        self.name = name
        self._journal = journal
        self._id = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._left = asyncio.Event()
        self._store: SqliteStore
        self._state: RunState
        self._steps: Steps
        self._writing: asyncio.Task[None]

    @property
    def started_at_ms(self) -> int:
        """When the run was first begun: the same in each attempt."""
        return self._state.facts.created_at

    async def __aenter__(self) -> LocalRun:
        self._store = await self._journal.enter()
        try:
            async with self._journal.claiming:
                self._state = await self._claimed()
        except BaseException:
            await self._journal.leave()
            raise
        self._steps = Steps(Turn(self._state, ()))
        self._writing = asyncio.create_task(self._write_all(), name=f"journal of {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._left.set()
                await self._writing
            else:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)
        finally:
            if not self._state.ended:
                await self._append([], Mark(status="queued", at=_now_ms(), parked=True))
            await self._journal.leave()

    async def make(self, plan: CallPlan, body: Callable[[str], Awaitable[Made]]) -> Made:
        """A step: recorded, or made now. An error of `body` is raised as it is. A step that failed in an earlier
        attempt, and that may be repeated, is made again unless the code went on after it: people start a program again
        for that."""
        while True:
            failed: list[Exception] = []

            async def watched(key: str, failed: list[Exception] = failed) -> Made:
                try:
                    return await body(key)
                except Exception as error:
                    failed.append(error)
                    raise

            try:
                return await self._call(plan, watched)
            except StepFailed as error:
                if failed:
                    raise failed[0] from None
                if error.code != "step_failed" or plan.effect == "write" or self._steps.went_on_after(plan):
                    raise

    async def _call(self, plan: CallPlan, body: Callable[[str], Awaitable[Made]]) -> Made:
        made = asyncio.create_task(self._steps.call(plan, body))
        try:
            await asyncio.wait((made, self._writing), return_when=asyncio.FIRST_COMPLETED)
            if made.done():
                return made.result()
        finally:
            made.cancel()
            await asyncio.gather(made, return_exceptions=True)
        self._writing.result()  # raises why nothing can be written
        raise AgentError("run_ended", f"The run {self.name!r} was left while a step was made.")

    # the journal

    async def _claimed(self) -> RunState:
        if await self._store.find(OWNER, self._id) is None:
            return await self._opened()
        state = fold([self._entry(record) async for record in self._records()])
        if state.ended:
            return state
        claim = await self._store.claim(self._id, HOLDER, _first, _now_ms())
        if claim is None:
            raise AgentError("run_in_use", f"The run {self.name!r} is under way already.")
        return apply(state, self._entry(claim.record))

    async def _opened(self) -> RunState:
        asked = Asked(owner=OWNER, fingerprint=self._id)
        spec = Spec(dialect="runs", model="local", input=({"role": "user", "content": self.name},))

        def accept(resolved: Resolved) -> list[bytes]:
            accepted = e.RunAccepted(spec=spec, resolved=resolved, owner=OWNER)
            return [codec.encode(accepted), codec.encode(e.AttemptStarted())]

        opening = Opening(
            run=self._id, at=_now_ms(), dialect="runs", model="local", asked=asked, accept=accept, holder=HOLDER
        )
        opened = await self._store.open(opening)
        assert isinstance(opened, Opened), "nothing but an idempotency key attaches"
        return fold(map(self._entry, opened.records))

    async def _records(self) -> AsyncIterator[Record]:
        after = -1
        while page := await self._store.read(OWNER, self._id, after):
            for record in page:
                yield record
            after = page[-1].seq

    def _entry(self, record: Record) -> e.Entry:
        return e.Entry(self._id, record.seq, record.at, record.attempt, codec.decode(record.data))

    async def _write_all(self) -> None:
        async for event in self._steps.events(self._until_left()):
            if not self._state.ended:
                await self._write(event)
            elif not isinstance(event, e.RunCompleted):
                raise AgentError("run_ended", f"The run {self.name!r} is complete. What is new needs another name.")

    async def _until_left(self) -> None:
        await self._left.wait()

    async def _write(self, event: e.AnyEvent) -> None:
        attempt, at = self._state.facts.attempt, _now_ms()
        entry = e.Entry(self._id, self._state.seq + 1, at, attempt, event)
        state = apply(self._state, entry)
        mark = Mark(status=state.status, at=at, ended=True) if state.ended else None
        await self._append([Record(entry.seq, attempt, at, codec.encode(event))], mark)
        self._state = state

    async def _append(self, records: list[Record], mark: Mark | None) -> None:
        (verdict,) = await self._store.append([Slice(self._id, self._state.facts.attempt, records, mark)])
        if verdict is not Verdict.WRITTEN:
            raise AgentError("run_in_use", f"Another process has taken the run {self.name!r}.")


def _first(attempt: int, clean: bool, lost: int) -> bytes:
    return codec.encode(e.AttemptStarted(clean=clean, lost=lost))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
