"""A thread with a connection of its own. Owns: how work goes to a SQLite thread and comes back, and that everything
waiting is one transaction (group commit emerges by itself: what arrives during a commit is the next batch). One
wake-up of the loop per batch. Refuses to know: what the work is.

A job is a function of the connection that may be called again. It may raise a HoldfastError or Damaged before it has
written anything: that is its own result. So is any other mistake in it (a constraint, a bug, a function that the caller
sent along): the batch is rolled back and done again without that job, because one bad request must not fail the writes
of all runs. What the store itself cannot do (full, busy, broken) fails the whole batch. What must follow a commit in
memory is the job's `then`: it runs on the loop for every job whose batch was committed, also where nobody waits for the
answer any more, because a cancelled caller does not undo a commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import apsw

from holdfast.core.errors import Damaged, HoldfastError
from holdfast.journal.base import StoreUnavailable

T = TypeVar("T")
Then = Callable[[Any], Any]
Job = tuple[Callable[[apsw.Connection], Any], Then, "asyncio.Future[Any]"]
BATCH = 256


OWN_MISTAKES = (
    apsw.ConstraintError,
    apsw.SQLError,
    apsw.BindingsError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
)
"""SQLite's errors that tell of a job, not of the store."""


def told(value: Any) -> Any:
    """The `then` of a job that changes nothing in memory."""
    return value


class Desk(Generic[T]):
    """One named thread. `begin` opens each batch: BEGIN IMMEDIATE for the writer; "" for a desk without transactions.
    `committed` must not raise: by then the batch has happened, whatever else goes wrong."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], apsw.Connection],
        begin: str,
        committed: Callable[[apsw.Connection], None] | None = None,
        failed: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._connect = connect
        self._begin = begin
        self._committed = committed
        self._failed = failed
        self._closing = False
        self.broken: StoreUnavailable | None = None
        """Why no batch is written any more."""
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()

    async def ready(self) -> None:
        """Wait until the connection is there; raises what opening it raised."""
        await self._ready

    def ask(self, job: Callable[[apsw.Connection], Any], then: Callable[[Any], T] = told) -> asyncio.Future[T]:
        """Put a job on the desk; the future is done, with what `then` makes of the result, when its batch is
        committed."""
        if self._closing:
            raise StoreUnavailable("the store is closed", passing=False)
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((job, then, future))
        return future

    def condemn(self, error: BaseException) -> str:
        """What is wrong, in words. Where nobody knows what the disk has done, no batch is written any more: a commit
        after a failed fsync may be acknowledged with pages before it gone (P13)."""
        told = translate(error)
        if isinstance(told, StoreUnavailable) and not told.passing:
            self.broken = told
        return str(told)

    async def close(self) -> None:
        """Finish what is on the desk, close the connection, end the thread."""
        self._closing = True
        self._jobs.put(None)
        await self._ended
        self._thread.join()

    def _work(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:  # reported to whoever waits for ready(): the thread has no other caller
            self._post(_settle, [(self._ready, translate(error), None, told), (self._ended, None, None, told)])
            return
        self._post(_settle, [(self._ready, None, None, told)])
        open_for_work = True
        while open_for_work:
            batch, open_for_work = self._gather()
            if batch:
                self._post(_settle, self._refused(batch) or self._commit(connection, batch))
        connection.close()
        self._post(_settle, [(self._ended, None, None, told)])

    def _gather(self) -> tuple[list[Job], bool]:
        batch: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            batch.append(job)
            if len(batch) >= BATCH:
                return batch, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _refused(self, batch: list[Job]) -> list[Settled]:
        return [(future, self.broken, None, told) for _, _, future in batch if self.broken is not None]

    def _commit(self, connection: apsw.Connection, batch: list[Job]) -> list[Settled]:
        results: list[Settled] = []
        try:
            if self._begin:
                connection.execute(self._begin)
            for job, then, future in batch:
                try:
                    results.append((future, None, job(connection), then))
                except (HoldfastError, Damaged) as refusal:
                    results.append((future, refusal, None, told))
                except Exception as mistake:
                    if isinstance(mistake, apsw.Error) and not isinstance(mistake, OWN_MISTAKES):
                        raise
                    return self._without(connection, batch, (job, then, future), mistake)
            if self._begin:
                connection.execute("COMMIT")
        except BaseException as error:  # the batch as a whole failed: every job is told, nothing is swallowed
            if self._committed:  # the desk that writes; a reader may well do better next time
                self.condemn(error)
            return self._undo(connection, batch, error)
        if self._committed:
            self._committed(connection)
        return results

    def _without(self, connection: apsw.Connection, batch: list[Job], wrong: Job, mistake: Exception) -> list[Settled]:
        """The batch again without one of its jobs."""
        spoiled = self._undo(connection, [wrong], mistake)
        rest = [job for job in batch if job[2] is not wrong[2]]
        return spoiled + (self._commit(connection, rest) if rest else [])

    def _undo(self, connection: apsw.Connection, batch: list[Job], error: BaseException) -> list[Settled]:
        if self._failed:
            self._failed()
        try:
            if not connection.get_autocommit():
                connection.execute("ROLLBACK")
        except apsw.Error as worse:  # the next BEGIN will fail too, and say so: a thread that dies here says nothing
            error = worse
        return [(future, translate(error), None, told) for _, _, future in batch]

    def _post(self, settle: Callable[[list[Settled]], None], results: list[Settled]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle, results)


Settled = tuple["asyncio.Future[Any]", BaseException | None, Any, Then]


def _settle(results: list[Settled]) -> None:
    for future, error, value, then in results:
        try:
            answer = then(value) if error is None else None
        except Exception as bug:  # told to its own caller: the other jobs of the batch must not wait for ever
            error = bug
        if future.cancelled():
            continue
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)


def translate(error: BaseException) -> BaseException:
    """SQLite's error in our words."""
    match error:
        case apsw.FullError() | apsw.BusyError():
            return StoreUnavailable(f"the store cannot be written now: {error}", passing=True)
        case apsw.CorruptError() | apsw.NotADBError():
            return Damaged(f"the database is damaged: {error}")
        case apsw.Error():
            return StoreUnavailable(f"the store failed: {error}", passing=False)
        case _:
            return error
