"""A tiny ASGI driver for tests: calls an app with one request and collects what it sends. No server, no client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

Pairs = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]


@dataclass
class Answer:
    """What came back. `headers` keeps doubles."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def error(self) -> dict[str, Any]:
        """The inner error object; fails when the body is not exactly one."""
        (inner,) = self.json().values()
        assert set(inner) == {"message", "type", "param", "code"}
        return dict(inner)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """The value of a header that must not be doubled."""
        values = self.all(name)
        assert len(values) < 2, f"{name} is doubled: {values}"
        return values[0] if values else None


def raw_headers(headers: Pairs) -> list[tuple[bytes, bytes]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(_bytes(name).lower(), _bytes(value)) for name, value in pairs]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def http_scope(method: str, path: str, headers: Pairs) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.partition("?")[0],
        "raw_path": path.partition("?")[0].encode(),
        "query_string": path.partition("?")[2].encode(),
        "root_path": "",
        "headers": raw_headers(headers),
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8642),
    }


class Script:
    """`receive` that plays the body in chunks, then says that the client left."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        whole = list(chunks) or [b""]
        self.messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": chunk, "more_body": n < len(whole) - 1} for n, chunk in enumerate(whole)
        ]
        self.reads = 0

    async def __call__(self) -> dict[str, Any]:
        self.reads += 1
        return self.messages.pop(0) if self.messages else {"type": "http.disconnect"}


async def call(
    app: Any, method: str = "GET", path: str = "/", headers: Pairs = (), body: bytes | Iterable[bytes] = b""
) -> Answer:
    """One request, one answer. `body` as a list is sent in these chunks."""
    answer = Answer()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert not answer.status, "the answer was started twice"
            answer.status = message["status"]
            answer.headers = [(name.decode(), value.decode("latin-1")) for name, value in message["headers"]]
        else:
            answer.chunks.append(message["body"])

    receive = Script([body] if isinstance(body, bytes) else body)
    await app(http_scope(method, path, headers), receive, send)
    return answer


async def knock(app: Any, path: str, headers: Pairs, *, extensions: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Ask for a websocket and give back all messages that the app sent."""
    sent: list[dict[str, Any]] = []
    incoming = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(dict(message))

    scope = http_scope("GET", path, headers)
    del scope["method"]
    scope.update(type="websocket", scheme="ws", subprotocols=[], extensions={name: {} for name in extensions})
    await app(scope, receive, send)
    return sent
