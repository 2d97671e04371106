"""The parts of uvicorn that ninelives/http/edge relies on and that are not its public API. Each version in the range of
pyproject.toml must have them; the list is in ninelives/http/edge/server.py."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import Server, ServerState

from ninelives.http.edge import server
from ninelives.http.edge.connection import ConnectionLimits, ConnectionState, connection_class

REQUEST = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


class Socket:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that is never called."""


def test_the_server_has_the_steps_that_are_overridden() -> None:
    source = inspect.getsource(Server.serve) + inspect.getsource(Server._serve)
    steps = ["capture_signals()", "startup(", "main_loop()", "shutdown("]
    assert [source.index(step) for step in steps] == sorted(source.index(step) for step in steps)
    made = Server(uvicorn.Config(nothing))
    assert made.should_exit is False and isinstance(made.server_state, ServerState)


async def test_a_protocol_class_and_a_websocket_factory_are_taken_as_they_are() -> None:
    protocol = connection_class(ConnectionLimits())
    config = uvicorn.Config(nothing, http=protocol, ws=server._websocket, lifespan="off")  # type: ignore[arg-type]
    config.load()
    assert config.http_protocol_class is protocol and config.ws_protocol_class is server._websocket
    made = server._websocket(config=config, server_state=ConnectionState(), app_state={})
    assert isinstance(made, WebSocketsSansIOProtocol)


async def test_a_request_has_the_extensions_and_is_answered_with_our_date() -> None:
    seen: dict[str, Any] = {}
    done = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope["extensions"], cycle=send.cycle)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        seen["written"] = seen["ninelives.write"](b"two")
        await send({"type": "http.response.body", "body": b"three"})
        done.set()

    parts: dict[str, Any] = {"http": connection_class(ConnectionLimits()), "ws": server._websocket}
    config = uvicorn.Config(app, lifespan="off", proxy_headers=False, **parts)
    config.load()
    socket = Socket()
    state = ConnectionState()
    protocol: Any = config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]
    protocol.connection_made(socket)
    protocol.data_received(REQUEST)
    async with asyncio.timeout(60):
        await done.wait()
    sent = b"".join(socket.writes)
    assert {"ninelives.abort", "ninelives.disconnect", "ninelives.write"} <= set(seen)
    assert sent.startswith(b"HTTP/1.1 200") and b"\r\ndate: " in sent.lower()
    cycle = seen["cycle"]
    assert seen["written"] and socket.writes[0].endswith(b"3\r\none\r\n")  # the head and the first piece
    assert (cycle.response_complete, cycle.disconnected, cycle.flow.write_paused) == (True, False, False)
    assert cycle.transport is socket and protocol.cycle is cycle and protocol.loop is asyncio.get_running_loop()
    protocol.connection_lost(None)


def test_the_log_line_that_is_dropped_still_has_its_text() -> None:
    assert "returned without" in inspect.getsource(httptools_impl)
