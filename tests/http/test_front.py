"""The door while the server is being put together (F3, A6)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.http import server
from holdfast.http.front import Front
from tests.asgi import call, knock


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
async def test_f3_health_answers_before_the_application_is_there(path: str) -> None:
    answer = await call(Front(), "GET", path)
    assert answer.status == 200 and answer.json()["status"] == "ok"
    assert dict(answer.headers)["x-content-type-options"] == "nosniff"


async def test_everything_else_is_503_with_retry_after_until_then() -> None:
    answer = await call(Front(), "POST", "/v1/responses", body=b"{}")
    assert answer.status == 503 and answer.json()["error"]["code"] == "starting"
    assert dict(answer.headers)["retry-after"] == "1"


async def test_the_application_takes_over() -> None:
    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    front = Front()
    front.hand_over(app)
    assert (await call(front, "GET", "/health")).status == 418


async def test_a_websocket_that_comes_too_early_is_503_too() -> None:
    start, body = await knock(Front(), "/v1/responses", {}, extensions=["websocket.http.response"])
    assert (start["status"], body["body"][:9]) == (503, b'{"error":')


async def test_a_replica_is_not_healthy_before_it_has_its_database() -> None:
    answer = await call(Front(early=False), "GET", "/health")
    assert answer.status == 503 and dict(answer.headers)["retry-after"] == "1"


def test_answers_carry_the_date_though_no_timer_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle server sleeps: the date is looked up when an answer needs it."""
    state = server._State()
    for second, date in ((1.5, b"Thu, 01 Jan 1970 00:00:01 GMT"), (86400.9, b"Fri, 02 Jan 1970 00:00:00 GMT")):
        monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda second=second: second))
        assert state.default_headers == [(b"date", date)]
