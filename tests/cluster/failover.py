"""A primary and its standby. Owns: the copy from which the standby begins, the line between the two (which can be cut,
so that the standby falls behind), and the failover: the primary is gone for good and the standby takes its place.
Refuses to know: what is stored."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress

from lab.bench.machine import free_port
from tests.cluster.database import START_S, Database
from tests.cluster.lines import until_so

PIECE = 65_536


class Relay:
    """The line from the standby to the primary."""

    def __init__(self, host: str, to: int) -> None:
        self._host, self._to = host, to
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Nothing comes through any more."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            try:
                there, thither = await asyncio.open_connection(self._host, self._to)
                try:
                    await asyncio.gather(_pour(reader, thither), _pour(there, writer))
                finally:
                    thither.transport.abort()
            finally:
                writer.transport.abort()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE):
        writer.write(data)
        await writer.drain()
    writer.close()


class Pair(Database):
    """A Database that can fail over, once. The replicas know both addresses."""

    def __init__(self, host: str, trusted: str, connections: int, *, synchronous: bool) -> None:
        super().__init__(host, trusted, connections)
        self.synchronous = synchronous
        self._second = free_port(host)
        self._first = self.port
        self._relay = Relay(host, self.port)
        self._standby: asyncio.subprocess.Process | None = None

    @property
    def store_url(self) -> str:
        """See Database.store_url."""
        hosts = f"{self.host}:{self._first},{self.host}:{self._second}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    async def __aenter__(self) -> Pair:
        await super().__aenter__()
        try:
            await self._relay.start()
            await self._copy()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._relay.cut()
        if self._standby is not None and self._standby.returncode is None:
            self._standby.kill()
            await self._standby.wait()
        await super().__aexit__()

    async def _copy(self) -> None:
        data = self._home / "standby"
        data.mkdir(mode=0o700)
        if self.user:
            shutil.chown(data, self.user)
        argv = [str(self._bin / "pg_basebackup"), "-h", self.host, "-p", str(self._relay.port), "-U", "postgres"]
        argv += ["-D", str(data), "-R", "-X", "stream", "-c", "fast"]
        child = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, **self.as_user
        )
        said, _ = await child.communicate()
        assert child.returncode == 0, said.decode()
        self._standby = await self._spawn(data, self._second)
        await until_so(self._streams, START_S, "the standby follows")
        if self.synchronous:
            await self.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await self.ask("SELECT pg_reload_conf()")

    async def _streams(self) -> bool:
        return bool(await self.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"))

    async def fail_over(self, lag_s: float) -> None:
        """The primary is lost, with what it committed in its last `lag_s`. The standby takes its place."""
        if lag_s:
            await self._relay.cut()
            await asyncio.sleep(lag_s)
        await self.stop()
        self.port, self._child, self._standby = self._second, self._standby, None
        self._data = self._home / "standby"
        await self.ask("SELECT pg_promote(true, 60)")
