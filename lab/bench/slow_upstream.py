"""The upstream of the load generator in Python: a model server that says what the prompt orders, `[[bench n=5
pace_us=1000]]`. Each token is a stamp "@<monotonic ns> ..", so that a client knows its age. A paced token is made when
it is due, whether or not the socket takes it. Refuses to know: who measures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time

ORDER = re.compile(rb"\[\[bench n=(\d+) pace_us=(\d+)\]\]")
LATE_S = 0.005
FLOOD = 64
CHUNK = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1763200000, "model": "bench"}


def stamp() -> str:
    """A token of 20 bytes."""
    return f"@{time.monotonic_ns()} ".ljust(19, ".") + " "


def _choice(delta: dict[str, str], finish: str | None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _event(choices: list[dict[str, object]], **more: object) -> bytes:
    data = b"data: " + json.dumps({**CHUNK, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


class Told:
    """What it has done since it began."""

    requests = tokens = late = 0


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, told: Told, waiting: set[Upstream]) -> None:
        self._told, self._waiting = told, waiting
        self._in = b""
        self._line: asyncio.Transport | None = None
        self._room = asyncio.Event()
        self._busy: asyncio.Task[None] | None = None
        self._released = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the line."""
        assert isinstance(transport, asyncio.Transport)
        self._line = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop talking."""
        self._waiting.discard(self)
        self._line = None
        if self._busy is not None:
            self._busy.cancel()

    def pause_writing(self) -> None:
        """A flood waits; what is paced does not."""
        self._room.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._room.set()

    def data_received(self, data: bytes) -> None:
        """Answer each whole request, one after the other."""
        self._in += data
        if self._busy is None:
            self._next()

    def _next(self) -> None:
        end = self._in.find(b"\r\n\r\n")
        if end < 0:
            return
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", self._in[:end])
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._in) < whole:
            return
        head, body, self._in = self._in[:end], self._in[end + 4 : whole], self._in[whole:]
        self._told.requests += 1
        self._busy = asyncio.get_running_loop().create_task(self._answer(head, body))
        self._busy.add_done_callback(self._done)

    def _done(self, _: asyncio.Task[None]) -> None:
        self._busy = None
        if self._line is not None:
            self._next()

    def release(self) -> None:
        """What is next is due now."""
        self._released.set()

    def _write(self, data: bytes) -> None:
        if self._line is not None:
            self._line.write(data)

    def _object(self, body: object, status: str = "200 OK") -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._write(head.encode() + data)

    async def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /v1/chat/completions"):
            await self._chat(body)
        elif head.startswith(b"GET /v1/models"):
            self._object({"object": "list", "data": [{"id": "bench", "object": "model", "owned_by": "bench"}]})
        elif head.startswith(b"GET /bench/stats"):
            self._object({"requests": self._told.requests, "tokens": self._told.tokens, "late": self._told.late})
        elif head.startswith(b"GET /bench/release"):
            for each in self._waiting:
                each.release()
            self._object({})
        else:
            self._object({"error": {"message": "no such route", "type": "invalid_request_error"}}, "404 Not Found")

    async def _chat(self, body: bytes) -> None:
        orders = ORDER.findall(body)  # the last order counts: earlier ones are history
        n, pace_us = (int(part) for part in orders[-1]) if orders else (3, 0)
        usage = {"prompt_tokens": 16, "completion_tokens": n, "total_tokens": n + 16}
        asked = json.loads(body)
        if not asked.get("stream"):
            self._told.tokens += n
            message = {"role": "assistant", "content": "".join(stamp() for _ in range(n))}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            self._object({**CHUNK, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        self._write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n")
        self._write(b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._write(_event([_choice({"role": "assistant", "content": ""}, None)]))
        await (self._paced(n, pace_us / 1e6) if pace_us else self._flood(n))
        end = _event([_choice({}, "stop")])
        if (asked.get("stream_options") or {}).get("include_usage"):
            end += _event([], usage=usage)
        self._write(end + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def _flood(self, n: int) -> None:
        for first in range(0, n, FLOOD):
            await self._room.wait()
            count = min(FLOOD, n - first)
            self._told.tokens += count
            self._write(b"".join(_event([_choice({"content": stamp()}, None)]) for _ in range(count)))
            await asyncio.sleep(0)

    async def _paced(self, n: int, pace_s: float) -> None:
        due = time.monotonic()
        self._waiting.add(self)
        for _ in range(n):
            held = due - time.monotonic()
            if held > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(held):
                        await self._released.wait()
            self._told.late += not self._released.is_set() and time.monotonic() - due > LATE_S
            self._told.tokens += 1
            self._released.clear()
            self._write(_event([_choice({"content": stamp()}, None)]))
            due += pace_s
        self._waiting.discard(self)


async def serve(port: int) -> None:
    """Until killed."""
    told, waiting = Told(), set[Upstream]()
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(told, waiting), "127.0.0.1", port)
    sys.stdout.write(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()
