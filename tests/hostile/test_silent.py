"""Readers that stop reading a big answer. Judged by the memory of the server, with a generous factor: what was wrong
cost four to seven times the bound."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.hostile.field import Field, control
from tests.hostile.wire import JSON, connect, head, pour
from tests.story.server import wait_until

READERS = 60
SIZE = 3_900_000
BIG = f"[[big={SIZE} messages=1]]"
EACH_MB = 1.6
"""limits.subscriber_bytes is 1 MiB; a connection and its page of records come to it."""
ONCE_MB = 60.0
"""What is there once: the run's text, its frames as they are encoded, and what the allocator keeps."""


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with control() as port:
        made = Field(tmp_path_factory.mktemp("silent"), port, {}, settle_s=0.0)
        try:
            made.warm_up()
            yield made
        finally:
            made.close()


def replays(field: Field, dialect: str) -> bytes:
    """A request that replays a big run of this dialect."""
    fields: dict[str, object] = {"model": "hermes-agent", "store": True, "messages": [{"role": "user", "content": BIG}]}
    if dialect in ("responses", "runs"):
        run = field.journaled(BIG)
        wait_until(lambda: field.status(run) == "completed", "the big run", 120)
        path = f"/v1/responses/{run}?stream=true" if dialect == "responses" else f"/v1/runs/{run}/events"
        return head("GET", path, "\r\n")
    if dialect == "chat":
        made = field.server.client.post("/v1/chat/completions", fields)
        assert made.status == 200, made
        return head("GET", f"/v1/chat/completions/{made.json()['id']}?stream=true", "\r\n")
    body = json.dumps(fields | {"max_tokens": 9_000_000, "stream": True}).encode()
    extra = f"{JSON}Idempotency-Key: big\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head("POST", "/v1/messages", extra) + body
    with connect(field) as line:
        pour(line, [request])
        assert read(line, b"message_stop")
    return request


def read(line: socket.socket, mark: bytes, most: int = 2**40) -> bool:
    """Read until the mark has come, or so many bytes have."""
    seen, tail = 0, b""
    while seen < most and (piece := line.recv(65536)):
        seen += len(piece)
        tail = tail[-64:] + piece
        if mark in tail:
            return True
    return False


def peak_mb(field: Field, request: bytes) -> float:
    """How much memory the readers take that read nothing."""
    before = field.server.rss_kb()
    peak = [before]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            peak.append(field.server.rss_kb())

    watch = threading.Thread(target=look)
    with ExitStack() as stack:
        watch.start()
        stack.callback(watch.join)
        stack.callback(over.set)
        for _ in range(READERS):
            pour(stack.enter_context(connect(field, buffer=4096)), [request])
        time.sleep(2.0)  # what is measured is that nothing more comes
    return (max(peak) - before) / 1024


@pytest.mark.parametrize("dialect", ["responses", "chat", "runs", "messages"])
def test_r13_readers_that_read_nothing_of_a_big_answer_take_little_memory(field: Field, dialect: str) -> None:
    """tests/engine/test_replay.py has readers that stop in the middle."""
    request = replays(field, dialect)
    with connect(field) as line:
        pour(line, [request])
        read(line, b"\n[never]", 1_000_000)
    assert peak_mb(field, request) < READERS * EACH_MB + ONCE_MB
