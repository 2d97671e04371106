"""A balancer that knows nothing. Owns: one listening port, and the next backend for each new connection: those that
answer their health check take turns, and one that does not take the connection is passed over. Bytes go through as
they are; when one side is gone the other is cut. Refuses to know: HTTP beyond its own health check, and who is who."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

CONNECT_S = 1.0
CHECK_S = 0.25
ANSWER_S = 1.0
PIECE = 65_536
Address = tuple[str, int]


class Proxy:
    """`async with Proxy() as proxy:` listens on 127.0.0.1:proxy.port; set proxy.backends as they come and go."""

    def __init__(self) -> None:
        self.backends: dict[str, Address] = {}
        self.up: set[str] = set()
        """Those that answered their last health check."""
        self.served: Counter[str] = Counter()
        self.port = 0
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self._keep(asyncio.create_task(self._check_all()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _order(self) -> list[str]:
        """Everyone once, whose turn it is first; those that are not up come last."""
        names = sorted(self.backends)
        if not names:
            return []
        self._turn += 1
        place = self._turn % len(names)
        turned = names[place:] + names[:place]
        return sorted(turned, key=lambda name: name not in self.up)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        with suppress(asyncio.CancelledError):  # this proxy is closing; asyncio.start_server would log it
            try:
                await self._serve(reader, writer)
            finally:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for name in self._order():
            try:
                async with asyncio.timeout(CONNECT_S):
                    there_reader, there_writer = await asyncio.open_connection(*self.backends[name])
            except (OSError, TimeoutError, KeyError):
                self.up.discard(name)
                continue
            self.served[name] += 1
            ways = [
                asyncio.create_task(_pour(reader, there_writer)),
                asyncio.create_task(_pour(there_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                with suppress(OSError):
                    await asyncio.wait_for(writer.drain(), CONNECT_S)  # what the backend said last still arrives
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                there_writer.transport.abort()
                writer.close()
                with suppress(OSError, TimeoutError):
                    await asyncio.wait_for(writer.wait_closed(), CONNECT_S)
            return

    async def _check_all(self) -> None:
        while True:
            await asyncio.gather(*(self._check(name) for name in list(self.backends)))
            await asyncio.sleep(CHECK_S)

    async def _check(self, name: str) -> None:
        """Any answer will do: a server whose database is gone still says so better than we could."""
        answers = False
        with suppress(OSError, TimeoutError, KeyError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(*self.backends[name])
                try:
                    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                    answers = (await reader.readexactly(5)) == b"HTTP/"
                finally:
                    writer.transport.abort()
        (self.up.add if answers else self.up.discard)(name)


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
