"""An answer that is known as a whole is written at once, byte by byte as uvicorn writes it."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ninelives.http.edge.kept import KeptTransport, bytes_of
from ninelives.http.edge.whole import WholeSend

LENGTH, TYPE, CLOSE = (b"content-length", b"5"), (b"content-type", b"application/json"), (b"connection", b"close")
START: Message = {"type": "http.response.start", "status": 200, "headers": [LENGTH, TYPE]}
BODY: Message = {"type": "http.response.body", "body": b"hello"}


class Socket:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


class Flow:
    """The flow control of a connection that is not full."""

    write_paused = False


def made(method: str = "POST", *, keep_alive: bool = True) -> tuple[Any, Socket, list[str]]:
    """A cycle of uvicorn, its transport, and how often it was over."""
    socket, over = Socket(), list[str]()
    log = logging.getLogger("test")
    scope: Any = {"method": method, "http_version": "1.1"}
    more: Any = ([(b"date", b"now")], asyncio.Event(), False, keep_alive, lambda: over.append("over"))
    cycle: Any = RequestResponseCycle(scope, socket, Flow(), log, log, False, *more)  # type: ignore[arg-type]
    cycle.more_body = False
    return cycle, socket, over


def with_headers(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {**START, "status": status, "headers": [*headers]}


SENT = {
    "plain": ([START, BODY], "POST", True),
    "the last request of its connection": ([START, BODY], "POST", False),
    "asked to close": ([with_headers(LENGTH, CLOSE), BODY], "POST", True),
    "a refusal": ([with_headers(LENGTH, status=404), BODY], "POST", True),
    "head": ([START, {**BODY, "body": b""}], "HEAD", True),
    "two pieces": ([START, {**BODY, "body": b"he", "more_body": True}, {**BODY, "body": b"llo"}], "GET", True),
    "a stream": ([with_headers(TYPE), {**BODY, "more_body": True}, BODY], "POST", True),
    "no body": ([with_headers((b"content-length", b"0")), {**BODY, "body": b""}], "POST", True),
}


@pytest.mark.parametrize("name", SENT)
async def test_what_is_written_is_what_uvicorn_writes(name: str) -> None:
    messages, method, keep_alive = SENT[name]
    expected, theirs, their_end = made(method, keep_alive=keep_alive)
    cycle, ours, our_end = made(method, keep_alive=keep_alive)
    send = WholeSend(cycle, cycle.send)
    for message in messages:
        await expected.send(message)
        await send(message)
    await asyncio.sleep(0)
    assert b"".join(ours.writes) == b"".join(theirs.writes)
    assert (ours.closed, our_end) == (theirs.closed, their_end)
    for field in ("response_started", "response_complete", "keep_alive", "waiting_for_100_continue"):
        assert getattr(cycle, field) == getattr(expected, field), field
    assert cycle.message_event.is_set() == expected.message_event.is_set()


async def test_a_whole_answer_is_one_write() -> None:
    cycle, socket, over = made()
    cycle.send = None  # that of uvicorn is not asked
    send = WholeSend(cycle, cycle.send)
    await send(START)
    assert not socket.writes
    await send(BODY)
    assert len(socket.writes) == 1
    assert over == ["over"]


async def test_a_whole_answer_to_a_kept_client_is_one_write_that_was_noted_before() -> None:
    cycle, socket, _ = made()
    custody: Any = SimpleNamespace(words=[0], word=lambda slot: slot)
    cycle.transport = kept = KeptTransport(socket, custody, 0)
    cycle.on_response = kept.end
    send = WholeSend(cycle, cycle.send)
    noted: list[int] = []
    kept._send = lambda data: (noted.append(bytes_of(custody.words[0])), socket.write(data))  # type: ignore[assignment, func-returns-value]
    await send(START)
    await send(BODY)
    assert noted == [len(socket.writes[0])]
    assert socket.writes[0].endswith(b"\r\n\r\nhello")


async def test_an_answer_before_the_body_has_come_is_left_to_the_connection() -> None:
    cycle, _, _ = made()
    cycle.more_body = True
    sent: list[Message] = []

    async def send_early(message: Message) -> None:
        sent.append(message)

    send = WholeSend(cycle, send_early)
    await send(START)
    await send(BODY)
    assert sent == [START, BODY]


@pytest.mark.parametrize("value", [b"a\r\nx-other: b", b"a\nb", b"a\rb", b"a\n\rb", b"a\0b"])
async def test_a_header_with_a_line_break_is_refused(value: bytes) -> None:
    cycle, socket, _ = made()
    send = WholeSend(cycle, cycle.send)
    await send(with_headers(LENGTH, (b"x-session", value)))
    with pytest.raises(RuntimeError, match="Invalid HTTP header"):
        await send(BODY)
    assert not socket.writes


@pytest.mark.parametrize("body", [b"hell", b"hello!"])
async def test_a_body_of_another_length_is_refused(body: bytes) -> None:
    cycle, _, _ = made()
    send = WholeSend(cycle, cycle.send)
    await send(START)
    with pytest.raises(RuntimeError, match="Content-Length"):
        await send({**BODY, "body": body})


async def test_nothing_is_written_to_a_client_that_is_gone() -> None:
    cycle, socket, _ = made()
    cycle.disconnected = True
    send = WholeSend(cycle, cycle.send)
    await send(START)
    await send(BODY)
    assert not socket.writes
