"""The floor: the cheapest honest proxy that the chosen stack allows, without any store.

Starlette + uvicorn (uvloop, httptools) in front, aiohttp behind, msgspec between: each chunk from the
upstream is decoded to a typed struct and encoded again, and all that one read brought leaves in one send.
It knows no runs, keys, tools or errors worth the name. Ninelives's cost is told in multiples of it. With
`--burn-us` it wastes that much CPU on each event: the negative control, which the benchmark must see.
"""

import argparse
import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import aiohttp
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

C = TypeVar("C", bound="Choice")


class Said(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct, kw_only=True):
    index: int = 0
    finish_reason: str | None = None


class Piece(Choice, kw_only=True):
    delta: Said


class Whole(Choice, kw_only=True):
    message: Said


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(msgspec.Struct, Generic[C]):
    """A chunk of a streamed answer, or one that was not streamed: they differ in their choices."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage | None = None


class Wanted(msgspec.Struct):
    """What the floor must know of a request; the body itself goes on unchanged."""

    model: str
    stream: bool = False


_wanted = msgspec.json.Decoder(Wanted)
_chunk = msgspec.json.Decoder(Answer[Piece])
_whole = msgspec.json.Decoder(Answer[Whole])
_encode = msgspec.json.Encoder().encode

STREAM_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}


def burn(us: int) -> None:
    """Waste CPU, not time: the planted cost is then the same however busy the machine is."""
    end = time.thread_time_ns() + us * 1000
    while time.thread_time_ns() < end:
        pass


class Relay:
    """Upstream bytes in, SSE bytes out; what one read brought is one piece, with the rest kept for the next."""

    def __init__(self, run_id: str, burn_us: int) -> None:
        self._run_id = run_id
        self._burn_us = burn_us
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        events = (self._rest + data).split(b"\n\n")
        self._rest = events.pop()
        out: list[bytes] = []
        for event in events:
            payload = event[6:]
            if payload == b"[DONE]":
                out.append(b"data: [DONE]\n\n")
                continue
            chunk = _chunk.decode(payload)
            chunk.id = self._run_id
            out += (b"data: ", _encode(chunk), b"\n\n")
            if self._burn_us:
                burn(self._burn_us)
        return b"".join(out)


class RelayResponse(Response):
    """Own ASGI stream: no task group, one send per read, and an eye on the client's leaving."""

    def __init__(self, upstream: aiohttp.ClientResponse, relay: Relay) -> None:
        self.background = None
        self._upstream = upstream
        self._relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(self._until_left(receive))
        try:
            await send(STREAM_START)
            async for data in self._upstream.content.iter_any():
                if piece := self._relay.feed(data):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except aiohttp.ClientError:
            if not leaving.done():
                raise
        finally:
            leaving.cancel()
            self._upstream.close()

    async def _until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._upstream.close()


def build(model_url: str, burn_us: int) -> Starlette:
    sessions: list[aiohttp.ClientSession] = []
    served = 0

    async def chat(request: Request) -> Response:
        nonlocal served
        served += 1
        body = await request.body()
        wanted = _wanted.decode(body)
        upstream = await sessions[0].post(
            f"{model_url}/chat/completions", data=body, headers={"content-type": "application/json"}
        )
        if wanted.stream and upstream.status == 200:
            return RelayResponse(upstream, Relay(f"chatcmpl-floor{served}", burn_us))
        raw = await upstream.read()
        if upstream.status == 200:
            raw = _encode(_whole.decode(raw))
        return Response(raw, status_code=upstream.status, media_type="application/json")

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            sessions.append(session)
            yield

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.floor")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model-url", required=True, help="base URL of the upstream, with /v1")
    parser.add_argument("--burn-us", type=int, default=0, help="CPU to waste on each event, µs (negative control)")
    args = parser.parse_args()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", args.port))
    config = uvicorn.Config(
        build(args.model_url, args.burn_us), loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    sys.stdout.write(f"listening on http://127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
