"""A counting reverse proxy. Owns: one line per request that a client makes, by the first part of its path, which it
takes off (http://127.0.0.1:PORT/LANE/v1/... goes to the server as /v1/...). Refuses to know: HTTP beyond the head of a
request: every connection carries one request, bytes are passed on as they come, a WebSocket too."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from contextlib import suppress

HEAD_BYTES = 1 << 20


class CountingProxy:
    """`with CountingProxy(port) as proxy:` in a thread of its own. `requests[lane]`: "POST /v1/responses 200" ..."""

    def __init__(self, server_port: int, *, hold: bool = False) -> None:
        self.requests: dict[str, list[str]] = defaultdict(list)
        self.hold = hold
        """Answers that begin now are swallowed up to their end, as by a proxy that waits for the whole of them."""
        self._server_port = server_port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        assert self._ready.wait(20), "the proxy listens"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def base(self, lane: str) -> str:
        return f"http://127.0.0.1:{self.port}/{lane}"

    def posts(self, lane: str) -> int:
        """Requests that start work: POSTs, and frames of a WebSocket are counted elsewhere."""
        return sum(line.startswith("POST ") for line in list(self.requests[lane]))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await self._pass_on(reader, writer)
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        method, target, version = first.decode("latin-1").split(" ")
        lane, _, path = target.lstrip("/").partition("/")
        lines = [line for line in rest[:-4].split(b"\r\n") if line]
        if not any(line.lower().startswith(b"upgrade:") for line in lines):
            lines = [line for line in lines if not line.lower().startswith(b"connection:")] + [b"Connection: close"]
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port, limit=HEAD_BYTES)
        record = self.requests[lane]
        record.append(f"{method} /{path}")
        place = len(record) - 1
        try:
            back.write(b"\r\n".join([f"{method} /{path} {version}".encode("latin-1"), *lines, b"", b""]))
            up = asyncio.create_task(_pump(reader, back))
            try:
                answer = await there.readuntil(b"\r\n\r\n")
                record[place] += " " + answer.split(b" ", 2)[1].decode()
                if self.hold:
                    await there.read()
                    return
                writer.write(answer)
                await _pump(there, writer)
            finally:
                up.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await up
        finally:
            back.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """All bytes, as they come; the end too: a client that leaves is told to the server."""
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.close()
