"""Head and body in one write. Owns: writing an answer that is known as a whole, and sending the head of a stream with
its first piece. Refuses to know: what is answered.

For a whole answer the send() of uvicorn is passed by: it takes two calls, and searches each header by two regular
expressions. That was 4 % of the instructions of a small chat. A client that is kept has a transport of its own
(KeptTransport), so its answers go the same way."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct
from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ninelives.http.edge.kept import KeptTransport

LONG_ANSWER = 65_536
"""A longer body is not copied behind its head."""


_CONTROL = bytes([*range(9), *range(10, 32), 127])
"""No header may hold these. Of a head, only the ends of its lines do."""


class WholeSend(Struct):
    """The send() of one request. It holds back the head of an answer that has a length. If all of the body comes next,
    both are written here; everything else is left to `send`, that of uvicorn."""

    cycle: Any
    send: Send
    start: Message | None = None

    async def __call__(self, message: Message) -> None:
        """See ASGI."""
        start, self.start = self.start, None
        first = start is None and not self.cycle.response_started and message["type"] == "http.response.start"
        if first and self.cycle.scope["method"] != "HEAD" and b"content-length" in dict(message["headers"]):
            self.start = message  # a body of a known length follows at once
            return
        if start is not None and self._write(start, message):
            return
        if not self.cycle.response_started:
            self.cycle.transport = HeadFirst(self.cycle, self.cycle.transport)
        if start is not None:
            await self.send(start)
        await self.send(message)

    def _write(self, start: Message, message: Message) -> bool:
        """Write an answer. False where that takes more than a write, or where uvicorn would refuse it."""
        cycle, body = self.cycle, message.get("body", b"")
        if message["type"] != "http.response.body" or message.get("more_body", False):
            return False
        unready = cycle.flow.write_paused or cycle.disconnected or cycle.more_body
        head = None if unready else self._head(start, len(body))
        if head is None:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        if len(body) > LONG_ANSWER:
            cycle.transport.write(head)
            cycle.transport.write(body)
        else:
            cycle.transport.write(head + body)
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    def _head(self, start: Message, size: int) -> bytes | None:
        """The head of an answer with a body of this size. None: it is not plain."""
        headers = [*self.cycle.default_headers, *start["headers"]]
        named = dict(headers)
        if b"connection" in named or named[b"content-length"] != b"%d" % size:
            return None
        last = b"" if self.cycle.keep_alive else b"connection: close\r\n"
        lines = b"\r\n".join(map(b": ".join, headers))  # no step in Python for each header
        head = b"%b%b\r\n%b\r\n" % (STATUS_LINE[start["status"]], lines, last)
        ends = len(headers) + 2 + (not self.cycle.keep_alive)
        controls = len(head) - len(head.translate(None, _CONTROL))
        return head if head.count(b"\r\n") == ends and controls == 2 * ends else None


class HeadFirst(Struct):
    """Stands in for the transport of a response until its head has gone out. It holds the head back for the first piece
    of the body, because a write to a socket costs a tenth of a small request. If no piece follows in the same turn of
    the event loop, the head goes alone. Then the real transport takes over."""

    cycle: Any
    transport: Any
    head: bytes = b""
    alone: asyncio.Handle | None = None
    """Sends the head alone, later in this turn."""

    def write(self, data: bytes) -> None:
        """The first call holds the head back, the second one sends both."""
        if self.alone is None:
            self.head = data
            if isinstance(self.transport, KeptTransport):
                self.transport.begin(data)
            self.alone = asyncio.get_running_loop().call_soon(self._send_head)
            return
        self.alone.cancel()
        self.cycle.transport, head = self.transport, self.head
        if self.transport.is_closing():
            return
        if len(data) > LONG_ANSWER:  # not to be copied
            self.transport.write(head)
            self.transport.write(data)
        else:
            self.transport.write(head + data)

    def close(self) -> None:
        """Send the head, then close."""
        self._send_head()
        self.transport.close()

    def _send_head(self) -> None:
        head, self.head = self.head, b""
        self.alone = None  # it refers to this object
        self.cycle.transport = self.transport
        if head and not self.transport.is_closing():
            self.transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)
