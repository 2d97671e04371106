"""A thread that owns one SQLite connection. Owns: how jobs reach the thread, how results return to the event loop, and
group commit. All jobs that wait form one transaction; jobs that arrive during a commit form the next. The loop wakes
once per batch. A job that nobody waits for can be `late`: it goes with the next one, or after a moment.
Refuses to know: what the jobs do.

A job is a function of the connection, and it may be called more than once. A NinelivesError or Damaged that it raises
before it has written anything is its own result. Any other mistake in a job (a constraint, a bug, a callback of the
caller) rolls the batch back. Then the batch runs again without that job: one bad request must not fail the writes of
all runs. An error of the store itself (full, busy, broken) fails the whole batch.

A job's `then` updates memory after the commit. It runs on the loop for every committed job, even if the caller was
cancelled, because cancelling a caller does not undo a commit. Then the events in `wakes` of the thread are set, unless
the job is `quiet`."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import apsw

from ninelives.core.errors import Damaged, NinelivesError
from ninelives.journal.values import StoreUnavailable

R = TypeVar("R")
T = TypeVar("T")
Then = Callable[[Any], Any] | None
Wakes = tuple[asyncio.Event, ...]
Job = tuple[Callable[[apsw.Connection], Any], Then, "asyncio.Future[Any]", Wakes]
Outcome = tuple["asyncio.Future[Any]", BaseException | None, Any, Then, Wakes]
BATCH = 256
LATE_S = 0.02
"""How long a job that can be late waits for another one."""


JOB_ERRORS = (
    apsw.ConstraintError,
    apsw.SQLError,
    apsw.BindingsError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
)
"""SQLite errors that blame the job, not the store."""


class DatabaseThread:
    """One named thread. `begin` opens each batch: "BEGIN IMMEDIATE" for the writer, "" for no transactions.
    `committed` must not raise: by then the batch has happened, whatever else goes wrong."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], apsw.Connection],
        begin: str,
        committed: Callable[[apsw.Connection], None] | None = None,
        rolled_back: Callable[[], None] | None = None,
        wakes: Wakes = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._late: list[Job] = []
        self._late_timer: asyncio.TimerHandle | None = None
        self._connect = connect
        self._begin = begin
        self._committed = committed
        self._rolled_back = rolled_back
        self._wakes = wakes
        self._closing = False
        self.broken: StoreUnavailable | None = None
        """Set when this thread accepts no more batches; the error says why."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()

    async def ready(self) -> None:
        """Wait for the connection. Raises what connecting raised."""
        await self._ready

    @overload
    def ask(
        self, job: Callable[[apsw.Connection], R], *, late: bool = False, quiet: bool = False
    ) -> asyncio.Future[R]: ...

    @overload
    def ask(self, job: Callable[[apsw.Connection], R], then: Callable[[R], T]) -> asyncio.Future[T]: ...

    def ask(
        self, job: Callable[[apsw.Connection], Any], then: Then = None, *, late: bool = False, quiet: bool = False
    ) -> asyncio.Future[Any]:
        """Queue a job. The future completes after the commit, with what `then` makes of the job's result: `then`
        updates memory, on the loop. `late`: nobody waits for the job, so it may share the transaction of the next one,
        and no thread is woken for it at once. `quiet`: it sets none of `wakes`."""
        if self._closing:
            raise StoreUnavailable("the store is closed", passing=False)
        future: asyncio.Future[Any] = self._loop.create_future()
        wakes = () if quiet else self._wakes
        if late:
            self._late.append((job, then, future, wakes))
            if self._late_timer is None:
                self._late_timer = self._loop.call_later(LATE_S, self._put_late)
            return future
        if self._late:  # in the order in which they were asked
            self._put_late()
        self._jobs.put((job, then, future, wakes))
        return future

    def _put_late(self) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        for job in self._late:
            self._jobs.put(job)
        self._late.clear()

    def note_failure(self, error: BaseException) -> str:
        """Describe a failed write. If the state of the disk is unknown, this thread refuses all later batches: a commit
        after a failed fsync may be acknowledged although earlier pages are gone (P13)."""
        failure = translate(error)
        if isinstance(failure, StoreUnavailable) and not failure.passing:
            self.broken = failure
        return str(failure)

    async def close(self) -> None:
        """Finish the queued jobs, close the connection, end the thread."""
        self._closing = True
        self._put_late()
        self._jobs.put(None)
        await self._ended
        self._thread.join()

    def _work(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:  # ready() raises it: the thread has no other caller
            self._post([(self._ready, translate(error), None, None, ()), (self._ended, None, None, None, ())])
            return
        self._post([(self._ready, None, None, None, ())])
        job = self._jobs.get()
        while job is not None:
            batch = [job]
            while len(batch) < BATCH and not self._jobs.empty() and (job := self._jobs.get()) is not None:
                batch.append(job)
            if self.broken is None:
                self._post(self._commit(connection, batch))
            else:
                self._post([(future, self.broken, None, None, ()) for _, _, future, _ in batch])
            if job is not None:
                job = self._jobs.get()
        connection.close()
        self._post([(self._ended, None, None, None, ())])

    def _commit(self, connection: apsw.Connection, batch: list[Job]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            if self._begin:
                connection.execute(self._begin)
            for job, then, future, wakes in batch:
                try:
                    outcomes.append((future, None, job(connection), then, wakes))
                except (NinelivesError, Damaged) as refusal:
                    outcomes.append((future, refusal, None, None, ()))
                except Exception as mistake:
                    if isinstance(mistake, apsw.Error) and not isinstance(mistake, JOB_ERRORS):
                        raise
                    return self._commit_without(connection, batch, (job, then, future, wakes), mistake)
            if self._begin:
                connection.execute("COMMIT")
        except BaseException as error:  # the whole batch failed: every job gets the error
            if self._committed:  # only the writer stops; a reader may succeed next time
                self.note_failure(error)
            return self._undo(connection, batch, error)
        if self._committed:
            self._committed(connection)
        return outcomes

    def _commit_without(
        self, connection: apsw.Connection, batch: list[Job], wrong: Job, mistake: Exception
    ) -> list[Outcome]:
        """Run the batch again without one of its jobs."""
        failed = self._undo(connection, [wrong], mistake)
        rest = [job for job in batch if job[2] is not wrong[2]]
        return failed + (self._commit(connection, rest) if rest else [])

    def _undo(self, connection: apsw.Connection, batch: list[Job], error: BaseException) -> list[Outcome]:
        if self._rolled_back:
            self._rolled_back()
        try:
            if not connection.get_autocommit():
                connection.execute("ROLLBACK")
        except apsw.Error as worse:  # report it: the next BEGIN fails too, and a dead thread would report nothing
            error = worse
        return [(future, translate(error), None, None, ()) for _, _, future, _ in batch]

    def _post(self, outcomes: list[Outcome]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_complete_futures, outcomes)


def _complete_futures(outcomes: list[Outcome]) -> None:
    for future, error, value, then, wakes in outcomes:
        for event in wakes:
            event.set()
        try:
            answer = value if then is None or error is not None else then(value)
        except Exception as bug:  # for its own caller: the other jobs of the batch must not hang
            error = bug
        if future.cancelled():
            continue
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)


def translate(error: BaseException) -> BaseException:
    """A SQLite error as StoreUnavailable or Damaged; any other error unchanged."""
    match error:
        case apsw.FullError() | apsw.BusyError():
            return StoreUnavailable(f"the store cannot be written now: {error}", passing=True)
        case apsw.CorruptError() | apsw.NotADBError():
            return Damaged(f"the database is damaged: {error}")
        case apsw.Error():
            return StoreUnavailable(f"the store failed: {error}", passing=False)
        case _:
            return error
