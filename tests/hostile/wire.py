"""Bytes on a socket that no decent client would send. Owns: sending without a library's help, and reading the first
line of whatever comes back. Refuses to know: why."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests.hostile.field import Field
from tests.story.server import KEY

WAIT_S = 60.0
PIECE = 65536
JSON = "Content-Type: application/json\r\n"
BEARER = f"Authorization: Bearer {KEY}\r\n"


def connect(field: Field, *, buffer: int = 0) -> socket.socket:
    """A connection. `buffer`: the size of its receive buffer."""
    line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if buffer:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.settimeout(WAIT_S)
    try:
        line.connect(("127.0.0.1", field.port))
    except OSError:
        line.close()
        raise
    return line


def head(method: str, path: str, extra: str = "", *, key: bool = True) -> bytes:
    """The head of a request without its empty line."""
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{BEARER if key else ''}{extra}".encode()


def pour(line: socket.socket, pieces: Iterable[bytes]) -> int:
    """Send until the peer has had enough. Returns the bytes that were taken."""
    sent = 0
    with suppress(OSError):
        for piece in pieces:
            line.sendall(piece)
            sent += len(piece)
    return sent


def answered(line: socket.socket) -> str:
    """Status and error code of the answer, or how the connection ended."""
    got = b""
    try:
        while len(got) < PIECE and (piece := line.recv(PIECE)):
            got += piece
            body = got.partition(b"\r\n\r\n")[2]
            empty = b"\r\n\r\n" in got and not body and b"ength: 0" in got
            if empty or body.rstrip().endswith((b"}", b"</html>", b"\r\n0")):
                break
    except TimeoutError:
        return spoken(got) if got else "nothing"
    except OSError:
        return spoken(got) if got else "cut"
    return spoken(got) if got else "closed"


def spoken(got: bytes) -> str:
    status = got[9:12].decode("ascii", "replace")
    try:
        inner = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
        return f"{status} {inner.get('code') or inner.get('type')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return status


def send(field: Field, data: bytes) -> str:
    """Everything at once, then the answer."""
    with connect(field) as line:
        pour(line, (data[place : place + PIECE] for place in range(0, len(data), PIECE)))
        return answered(line)


def post(field: Field, path: str, body: bytes, *, key: bool = True) -> str:
    """A JSON body."""
    return send(field, head("POST", path, f"{JSON}Content-Length: {len(body)}\r\n\r\n", key=key) + body)


def many(count: int, one: object, at_once: int = 64) -> str:
    """The same from many threads. Returns how often each answer came."""
    assert callable(one)
    with ThreadPoolExecutor(at_once) as pool:
        told = Counter(pool.map(lambda _: one(), range(count)))
    return tally(told)


def tally(told: Counter[str]) -> str:
    return ", ".join(f"{number} x {answer}" for answer, number in told.most_common(4))
