"""A thread with a connection of its own. Owns: how work goes to a SQLite thread and comes back, and that everything
waiting is one transaction (group commit emerges by itself: what arrives during a commit is the next batch). One
wake-up of the loop per batch. Refuses to know: what the work is.

A job is a function of the Txn. It may raise a HoldfastError before it has written anything: that is its own result
and harms no other job. Any other exception rolls the whole batch back and is given to every job in it."""

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
Job = tuple[Callable[[apsw.Connection], Any], "asyncio.Future[Any]"]
BATCH = 256


class Desk(Generic[T]):
    """One named thread. `before` and `after` frame each batch: BEGIN IMMEDIATE and COMMIT for the writer."""

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
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()

    async def ready(self) -> None:
        """Wait until the connection is there; raises what opening it raised."""
        await self._ready

    def ask(self, job: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Put a job on the desk; the future is done when its batch is committed."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((job, future))
        return future

    async def close(self) -> None:
        """Finish what is on the desk, close the connection, end the thread."""
        self._jobs.put(None)
        await self._ended
        self._thread.join()

    def _work(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:  # reported to whoever waits for ready(): the thread has no other caller
            self._post(_settle, [(self._ready, translate(error), None), (self._ended, None, None)])
            return
        self._post(_settle, [(self._ready, None, None)])
        open_for_work = True
        while open_for_work:
            batch, open_for_work = self._gather()
            if batch:
                self._post(_settle, self._commit(connection, batch))
        connection.close()
        self._post(_settle, [(self._ended, None, None)])

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

    def _commit(self, connection: apsw.Connection, batch: list[Job]) -> list[Settled]:
        results: list[Settled] = []
        try:
            connection.execute(self._begin)
            for job, future in batch:
                try:
                    results.append((future, None, job(connection)))
                except (HoldfastError, Damaged) as refusal:
                    results.append((future, refusal, None))
            connection.execute("COMMIT")
            if self._committed:
                self._committed(connection)
        except BaseException as error:  # the batch as a whole failed: every job is told, nothing is swallowed
            if not connection.get_autocommit():
                connection.execute("ROLLBACK")
            if self._failed:
                self._failed()
            return [(future, translate(error), None) for _, future in batch]
        return results

    def _post(self, settle: Callable[[list[Settled]], None], results: list[Settled]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle, results)


Settled = tuple["asyncio.Future[Any]", BaseException | None, Any]


def _settle(results: list[Settled]) -> None:
    for future, error, value in results:
        if future.cancelled():
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def translate(error: BaseException) -> BaseException:
    """SQLite's error in our words."""
    match error:
        case apsw.FullError() | apsw.BusyError():
            return StoreUnavailable(f"the store cannot be written now: {error}", full=True)
        case apsw.CorruptError() | apsw.NotADBError():
            return Damaged(f"the database is damaged: {error}")
        case apsw.Error():
            return StoreUnavailable(f"the store failed: {error}", full=False)
        case _:
            return error
