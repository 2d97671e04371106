"""Rules of ninelives/http/edge/starting.py: the application while the server starts (A1, F3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from ninelives.http.edge import connection, starting
from ninelives.http.edge.starting import StartingApp
from tests.asgi import Answer, call, knock

EXTENSION = ["websocket.http.response"]


async def teapot(scope: Any, receive: Any, send: Any) -> None:
    """The real application."""
    if scope["type"] == "websocket":
        return await send({"type": "websocket.accept"})
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": (await receive())["body"]})


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the start."""
    monkeypatch.setattr(starting, "HOLD_S", 0.0)


async def after_the_start(app: StartingApp, asked: Awaitable[Any]) -> Any:
    """The result of a request that came before the application."""
    waits = asyncio.ensure_future(asked)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waits.done(), "it is held"
    app.hand_over(teapot)
    return await waits


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a1_livez_is_200_from_the_first_moment(method: str) -> None:
    answer = await call(StartingApp(), method, "/livez")
    assert answer.status == 200 and answer.header("x-content-type-options") == "nosniff"
    assert answer.body == b"" if method == "HEAD" else answer.json()["status"] == "ok"


@pytest.mark.parametrize("path", ["/readyz", "/health", "/v1/health"])
async def test_a1_readiness_and_health_are_503_with_a_reason_while_the_server_starts(path: str) -> None:
    answer = await call(StartingApp(), "GET", path)
    assert answer.status == 503 and answer.header("retry-after") == "1"
    assert answer.json() == {"status": "starting", "reason": "The server is starting."}


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/responses"), ("GET", "/v1/models"), ("POST", "/health")])
async def test_a1_any_other_request_waits_for_the_start_and_is_then_answered(method: str, path: str) -> None:
    app = StartingApp()
    answer: Answer = await after_the_start(app, call(app, method, path, body=b"{}"))
    assert (answer.status, answer.body) == (418, b"{}")


async def test_a1_a_websocket_waits_too() -> None:
    app = StartingApp()
    assert await after_the_start(app, knock(app, "/v1/responses", {})) == [{"type": "websocket.accept"}]


async def test_a1_all_who_wait_are_answered() -> None:
    app = StartingApp()
    asked = asyncio.gather(*(call(app, "POST", "/v1/responses", body=b"{}") for _ in range(20)))
    assert {answer.status for answer in await after_the_start(app, asked)} == {418}


def test_a1_a_request_waits_for_at_most_ten_seconds() -> None:
    assert starting.HOLD_S == 10.0


async def test_a1_a_start_that_takes_longer_is_503_with_retry_after(soon: None) -> None:
    answer = await call(StartingApp(), "POST", "/v1/responses", body=b"{}")
    assert answer.status == 503 and answer.error()["code"] == "starting"
    assert answer.header("retry-after") == "1"


async def test_a1_for_a_websocket_too(soon: None) -> None:
    start, body = await knock(StartingApp(), "/v1/responses", {}, extensions=EXTENSION)
    assert (start["status"], body["body"][:9]) == (503, b'{"error":')


async def test_the_application_takes_over_the_probes_too() -> None:
    app = StartingApp()
    app.hand_over(teapot)
    for path in ("/livez", "/readyz", "/health"):
        assert (await call(app, "GET", path)).status == 418


def test_answers_carry_the_date_though_no_timer_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle server sleeps: the date is looked up when an answer needs it."""
    state = connection.ConnectionState()
    for second, date in ((1.5, b"Thu, 01 Jan 1970 00:00:01 GMT"), (86400.9, b"Fri, 02 Jan 1970 00:00:00 GMT")):
        monkeypatch.setattr(connection, "time", SimpleNamespace(time=lambda second=second: second))
        assert state.default_headers == [(b"date", date)]
