"""HTTP for the loads that one connection at a time is enough for. Owns: asking for an object, and reading a stream
while its marks are counted, without parsing it, so that the reader is never what is measured. Refuses to know: what is
asked, and how long it may take."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from lab.bench.targets import RESPONSES, Target

TIMEOUT_S = 60.0
DELTA = b"data: {"
STAMP = b'"@'
COMPLETED = b"event: response.completed"
_READ = 1 << 20
_SEAM = 2048
"""More than any mark is long, and enough for the head of an answer and its first frame."""


class Unexpected(Exception):
    """The server answered what it should not have."""


def order(n: int, pace_us: int) -> str:
    """The prompt that tells the upstream how to answer; the time in it makes the session a new one."""
    return f"{time.monotonic_ns()} [[bench n={n} pace_us={pace_us}]]"


def _head(target: Target, method: str, path: str, length: int) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}"]
    lines += ["Content-Type: application/json", f"Authorization: Bearer {target.key}", "", ""]
    return "\r\n".join(lines).encode()


def request(target: Target, path: str, body: object = None) -> bytes:
    """The bytes of a request: a POST of the body, or a GET without one."""
    data = b"" if body is None else msgspec.json.encode(body)
    return _head(target, "GET" if body is None else "POST", path, len(data)) + data


class Caller:
    """One connection, kept alive, for objects."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = http.client.HTTPConnection(*target.host, timeout=TIMEOUT_S)

    def ask(self, path: str, body: object = None) -> dict[str, Any]:
        """The object that a request gets."""
        return _object(self.raw(path, body))

    def raw(self, path: str, body: object = None) -> bytes:
        """The same, not decoded."""
        headers = {"authorization": f"Bearer {self._target.key}", "content-type": "application/json"}
        data = None if body is None else msgspec.json.encode(body)
        self._http.request("GET" if body is None else "POST", path, data, headers)
        answer = self._http.getresponse()
        got = answer.read()
        if answer.status != 200:
            raise Unexpected(f"{path}: {answer.status} {got[:200]!r}")
        return got

    def close(self) -> None:
        """Hang up."""
        self._http.close()


def _object(data: bytes) -> dict[str, Any]:
    return msgspec.json.decode(data, type=dict[str, Any])


def posted(target: Target, text: str, **more: object) -> dict[str, object]:
    """The body of a request that says this text, in the target's own dialect."""
    if target.path == RESPONSES:
        said: dict[str, object] = {"input": text}
    else:
        said = {"messages": [{"role": "user", "content": text}]}
    return {"model": target.model, **said, **_object(target.extra.encode()), **more}


@dataclass
class Stream:
    """What was read of a stream."""

    frames: int = 0
    size: int = 0
    first_s: float = 0.0
    """From the request to the first mark."""
    whole_s: float = 0.0
    completed: bool = False
    head: bytes = b""
    tail: bytes = b""

    def add(self, buffer: bytearray, got: int, mark: bytes) -> None:
        """Count the marks in what one read brought, and in the seam between it and the read before."""
        seam = self.tail[-_SEAM:] + buffer[: min(got, _SEAM)]
        cut = len(self.tail[-_SEAM:])
        across = seam.count(mark) - seam[:cut].count(mark) - seam[cut:].count(mark)
        self.frames += buffer.count(mark, 0, got) + across
        self.completed = self.completed or COMPLETED in seam or buffer.find(COMPLETED, 0, got) >= 0
        self.size += got
        if len(self.head) < _SEAM:
            self.head = (self.head + buffer[:got])[:_SEAM]
        self.tail = (self.tail + buffer[max(0, got - _SEAM) : got])[-_SEAM:]

    @property
    def response(self) -> str:
        """The id in its first frame."""
        found = re.search(rb'"id":"(resp_\w+)"', self.head)
        if found is None:
            raise Unexpected(f"no id in the first frame: {self.head[:300]!r}")
        return found[1].decode()


def stream(target: Target, sent: bytes, seen: Callable[[int], None] | None = None, mark: bytes = STAMP) -> Stream:
    """Read an answer to its end; `seen` is told the marks so far after each read."""
    buffer = bytearray(_READ)
    with socket.create_connection(target.host, TIMEOUT_S) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out, began = Stream(), time.perf_counter()
        line.sendall(sent)
        while not out.tail.endswith(b"\r\n0\r\n\r\n"):
            got = line.recv_into(buffer)
            if not got:
                raise Unexpected(f"the stream broke off after {out.size} bytes: {out.tail[-300:]!r}")
            out.add(buffer, got, mark)
            if not out.head.startswith(b"HTTP/1.1 200"):
                raise Unexpected(f"{out.head[:300]!r}")
            out.first_s = out.first_s or (time.perf_counter() - began if out.frames else 0.0)
            if seen is not None:
                seen(out.frames)
        out.whole_s = time.perf_counter() - began
        return out
