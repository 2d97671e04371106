"""A SQLite store for tests. Owns: an open store with access to its file, tables and batches; helpers that read and
damage files. Refuses to know: the rules under test."""

from __future__ import annotations

import asyncio
import shutil
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import StoreUnavailable
from ninelives.testing import Author, Backend, VirtualClock

DEADLINE_S = 60.0


class OpenedStore:
    """An open store and its file. `ann` writes to it."""

    def __init__(self, store: SqliteStore, path: Path, clock: VirtualClock) -> None:
        self.store = store
        self.database = store.database
        self.path = path
        self.backend = Backend(store, clock, leases=False)
        self.ann = Author(self.backend)
        self._open = True

    @classmethod
    async def open_at(cls, path: Path, clock: VirtualClock, *, upkeep: bool = True) -> OpenedStore:
        store = await SqliteStore.open_at(path, "normal", clock.now_ms)
        if not upkeep:
            store.database.upkeep.cancel()
        return cls(store, path, clock)

    async def close(self) -> None:
        if self._open:
            self._open = False
            await self.store.close()

    async def query(self, sql: str, *values: Any) -> list[Any]:
        """Read the tables in the reader thread."""
        found: list[Any] = await self.database.query(lambda db: db.execute(sql, values).fetchall())
        return found

    async def hot(self, run: str | None = None) -> int:
        """How many rows the hot table has, in all or for one run."""
        if run is None:
            return int((await self.query("SELECT COUNT(*) FROM entries"))[0][0])
        sql = "SELECT COUNT(*) FROM entries WHERE run = (SELECT n FROM runs WHERE id = ?)"
        return int((await self.query(sql, run))[0][0])

    async def segments(self, run: str) -> list[tuple[int, int]]:
        """(first, last) seq of each segment of a run."""
        sql = "SELECT first_seq, last_seq FROM segments WHERE run = (SELECT n FROM runs WHERE id = ?) ORDER BY 1"
        return [tuple(row) for row in await self.query(sql, run)]

    def tail(self, run: str) -> list[int] | None:
        """The seqs in the tail of a run; None if it has no tail."""
        tail = self.database.tails.by_run.get(run)
        return None if tail is None else [record.seq for record in tail.records]

    async def sealed(self, run: str, seq: int) -> None:
        """Wait until a run is sealed up to `seq` and its tail has dropped those records."""

        async def done() -> bool:
            tail = self.tail(run)
            segments = await self.segments(run)
            return bool(segments) and segments[-1][1] >= seq and (not tail or tail[0] > seq)

        await until(done)

    @asynccontextmanager
    async def one_batch(self) -> AsyncIterator[None]:
        """All writes inside the block form one transaction: the writer is busy until the block ends."""
        entered, leave = threading.Event(), threading.Event()

        def wait(db: apsw.Connection) -> None:
            entered.set()
            assert leave.wait(DEADLINE_S)

        waiting = self.database.writer.ask(wait)
        await asyncio.to_thread(entered.wait, DEADLINE_S)
        try:
            yield
        finally:
            leave.set()
            await waiting

    async def commits(self) -> Callable[[], int]:
        """A counter of commits from now on."""
        seen: list[None] = []

        def count() -> bool:
            seen.append(None)
            return False

        await self.database.writer.ask(lambda db: db.set_commit_hook(count))
        return lambda: len(seen)

    async def allow_pages(self, more: int) -> None:
        """Let the file grow by so many pages. SQLite's own limit gives the same error as a full disk. The old limit can
        fail the batch of this very job, so it is retried."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                await self.database.writer.ask(lambda db: db.pragma("max_page_count", db.pragma("page_count") + more))
                return
            except StoreUnavailable:
                assert time.monotonic() < end, "the limit cannot be set"

    async def copy(self, path: Path) -> None:
        """Copy the files as a kill at this moment would leave them; the store stays open."""
        await self.database.writer.ask(lambda db: self.copy_now(path))

    def copy_now(self, path: Path) -> None:
        """The same from within a job of the writer, in the middle of its transaction."""
        with self.database._checkpointing:
            for suffix in ("", "-wal"):
                source = Path(f"{self.path}{suffix}")
                if source.exists():
                    shutil.copyfile(source, f"{path}{suffix}")


async def until(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition (it may be async); fail at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.005)


def size(path: Path) -> int:
    """The size of a file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def contents(*paths: Path) -> list[bytes]:
    """The bytes of the files."""
    return [path.read_bytes() for path in paths]


def overwrite(path: Path, data: bytes) -> None:
    """Replace a file."""
    path.write_bytes(data)


def modes(directory: Path) -> dict[str, int]:
    """The permission bits of the files in a directory."""
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def edit(path: Path, sql: str, *values: Any) -> int:
    """Change a closed store with SQL. Returns the number of changed rows."""
    db = apsw.Connection(str(path))
    try:
        db.execute(sql, values)
        return db.changes()
    finally:
        db.close()


def rows_in(path: Path, sql: str, *values: Any) -> list[Any]:
    """Read a closed store with SQL."""
    db = apsw.Connection(str(path))
    try:
        return db.execute(sql, values).fetchall()
    finally:
        db.close()
