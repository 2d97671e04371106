"""Rules of ninelives/supervisor/calls.py: the answer of a model call is read into memory that outlives its process,
and the kernel says how much of it is there."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ninelives.models.net.connection import Origin, Pool
from ninelives.supervisor import calls
from ninelives.supervisor.calls import AnswerMemory, SupervisedConnections
from ninelives.supervisor.kernel import tcp_pair
from ninelives.supervisor.line import Message
from tests.story.server import signal_process

REQUEST = b"POST / HTTP/1.1\r\n\r\n"
Left = tuple[Message, list[int]]


class Line:
    """A control line that keeps duplicates of what it was given, as the supervisor does."""

    def __init__(self) -> None:
        self.held: dict[str, Left] = {}

    def send(self, message: Message, *fds: int) -> None:
        if "release" in message:
            for fd in self.held.pop(message["held"])[1]:
                os.close(fd)
        else:
            self.held[message["held"]] = message, [os.dup(fd) for fd in fds]

    def close(self) -> None:
        for _, fds in self.held.values():
            for fd in fds:
                os.close(fd)

    def left(self) -> list[Left]:
        """As the next server gets them."""
        return [(given, [os.dup(fd) for fd in fds]) for given, fds in self.held.values()]


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, upstream = tcp_pair()
    yield ours, upstream
    ours.close()
    upstream.close()


def connections(line: Any, left: list[Left] | None = None) -> SupervisedConnections:
    return SupervisedConnections(line, left or [])


def asked(server: SupervisedConnections, sock: socket.socket, call: str = "run:0") -> AnswerMemory:
    memory = server.keep(sock)
    assert memory is not None
    server.begin(memory, call, len(REQUEST))
    sock.sendall(REQUEST)
    return memory


def read(sock: socket.socket, memory: AnswerMemory, *, noted: bool = True) -> bytes:
    size = sock.recv_into(memory.room())
    return bytes(memory.filled(size)) if noted else b""


async def test_the_next_process_has_what_was_read_though_its_reader_had_not_noted_it(
    line: Line, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, upstream = pair
    memory = asked(connections(line), ours)
    upstream.sendall(b"one ")
    assert read(ours, memory) == b"one "
    upstream.sendall(b"two ")
    read(ours, memory, noted=False)  # a kill between the read and what follows it
    upstream.sendall(b"three")
    after = connections(line, line.left())
    assert after.held("run:0")
    sock, again = after.again("run:0")
    assert bytes(again.kept()) == b"one two "
    assert read(sock, again) == b"three" and bytes(again.kept()) == b"one two three"
    assert not after.held("run:0")
    sock.close()


@pytest.mark.parametrize("ends", ["open", "closed"])
async def test_an_answer_that_is_whole_stays_until_it_is_settled(
    line: Line, pair: tuple[socket.socket, socket.socket], ends: str
) -> None:
    ours, upstream = pair
    server = connections(line)
    memory = asked(server, ours)
    assert upstream.recv(100) == REQUEST
    upstream.sendall(b"all of it")
    if ends == "closed":
        upstream.close()
    assert read(ours, memory) == b"all of it"
    ours.close()
    server.closed(memory, whole=True)
    after = connections(line, line.left())
    sock, again = after.again("run:0")
    assert bytes(again.kept()) == b"all of it"
    sock.close()
    server.settle("run:0")
    assert not line.held


async def test_a_call_whose_request_was_not_sent_whole_is_not_held(
    line: Line, pair: tuple[socket.socket, socket.socket]
) -> None:
    """It was not asked: the next server asks, and does not wait for an answer that never comes."""
    memory = connections(line).keep(pair[0])
    assert memory is not None
    memory.begin("run:0", len(REQUEST))
    pair[0].sendall(REQUEST[:-1])
    assert not connections(line, line.left()).held("run:0")
    assert not line.held


async def test_a_connection_that_was_reset_is_not_held(line: Line, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, upstream = pair
    asked(connections(line), ours)
    upstream.close()  # with the request unread
    assert not connections(line, line.left()).held("run:0")


async def test_a_server_that_lives_and_closes_a_connection_cancels_its_call(
    line: Line, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, upstream = pair
    server = connections(line)
    memory = asked(server, ours)
    ours.close()
    server.closed(memory, whole=False)
    upstream.settimeout(5)
    assert upstream.recv(100) == REQUEST and upstream.recv(100) == b""


async def test_a_successor_gets_what_the_server_before_closes_for_it(
    line: Line, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, upstream = pair
    server = connections(line)
    memory = asked(server, ours)
    upstream.sendall(b"begun")
    read(ours, memory)
    server.leave()
    ours.close()
    server.closed(memory, whole=False)
    sock, again = connections(line, line.left()).again("run:0")
    assert bytes(again.kept()) == b"begun"
    sock.close()


async def test_the_next_answer_on_a_connection_has_a_memory_of_its_own(
    line: Line, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, upstream = pair
    server = connections(line)
    memory = asked(server, ours)
    upstream.sendall(b"the first answer")
    read(ours, memory)
    server.settle("run:0")
    server.begin(memory, "run:1", len(REQUEST))
    ours.sendall(REQUEST)
    upstream.sendall(b"second")
    read(ours, memory)
    after = connections(line, line.left())
    assert not after.held("run:0")
    sock, again = after.again("run:1")
    assert bytes(again.kept()) == b"second"
    sock.close()


async def test_the_oldest_answers_go_where_all_have_too_many_bytes(
    line: Line, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ALL_BYTES", 1000)
    server = connections(line)
    first = asked(server, pair[0])
    pair[1].sendall(bytes(800))
    read(pair[0], first)
    ours, upstream = tcp_pair()
    second = asked(server, ours, "run:1")
    upstream.sendall(bytes(800))
    read(ours, second)
    after = connections(line, line.left())
    assert (after.held("run:0"), after.held("run:1")) == (False, True)
    after.drop_left()
    for each in (ours, upstream):
        each.close()


async def test_an_answer_that_is_too_long_is_read_on_and_not_kept(
    line: Line, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, upstream = pair
    server = connections(line)
    memory = asked(server, ours)
    monkeypatch.setattr(calls, "CALL_BYTES", calls.READ_BYTES + 10)
    for number in range(4):
        upstream.sendall(b"%08d" % number)
        assert read(ours, memory) == b"%08d" % number
    assert not connections(line, line.left()).held("run:0")


async def test_a_reader_that_is_killed_at_a_random_moment_loses_no_byte(line: Line) -> None:
    chance = random.Random(21)
    for number in range(30):
        ours, upstream = tcp_pair()
        memory = asked(connections(line), ours)
        assert upstream.recv(100) == REQUEST
        child = os.fork()
        if child == 0:
            while True:
                read(ours, memory)
        sent = b""
        until = time.monotonic() + chance.uniform(0.0, 0.02)
        while time.monotonic() < until:
            piece = b"%06d" % len(sent) * chance.randrange(1, 200)
            upstream.sendall(piece)
            sent += piece
        signal_process(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222
        upstream.close()
        after = connections(line, line.left())
        sock, again = after.again("run:0")
        seen = bytes(again.kept())
        while piece := read(sock, again):
            seen += piece
        assert seen == sent, number
        sock.close()
        after.settle("run:0")
        after.closed(again, whole=False)
        ours.close()
        assert not line.held


async def test_a_connection_whose_answer_is_not_committed_yet_is_not_used_for_the_next_call(line: Any) -> None:
    """The next answer would take its memory, and a kill would lose the first."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = connections(line)
    pool = Pool(Origin.of(f"http://127.0.0.1:{listener.getsockname()[1]}"), 5.0, server)
    first = await pool.connection(5.0)
    pool.begin(first, "run:0", 10)
    first.reusable = True  # its answer is whole
    pool.give_back(first)
    second = await pool.connection(5.0)
    assert second is not first
    server.settle("run:0")
    assert await pool.connection(5.0) is first
    await pool.close()
    listener.close()
