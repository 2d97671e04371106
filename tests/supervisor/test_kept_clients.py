"""Clients in the custody of the supervisor (server.keep_clients): the server is killed, or swapped, while it answers,
and the same HTTP response goes on."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import pg
from tests.story.server import KEY, Server, Upstream, signal_process, start_supervised, start_upstream, wait_until
from tests.supervisor.test_supervisor import children, command, has_spare, kill_server, server_pid

pytestmark = pytest.mark.xdist_group("processes")
SETTINGS = {"NINELIVES_SERVER_KEEP_CALLS": "true", "NINELIVES_SERVER_KEEP_CLIENTS": "true"}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    made = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield made
    made.process.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    made = start_supervised(tmp_path_factory.mktemp("server"), upstream.url, **SETTINGS)
    yield made
    assert made.stop() == 0, made.log()


LIVING = "SELECT count(*) FROM replicas WHERE NOT dead AND lease_until > ninelives_now()"


class Caller:
    """A plain HTTP client on one socket, which sees every byte."""

    def __init__(self, server: Server, path: str, body: dict[str, Any], key: str = KEY) -> None:
        self._sock = socket.create_connection(("127.0.0.1", server.client.port))
        self.seen = b""
        self.ended = threading.Event()
        self.ask(path, body, key)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def ask(self, path: str, body: dict[str, Any] | None, key: str = KEY) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._sock.sendall(head.encode() + data)

    def _read(self) -> None:
        try:
            while piece := self._sock.recv(65536):
                self.seen += piece
        except OSError:
            self.seen += b""
        self.ended.set()

    def sees(self, what: bytes) -> None:
        try:
            wait_until(lambda: what in self.seen or self.ended.is_set(), f"{what!r}", 60)
        finally:
            assert what in self.seen, self.seen[-500:]

    def leave(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def whole(self) -> bytes:
        """The body, when its last chunk has come."""
        self.sees(b"\r\n0\r\n\r\n")
        return dechunked(self.seen.partition(b"\r\n\r\n")[2])


def dechunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
        if int(size, 16) == 0:
            break
    return body


def chat(tag: str, tokens: int = 60, **more: Any) -> dict[str, Any]:
    said = {"role": "user", "content": f"{tag} [[tokens={tokens} pace=0.02]]"}
    return {"model": "m", "stream": True, "messages": [said], **more}


def text_of(body: bytes) -> str:
    frames = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    assert all("choices" in each for each in frames), frames[-3:]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in frames if each["choices"])


def words(count: int) -> str:
    return "".join(f"tok{number} " for number in range(count))


def replay(server: Server, path: str) -> bytes:
    call = ["curl", "-sS", "-N", server.url + path, "-H", f"Authorization: Bearer {KEY}"]
    return subprocess.run(call, capture_output=True, check=True, timeout=60).stdout


def test_a_stream_goes_on_after_kills_and_has_the_bytes_of_its_replay(server: Server, upstream: Upstream) -> None:
    wait_until(lambda: has_spare(server), "a spare", 60)
    caller = Caller(server, "/v1/chat/completions", chat("kept-stream.", 120, store=True))
    for token in (b"tok9 ", b"tok60 "):
        caller.sees(token)
        kill_server(server)
    body = caller.whole()
    found = re.search(rb"chatcmpl-[0-9a-f]+", body)
    assert found is not None
    assert text_of(body) == words(120) and body.endswith(b"data: [DONE]\n\n")
    assert body == replay(server, f"/v1/chat/completions/{found[0].decode()}?stream=true")
    assert len(upstream.asked("kept-stream.")) == 1
    caller.ask("/v1/models", None)  # the connection is as any other
    caller.sees(b'"object":"list"')
    caller.leave()


def test_a_connection_that_waits_for_its_next_request_goes_on_after_a_kill(server: Server) -> None:
    wait_until(lambda: has_spare(server), "a spare", 60)
    caller = Caller(server, "/v1/chat/completions", chat("kept-idle.", 3))
    caller.whole()
    for number in range(2):  # the second time the connection is one that was adopted
        kill_server(server)
        caller.seen = b""
        caller.ask("/v1/chat/completions", chat(f"kept-idle{number}.", 3))
        assert text_of(caller.whole()) == words(3)
    wait_until(lambda: has_spare(server), "a spare", 60)
    signal_process(server_pid(server), signal.SIGKILL)
    caller.ask("/v1/models", None)  # while there is no server, or after
    caller.sees(b'"object":"list"')
    assert not caller.ended.is_set()
    caller.leave()


@pytest.mark.long
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_post_that_waits_is_answered_after_a_kill(server: Server, upstream: Upstream, path: str) -> None:
    tag = f"kept-wait{path[-6:].replace('/', '-')}."
    asked = chat(tag, stream=False) if "chat" in path else {"input": f"{tag} [[tokens=60 pace=0.02]]"}
    caller = Caller(server, path, asked)
    wait_until(lambda: upstream.asked(tag), "the model to be asked")
    kill_server(server)
    caller.sees(b"tok59 ")
    assert caller.seen.startswith(b"HTTP/1.1 200 OK\r\n") and caller.seen.count(b"HTTP/1.1") == 1
    assert len(upstream.asked(tag)) == 1
    caller.leave()


@pytest.mark.long
def test_a_second_kill_while_the_next_server_takes_over_changes_nothing(server: Server, upstream: Upstream) -> None:
    wait_until(lambda: has_spare(server), "a spare", 60)
    callers = [Caller(server, "/v1/chat/completions", chat(f"kept-twice{n}.", 100)) for n in range(4)]
    for caller in callers:
        caller.sees(b"tok5 ")
    spare = next(each for each in children(server.process.pid) if each != server_pid(server))
    kill_server(server)
    signal_process(spare, signal.SIGKILL)
    for caller in callers:
        assert text_of(caller.whole()) == words(100)
        caller.leave()
    assert all(len(upstream.asked(f"kept-twice{n}.")) == 1 for n in range(4))


@pytest.mark.long
def test_b6_a_client_that_left_while_there_was_no_server_has_left(server: Server, upstream: Upstream) -> None:
    """Its run is not stored and ends with it, as it does where the server lives."""
    caller = Caller(server, "/v1/chat/completions", chat("kept-left.", 3000) | {"store": False})
    caller.sees(b"tok5 ")
    before = upstream.stats()["closed_early"]
    signal_process(server_pid(server), signal.SIGKILL)
    caller.leave()
    wait_until(lambda: upstream.stats()["closed_early"] > before, "the model call to be dropped", 60)


@pytest.mark.long
def test_a_stream_that_went_on_ends_with_its_key(server: Server) -> None:
    made = server.client.post("/api/keys", {"name": "short", "owner": "ann"}).json()
    caller = Caller(server, "/v1/chat/completions", chat("kept-key.", 3000), made["key"])
    caller.sees(b"tok5 ")
    kill_server(server)
    assert server.client.delete(f"/api/keys/{made['id']}").status == 200
    assert caller.ended.wait(60) and not caller.seen.endswith(b"0\r\n\r\n")
    caller.leave()


def test_restart_under_streams_and_waiting_posts_cuts_none(server: Server, upstream: Upstream) -> None:
    streams = [Caller(server, "/v1/chat/completions", chat(f"swap-stream{n}.", 150)) for n in range(8)]
    waiting = [Caller(server, "/v1/chat/completions", chat(f"swap-wait{n}.", 150, stream=False)) for n in range(4)]
    for caller in streams:
        caller.sees(b"tok3 ")
    wait_until(lambda: upstream.asked("swap-wait3."), "the model to be asked")
    said = command(server, "restart")
    assert said.returncode == 0, said.stderr
    for caller in streams:
        assert text_of(caller.whole()) == words(150)
    for caller in waiting:
        caller.sees(b"tok149 ")
    for caller in (*streams, *waiting):
        caller.leave()
    tags = [*(f"swap-stream{n}." for n in range(8)), *(f"swap-wait{n}." for n in range(4))]
    asked = [len(upstream.asked(tag)) for tag in tags]
    assert asked == [1] * 12


@pytest.mark.long
def test_on_postgresql_a_stream_and_a_waiting_post_go_on_after_a_kill_and_a_restart(
    tmp_path: Path, upstream: Upstream
) -> None:
    """The next server takes over from the one before at once: it does not wait for the end of its lease."""
    url = asyncio.run(pg.server().database())
    shared = start_supervised(tmp_path, upstream.url, **SETTINGS, NINELIVES_STORE_URL=url)
    try:
        wait_until(lambda: has_spare(shared), "a spare", 60)
        stream = Caller(shared, "/v1/chat/completions", chat("shared-stream.", 300, store=True))
        unstored = Caller(shared, "/v1/chat/completions", chat("shared-unstored.", 300))
        waiting = Caller(shared, "/v1/chat/completions", chat("shared-wait.", 300, stream=False))
        for caller in (stream, unstored):
            caller.sees(b"tok9 ")
        began = time.monotonic()
        kill_server(shared)
        seen = len(stream.seen)
        wait_until(lambda: len(stream.seen) > seen, "the stream to go on", 60)
        assert time.monotonic() - began < 5, "it waited for the lease"
        wait_until(lambda: has_spare(shared), "a spare", 60)
        said = command(shared, "restart")
        assert said.returncode == 0, said.stderr
        bodies = [caller.whole() for caller in (stream, unstored)]
        waiting.sees(b"tok299 ")
        assert [text_of(body) for body in bodies] == [words(300)] * 2
        found = re.search(rb"chatcmpl-[0-9a-f]+", bodies[0])
        assert found is not None
        assert bodies[0] == replay(shared, f"/v1/chat/completions/{found[0].decode()}?stream=true")
        assert [len(upstream.asked(f"shared-{name}.")) for name in ("stream", "unstored", "wait")] == [1, 1, 1]
        for caller in (stream, unstored, waiting):
            caller.leave()
    finally:
        assert shared.stop() == 0, shared.log()


@pytest.mark.long
def test_on_postgresql_an_unstored_stream_outlives_a_server_that_dies_before_it_is_ready(
    tmp_path: Path, upstream: Upstream
) -> None:
    """The third server knows the name of the second one, at which the caller waited last. Else the caller was lost with
    the second one: after one more kill, the run waited for the same request, and the client for ever."""
    url = asyncio.run(pg.server().database())
    shared = start_supervised(tmp_path, upstream.url, "dies_before_ready", **SETTINGS, NINELIVES_STORE_URL=url)
    try:
        caller = Caller(shared, "/v1/chat/completions", chat("shared-twice.", 900, store=False))
        caller.sees(b"tok9 ")
        kill_server(shared)
        assert shared.log().count('"server_died"') == 2
        wait_until(lambda: asyncio.run(pg.server().run(url, LIVING))[0][0] == 1, "the dead to be known", 60, every=0.2)
        time.sleep(1.0)  # where the caller counts as lost, it does so soon after
        kill_server(shared)
        assert text_of(caller.whole()) == words(900)
        assert len(upstream.asked("shared-twice.")) == 1
        caller.leave()
    finally:
        shared.stop()


@pytest.mark.long
def test_the_server_says_where_it_cannot_keep_clients(tmp_path: Path, upstream: Upstream) -> None:
    bug = start_supervised(tmp_path, upstream.url, "no_tcp_info", **SETTINGS)
    try:
        assert "clients_not_kept" in bug.log()
        caller = Caller(bug, "/v1/chat/completions", chat("not-kept.", 3000))
        caller.sees(b"tok5 ")
        kill_server(bug)
        assert caller.ended.wait(30)
        caller.leave()
    finally:
        assert bug.stop() == 0


def test_a_server_that_differs_from_its_supervisor_keeps_nothing_and_serves(tmp_path: Path, upstream: Upstream) -> None:
    """After an upgrade that changes what the two say to each other. Who was kept is cut, and does not wait for ever."""
    differs = start_supervised(tmp_path, upstream.url, "other_protocol", **SETTINGS)
    try:
        caller = Caller(differs, "/v1/chat/completions", chat("differs.", 3000))
        caller.sees(b"tok5 ")
        kill_server(differs)
        assert caller.ended.wait(30)
        caller.leave()
        assert "supervisor_differs" in differs.log()
        caller = Caller(differs, "/v1/chat/completions", chat("differs-after.", 5))
        assert text_of(caller.whole()) == words(5)
        caller.leave()
    finally:
        assert differs.stop() == 0


@pytest.mark.long
def test_the_supervisor_holds_no_client_whose_answer_is_over(server: Server) -> None:
    def sockets() -> int:
        fds: Callable[[], Iterator[Path]] = Path(f"/proc/{server.process.pid}/fd").iterdir
        return sum("socket:" in str(each.readlink()) for each in fds())

    wait_until(lambda: has_spare(server), "a spare", 60)
    before = sockets()
    for number in range(5):
        caller = Caller(server, "/v1/chat/completions", chat(f"over{number}.", 3))
        caller.whole()
        caller.leave()
    wait_until(lambda: sockets() <= before, "the supervisor to let go")
