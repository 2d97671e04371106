"""A proxy to PostgreSQL that can be cut. Owns: a socket that, once armed, lets the next transaction commit and drops
the answer, or refuses all connections. Refuses to know: what the queries are."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

IDLE = b"Z\x00\x00\x00\x05I"
"""ReadyForQuery outside a transaction: the query is finished and committed."""


class Wire:
    """The proxy between a store and its server."""

    def __init__(self, target: Path) -> None:
        self._target = str(target / ".s.PGSQL.5432")
        self._home = tempfile.TemporaryDirectory(prefix="hfcut")
        self.sockets = Path(self._home.name)
        self._server: asyncio.Server
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.armed = 0
        """How many answers to drop."""
        self.cuts = 0
        self.stay_down = False
        """After a cut, refuse all connections."""
        self.down = False
        self.mute = False
        """Drop everything in both directions, without closing."""

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_unix_server(self._accept, str(self.sockets / ".s.PGSQL.5432"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._home.cleanup()

    def cut_all(self) -> None:
        """Break all connections."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        there, thither = await asyncio.open_unix_connection(self._target)
        ends = (writer, thither)
        self._open.update(ends)
        for work in (self._pass(reader, thither, ends), self._answer(there, writer, ends)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while data := await source.read(65536):
                if self.mute:
                    continue
                to.write(data)
                await to.drain()
        except OSError:
            pass
        finally:
            self._abort(ends)

    async def _answer(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while data := await source.read(65536):
                if self.mute:
                    continue
                if self.armed and data.endswith(IDLE):
                    self.armed -= 1
                    self.cuts += 1
                    self.down = self.stay_down
                    if self.down:
                        self.cut_all()
                    return
                to.write(data)
                await to.drain()
        except OSError:
            pass
        finally:
            self._abort(ends)

    def _abort(self, ends: tuple[asyncio.StreamWriter, ...]) -> None:
        for end in ends:
            self._open.discard(end)
            end.transport.abort()
