"""Readers that never read and readers that go away cost the others nothing, and leave nothing behind
(P8, B6, C2)."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path

import pytest

from ninelives.testing.fake_upstream import FakeUpstream
from tests.story.responses import PATH, create, finished, text_of
from tests.story.server import KEY, Client, Server, Stream, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {"NINELIVES_LIMITS_KEEPALIVE_S": "120"}  # a stuck client is given up after twice that
BIG = "[[big=1000000 messages=20]]"
ALLOWED_KB = 64 * 1024
NUMBER = re.compile(rb'"sequence_number":(\d+)')


# A reader that never reads


@contextmanager
def peak_of(server: Server) -> Iterator[list[int]]:
    """The highest RSS in between, in KB."""
    peak, over = [server.rss_kb()], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            peak[0] = max(peak[0], server.rss_kb())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peak
    finally:
        over.set()
        watching.join()


def settled(server: Server) -> int:
    """RSS at rest, in KB: the lowest of a second."""
    seen = []
    for _ in range(20):
        seen.append(server.rss_kb())
        time.sleep(0.05)
    return min(seen)


def swallow(stream: Stream) -> int:
    """Read to the end without looking; how many bytes it was."""
    size = 0
    while data := stream._response.read1(1 << 20):
        size += len(data)
    return size


def stuck(client: Client, body: object) -> socket.socket:
    """A client with a tiny window that asks and never reads."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", client.port))
    text = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    sock.sendall(head.encode() + text)
    return sock


def numbers_in(sock: socket.socket) -> list[int]:
    """The sequence numbers of all that the stuck client is told once it does read; its stream must end with [DONE]."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    response = HTTPResponse(sock)
    response.begin()
    text = b"".join(iter(lambda: response.read1(1 << 20), b""))
    *frames, last, end = text.split(b"\n\n")
    assert (last, end) == (b"data: [DONE]", b"")
    return [int(NUMBER.search(frame)[1]) for frame in frames]  # type: ignore[index]


def test_p8_a_client_that_never_reads_20_mb_costs_neither_the_run_nor_others_nor_memory(
    client: Client, server: Server, upstream: Upstream, mark: str, request: pytest.FixtureRequest
) -> None:
    """A peak counts from the memory at rest before it: the allocator keeps some of what each run of 20 MB used."""
    create(client, '[[tools=write_file:{"path":"a.txt","content":"small"}]]')
    before = settled(server)
    with peak_of(server) as normal_peak, client.stream(PATH, {"input": BIG, "stream": True}) as normal:
        assert swallow(normal) > 20_000_000
    upstream.post("/_reset")
    control = settled(server)

    headers = {"idempotency-key": mark}
    with peak_of(server) as peak:
        never = stuck(client, {"input": f"{mark} {BIG}", "stream": True})
        request.addfinalizer(never.close)
        shown = wait_until(lambda: _newest(client), "the stuck client's run")
        with client.stream(f"{PATH}/{shown}?stream=true") as other:
            assert create(client, "hello", headers)["status"] == "completed", "somebody else is served in between"
            swallow(other)
    done = finished(client, shown)  # a body of 20 MB, which takes memory of its own
    assert done["status"] == "completed" and len(text_of(done)) == 20_000_000
    assert sum(item["type"] == "function_call" for item in done["output"]) == 19
    del done
    assert server.health()["readers"] == 1, "the stuck client is still there"
    grown = settled(server) - control
    print(f"before {before} KB, control {control} KB, grown {grown} KB, peaks {normal_peak[0]} and {peak[0]} KB")
    assert grown < ALLOWED_KB, "memory at rest"
    assert (peak[0] - control) - (normal_peak[0] - before) < ALLOWED_KB, "memory at work"
    numbers = numbers_in(never)
    assert numbers == list(range(len(numbers))), "once it reads, it gets every frame once"
    never.close()
    wait_until(lambda: server.health()["readers"] == 0, "no reader is left")
    upstream.post("/_reset")


def _newest(client: Client) -> str | None:
    runs = client.get("/v1/runs?limit=1&status=running").json()["data"]
    return runs[0]["run_id"].replace("run_", "resp_") if runs else None


# Readers that go away

STREAMS, WAVE, SOON_S = 1000, 50, 5.0  # 0.2 s on a calm machine


class Watched(FakeUpstream):
    """Notes when the socket of each marked request was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[asyncio.Task[None] | None, str] = {}
        self.asked: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.closed: dict[str, float] = {}

    def record(self, request: dict[str, object], headers: dict[str, str]) -> None:
        mark = str(request["messages"][-1]["content"]).split()[0]  # type: ignore[index]
        self.marks[asyncio.current_task()] = mark
        self.asked[mark].set()
        self.requests.append({})

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._connected(reader, writer)
        finally:
            if mark := self.marks.pop(asyncio.current_task(), None):
                self.closed[mark] = time.monotonic()


async def abandon(up: Watched, port: int, mark: str, chance: random.Random) -> float:
    """One stream that is not stored, left at a random moment, which is seldom before the upstream was asked; when that
    was."""
    text = f"{mark} {chance.choice(['[[hang=1]]', '[[tokens=400 pace=0.1]]', '[[slowstart=30]]', '[[hang=0]]'])}"
    chat = {"messages": [{"role": "user", "content": text}], "stream": chance.random() < 0.9}
    path, body = chance.choice([("/v1/chat/completions", chat), (PATH, {"input": text, "stream": True})])
    data = json.dumps({**body, "store": False}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + data)
    if chance.random() < 0.85:
        await up.asked[mark].wait()
    await asyncio.sleep(chance.uniform(0, 0.25))
    if chance.random() < 0.5:  # half of them with a reset
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    left = time.monotonic()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return left


def standing(server: Server) -> dict[str, int]:
    """What a server holds."""
    health = server.health()
    return {
        "threads": server.threads(),
        "fds": server.fds(),
        "readers": health["readers"],
        "active": health["runs"]["active"],
        "queued": health["runs"]["queued"],
    }


async def test_b6_a_thousand_abandoned_streams_close_their_upstream_sockets_at_once_and_leave_nothing(
    tmp_path: Path,
) -> None:
    chance = random.Random(20240607)
    async with Watched() as up:
        server = await asyncio.to_thread(start_server, tmp_path, up.url)
        try:
            await asyncio.gather(*(abandon(up, server.port, f"warm{n}", chance) for n in range(30)))
            await asyncio.to_thread(wait_until, lambda: standing(server)["active"] == 0, "warm")
            base, rss = await asyncio.to_thread(standing, server), server.rss_kb()
            left: dict[str, float] = {}
            for wave in range(STREAMS // WAVE):
                marks = [f"gone{wave}.{n}" for n in range(WAVE)]
                moments = await asyncio.gather(*(abandon(up, server.port, mark, chance) for mark in marks))
                left |= dict(zip(marks, moments, strict=True))
            async with asyncio.timeout(60):
                while up.marks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            late = {mark: up.closed[mark] - left[mark] for mark in left if mark in up.closed}
            assert len(late) > STREAMS * 0.75, "most of them had reached the upstream"
            print(f"slowest {max(late.values()):.3f} s of {len(late)}")
            assert max(late.values()) < SOON_S

            def back() -> bool:
                now = standing(server)
                return all(now[name] <= base[name] for name in base)

            await asyncio.to_thread(wait_until, back, f"back at {base}")
            assert server.rss_kb() - rss < ALLOWED_KB / 2
            log = server.log()
            assert "request_failed" not in log and "worker_failed" not in log and "Traceback" not in log
        finally:
            assert await asyncio.to_thread(server.stop) == 0
