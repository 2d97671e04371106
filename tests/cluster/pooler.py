"""A real pgbouncer in front of a database, in transaction mode, as docs/postgres.md wants it. Owns: its configuration,
its death and its start. Refuses to know: what goes through it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from lab.bench.machine import free_port
from ninelives.drill.processes import START_S
from tests.cluster.balancer import program
from tests.cluster.database import Database

CONFIGURATION = """\
[databases]
* = host={host} port={port} user=postgres

[pgbouncer]
listen_addr = {host}
listen_port = {own}
auth_type = any
unix_socket_dir =
pool_mode = transaction
default_pool_size = 30
max_client_conn = 200
server_login_retry = 1
ignore_startup_parameters = extra_float_digits,search_path
"""


class Pooler:
    """`async with Pooler(database, folder) as pooler:` serves at pooler.url."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database, self._folder = database, folder
        self.port = free_port(database.host)
        self._child: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """For --store. It names the database, or pgbouncer would take the user's name for it."""
        return f"postgresql://postgres@{self._database.host}:{self.port}/postgres"

    async def __aenter__(self) -> Pooler:
        await self._database.ask("ALTER ROLE postgres SET idle_in_transaction_session_timeout = '3s'")
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._database.user:
            shutil.chown(self._folder, self._database.user)
        text = CONFIGURATION.format(host=self._database.host, port=self._database.port, own=self.port)
        (self._folder / "pgbouncer.ini").write_text(text)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start it, and wait until it takes connections."""
        path = program("pgbouncer")
        assert path is not None, "pgbouncer is not installed (apt-get install pgbouncer)"
        with (self._folder / "log").open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                path, str(self._folder / "pgbouncer.ini"), stdout=log, stderr=log, **self._database.as_user
            )
        async with asyncio.timeout(START_S):
            while not await self._takes():
                assert self._child.returncode is None, (self._folder / "log").read_text()
                await asyncio.sleep(0.02)

    async def _takes(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._database.host, self.port)
        except OSError:
            return False
        writer.transport.abort()
        return True

    async def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()
