"""What a stranger may send before and after a request: heads, bodies and connections have bounds, and an answer that
comes early says so, closes the connection and reads no further (A6, A7, A8)."""

from __future__ import annotations

import json
import selectors
import socket
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import pytest

from tests.story.server import KEY, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {
    "NINELIVES_LIMITS_BODY_S": "2",
    "NINELIVES_LIMITS_HEAD_S": "2",
    "NINELIVES_LIMITS_IDLE_S": "1",
}
OFFERED = 64 * 1024 * 1024
TAKEN = 32 * 1024 * 1024
"""More than a whole body, the buffers of two sockets and the linger."""
PATIENCE_S = 60.0
HOST = b"Host: 127.0.0.1\r\n"
AUTHORIZED = f"Authorization: Bearer {KEY}\r\n".encode()
WITH_KEY = HOST + AUTHORIZED + b"Content-Type: application/json\r\n"
CHUNK = b"10000\r\n" + b" " * 65536 + b"\r\n"


@dataclass
class Early:
    """What came back, and how much was taken before the connection ended."""

    taken: int
    raw: bytes

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    def headers(self) -> dict[str, str]:
        lines = self.raw.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    def error(self) -> dict[str, object]:
        (inner,) = json.loads(self.raw.partition(b"\r\n\r\n")[2]).values()
        return dict(inner)


def pour(port: int, *pieces: Iterable[bytes]) -> Early:
    """Send pieces until the server closes, at most OFFERED bytes, and read beside it."""
    source, rest, early = chain(*pieces), b"", Early(0, b"")
    address = ("127.0.0.1", port)
    with closing(socket.create_connection(address, PATIENCE_S)) as sock, selectors.DefaultSelector() as ready:
        sock.setblocking(False)
        ready.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
        with suppress(ConnectionError):
            while early.taken < OFFERED:
                events = ready.select(PATIENCE_S)
                assert events, f"nothing moves any more after {early.taken} bytes: {early.raw!r}"
                if events[0][1] & selectors.EVENT_READ:
                    said = sock.recv(65536)
                    if not said:
                        break
                    early.raw += said
                if events[0][1] & selectors.EVENT_WRITE:
                    rest = rest or next(source, b"")
                    if not rest:
                        ready.modify(sock, selectors.EVENT_READ)
                        continue
                    sent = sock.send(rest)
                    early.taken, rest = early.taken + sent, rest[sent:]
        sock.settimeout(PATIENCE_S)
        with suppress(ConnectionError):
            while said := sock.recv(65536):
                early.raw += said
    return early


def post(*lines: bytes, path: bytes = b"/v1/responses") -> list[bytes]:
    return [b"POST " + path + b" HTTP/1.1\r\n" + b"".join(lines) + b"\r\n"]


CHUNKED = b"Transfer-Encoding: chunked\r\n"
FLOODS: dict[str, tuple[int, str, list[bytes], bytes]] = {
    "a header": (431, "headers_too_large", [b"GET /livez HTTP/1.1\r\n" + HOST + b"X: "], b"a" * 65536),
    "a url": (431, "headers_too_large", [b"GET /"], b"a" * 65536),
    "a method": (400, "invalid_http", [b"G"], b"G" * 65536),
    "headers": (431, "headers_too_large", [b"GET /livez HTTP/1.1\r\n" + HOST], b"x: y\r\n" * 10000),
    "trailers": (431, "headers_too_large", [*post(WITH_KEY, CHUNKED), b"0\r\nX: "], b"a" * 65536),
    "a chunk extension": (431, "headers_too_large", [*post(WITH_KEY, CHUNKED), b"1;x="], b"a" * 65536),
    "a declared body": (413, "payload_too_large", post(WITH_KEY, b"Content-Length: 9999999999\r\n"), b" " * 65536),
    "a chunked body": (413, "payload_too_large", post(WITH_KEY, CHUNKED), CHUNK),
    "a body without a key": (401, "invalid_api_key", post(HOST, b"Content-Length: 9000000\r\n"), b" " * 65536),
    "chunks without a key": (401, "invalid_api_key", post(HOST, CHUNKED), CHUNK),
    "a body of an unknown type": (415, "unsupported_media_type", post(HOST, AUTHORIZED, CHUNKED), CHUNK),
    "a body for nobody": (404, "not_found", post(WITH_KEY, CHUNKED, path=b"/v1/nothing"), CHUNK),
}


def check_early(early: Early, status: int, code: str) -> None:
    """The common headers, the shape of an error, and the end of the connection (A6, A7)."""
    assert early.status == status, early.raw[:500]
    headers = early.headers()
    assert headers["connection"] == "close" and headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store" and len(headers["x-request-id"]) == 24 and headers["date"]
    error = early.error()
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code


@pytest.mark.parametrize(("status", "code", "begin", "flood"), FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_is_answered_and_not_read_on(
    server: Server, status: int, code: str, begin: list[bytes], flood: bytes
) -> None:
    early = pour(server.port, begin, repeat(flood))
    check_early(early, status, code)
    assert early.taken < TAKEN


SHORT = {
    "5,000 headers": (431, "headers_too_large", HOST + b"".join(b"x-%d: y\r\n" % n for n in range(5000)) + b"\r\n"),
    "201 headers": (431, "headers_too_large", HOST + b"x: y\r\n" * 200 + b"\r\n"),
    "a long line": (431, "headers_too_large", HOST + b"x: " + b"a" * 1_000_000 + b"\r\n\r\n"),
    "no http": (400, "invalid_http", b"\x00\r\n\r\n"),
}


@pytest.mark.parametrize(("status", "code", "lines"), SHORT.values(), ids=SHORT.keys())
def test_headers_too_large_and_invalid_http_are_told_before_any_key_is_looked_at(
    server: Server, status: int, code: str, lines: bytes
) -> None:
    check_early(pour(server.port, [b"GET /v1/models HTTP/1.1\r\n" + lines]), status, code)


def test_a_head_within_its_bounds_is_answered(server: Server) -> None:
    lines = WITH_KEY + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 300) for n in range(195)) + b"Connection: close\r\n\r\n"
    assert pour(server.port, [b"GET /v1/models HTTP/1.1\r\n" + lines]).status == 200


def test_an_error_on_the_path_of_messages_has_the_shape_of_that_api(server: Server) -> None:
    early = pour(server.port, [b"POST /v1/messages HTTP/1.1\r\nx: " + b"a" * 100_000])
    assert early.status == 431 and early.headers()["request-id"] == early.headers()["x-request-id"]
    assert json.loads(early.raw.partition(b"\r\n\r\n")[2])["type"] == "error"


@pytest.mark.parametrize("body", [b"Content-Length: 100\r\n", CHUNKED], ids=["declared", "chunked"])
def test_a_body_that_does_not_come_is_cut(server: Server, body: bytes) -> None:
    check_early(pour(server.port, post(WITH_KEY, body)), 408, "request_timeout")


def test_a_head_that_does_not_come_is_cut(server: Server) -> None:
    check_early(pour(server.port, [b"GET /livez HTT"]), 408, "request_timeout")


def test_a_connection_without_a_first_byte_is_closed(server: Server) -> None:
    assert pour(server.port).raw == b""


def test_a_client_that_sends_its_small_body_later_reads_the_early_answer(server: Server) -> None:
    """The answer comes before the body was sent. A reset would take it from the client."""
    with closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)) as sock:
        sock.sendall(post(HOST, b"Content-Length: 200000\r\n")[0])
        wait_until(lambda: sock.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 401", "the early answer", PATIENCE_S)
        sock.sendall(b" " * 200_000)
        said = b""
        while piece := sock.recv(65536):
            said += piece
    check_early(Early(0, said), 401, "invalid_api_key")


def test_two_requests_on_one_connection_are_answered_where_the_first_was_read_whole(server: Server) -> None:
    one = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
    last = b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    said = pour(server.port, [one + last]).raw
    assert said.startswith(b"HTTP/1.1 401") and b"HTTP/1.1 200" in said


def test_sigterm_is_obeyed_while_strangers_flood_every_place(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path, upstream.url, **SETTINGS)
    over = threading.Event()

    def flood(begin: list[bytes], piece: bytes) -> None:
        while not over.is_set():
            with suppress(OSError, AssertionError):
                pour(server.port, begin, repeat(piece))

    threads = [threading.Thread(target=flood, args=(begin, piece)) for _, _, begin, piece in FLOODS.values()]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: server.anonymous.get("/livez").status == 200, "others are answered", PATIENCE_S)
        assert server.stop() == 0
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
