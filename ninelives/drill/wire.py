"""HTTP over a plain socket, for clients that must see every byte. Owns: one request per connection, its chunks, and
whether it ended with the final chunk or broke. Refuses to know: what is in a body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

KEY = "drill-Key_0123456789abcdef"
DEADLINE_S = 30.0
Json = dict[str, Any]


class Exchange:
    """One request and its response."""

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        body: Json | None = None,
        on_data: Callable[[bytes], None] | None = None,
        **headers: str,
    ) -> None:
        """`on_data` is called with each piece of the body as it arrives."""
        self.host = "127.0.0.1"
        self.port = port
        self.status = 0
        """0: there was no response."""
        self.headers: dict[str, str] = {}
        self.data = b""
        self.whole = False
        """The body is complete: the final chunk came, or as many bytes as declared."""
        self._on_data = on_data
        self.began = asyncio.Event()
        """Set when the head of the response has arrived."""
        content = json.dumps(body).encode() if body is not None else b""
        lines = {
            "Host": f"127.0.0.1:{port}",
            "Authorization": f"Bearer {KEY}",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._request = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.data)

    async def run(self, seconds: float = DEADLINE_S) -> Exchange:
        """Send the request and read the response. A connection that breaks is no error; see `whole`."""
        async with asyncio.timeout(seconds):
            try:
                reader, writer = await asyncio.open_connection(self.host, self.port)
            except OSError:
                return self
            try:
                writer.write(self._request)
                await self._answer(reader)
            except (OSError, asyncio.IncompleteReadError):
                return self
            finally:
                writer.transport.abort()
        return self

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        self.status = int(head[0].split(" ")[1])
        self.began.set()
        if self.headers.get("transfer-encoding") != "chunked":
            self._receive(await reader.readexactly(int(self.headers.get("content-length", 0))))
            self.whole = True
            return
        while size := int(await reader.readuntil(b"\r\n"), 16):
            self._receive((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        self.whole = True

    def _receive(self, data: bytes) -> None:
        self.data += data
        if self._on_data is not None:
            self._on_data(data)


async def get(port: int, path: str) -> Exchange:
    """GET, and read the whole response."""
    return await Exchange(port, "GET", path).run()


async def post(port: int, path: str, body: Json, **headers: str) -> Exchange:
    """POST, and read the whole response."""
    return await Exchange(port, "POST", path, body, None, **headers).run()


async def until(holds: Callable[[], object], seconds: float = DEADLINE_S, what: str = "") -> None:
    """Wait for a condition, with a deadline."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (what is waited for happens in another process)
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what or holds}") from None


async def until_shown(port: int, path: str, holds: Callable[[Any], bool], seconds: float = DEADLINE_S) -> Any:
    """Repeat a GET until a condition holds for its JSON, with a deadline."""
    async with asyncio.timeout(seconds):
        while True:
            answer = await get(port, path)
            if answer.whole and holds(shown := answer.json()):  # a broken connection is retried
                return shown
            await asyncio.sleep(0.01)


async def all_done(work: Iterable[Any], seconds: float = DEADLINE_S) -> list[Any]:
    """Await all, with one deadline. Returns the results."""
    async with asyncio.timeout(seconds):
        return list(await asyncio.gather(*work))
