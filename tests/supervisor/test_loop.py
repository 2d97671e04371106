"""Rules of ninelives/supervisor/loop.py: one callback at a time, and none that fails ends the supervisor. What
relay.py imports late may be such a failure."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from ninelives.supervisor import relay
from ninelives.supervisor.__main__ import say_fault
from ninelives.supervisor.loop import EventLoop


@pytest.fixture
def failures() -> list[Exception]:
    return []


@pytest.fixture
def loop(failures: list[Exception]) -> Iterator[EventLoop]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    made = EventLoop(failures.append)
    yield made
    signal.set_wakeup_fd(-1)
    for each in (made._selector, made._woken, made._wakes):  # the supervisor ends by os._exit
        each.close()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_timers_are_called_in_the_order_of_their_times(loop: EventLoop) -> None:
    called: list[str] = []
    loop.later(0.02, lambda: loop.end(3))
    loop.later(0.01, lambda: called.append("second"))
    loop.later(0.0, lambda: called.append("first"))
    assert loop.run() == 3 and called == ["first", "second"]


def test_the_first_end_counts_and_nothing_is_called_after_it(loop: EventLoop) -> None:
    loop.later(0.0, lambda: loop.end(1))
    loop.later(0.0, lambda: loop.end(2))
    assert loop.run() == 1


def test_a_socket_is_read_as_long_as_it_has_something(
    loop: EventLoop, sockets: tuple[socket.socket, socket.socket]
) -> None:
    one, other = sockets
    got: list[bytes] = []

    def read() -> None:
        got.append(one.recv(2))
        if not got[-1]:
            loop.forget(one)
            loop.end(0)

    loop.on_readable(one, read)
    other.sendall(b"abcd")
    other.shutdown(socket.SHUT_WR)
    loop.run()
    assert got == [b"ab", b"cd", b""]


def test_a_socket_that_was_forgotten_is_not_called_in_the_same_round(loop: EventLoop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    called: list[int] = []

    def read(number: int) -> None:
        """Whoever is first ends the other, whose number then belongs to another socket."""
        called.append(number)
        loop.forget(pairs[number][0])
        gone = pairs[1 - number][0]
        loop.forget(gone)
        gone.close()
        taken = socket.socketpair()
        pairs.append(taken)
        loop.on_readable(taken[0], lambda: called.append(2))
        loop.later(0.01, lambda: loop.end(0))

    for number, (one, other) in enumerate(pairs):
        other.sendall(b"x")
        loop.on_readable(one, lambda number=number: read(number))  # type: ignore[misc]
    loop.run()
    assert len(called) == 1
    for pair in pairs:
        for each in pair:
            each.close()


def test_a_signal_wakes_it_and_waits_for_the_callback_that_runs(loop: EventLoop) -> None:
    called: list[str] = []

    def busy() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        called.append("busy")

    def signalled() -> None:
        called.append("signal")
        loop.end(0)

    loop.on_signal(signal.SIGUSR1, signalled)
    loop.on_signal(signal.SIGUSR2, lambda: called.append("another"))
    loop.later(0.0, busy)
    loop.run()
    assert called == ["busy", "signal"]


def test_a_callback_that_fails_is_told_and_the_loop_goes_on(
    loop: EventLoop, failures: list[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KeyError("slot")

    loop.on_signal(signal.SIGUSR1, fail)
    loop.later(0.0, fail)
    loop.later(0.01, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    loop.later(0.05, lambda: loop.end(0))
    assert loop.run() == 0
    assert [type(error) for error in failures] == [KeyError, KeyError]
    say_fault(failures[0])
    told = json.loads(capsys.readouterr().err)
    assert (told["event"], told["why"]) == ("supervisor_fault", "KeyError('slot')")
    assert " > fail:" in told["at"]


def test_a_server_that_wants_tls_is_told_at_once_where_asyncio_cannot_be_imported(
    loop: EventLoop, failures: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported when it is needed. By then the supervisor may be out of descriptors, or Python was replaced."""

    def start_loop() -> None:
        raise ImportError("asyncio")

    monkeypatch.setattr(relay, "_start_loop", start_loop)
    server, supervisor = socket.socketpair()
    loop.later(0.0, lambda: relay.Relays().dial({"host": "localhost"}, supervisor.detach()))
    loop.later(0.0, lambda: loop.end(0))
    with server:
        assert loop.run() == 0
        assert server.recv(1) == b"" and [type(error) for error in failures] == [ImportError]
