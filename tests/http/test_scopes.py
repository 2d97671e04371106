"""What each scope permits (A4): one row for every route, and a route without a row is closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from ninelives.app.agents import choose_model
from ninelives.app.assemble import assemble
from ninelives.app.settings import load
from ninelives.core.errors import ClientError
from ninelives.http.edge.keys import ApiKey
from ninelives.http.edge.scopes import ADMIN, ANY_KEY, NO_KEY, SCOPES, scope_of
from ninelives.http.routes.base import guarded
from ninelives.http.routes.server import endpoints_of
from ninelives.journal.accounts.trail import NoTrail
from ninelives.observe.log import Log

KEY = "scope-key-0123456789abcdef"


@pytest.fixture
async def served(tmp_path: Path) -> set[tuple[str, str]]:
    """Every (method, path) of the application."""
    flags = {"server.data_dir": str(tmp_path), "server.key": KEY, "tools.sandbox": "off"}
    loaded = load(None, {"HOME": str(tmp_path)}, flags)
    model, _ = await choose_model(loaded.settings, {})
    built = await assemble(loaded, KEY, Log(lambda: "", None), model)
    await built.start()
    try:
        return endpoints_of(built.app.inside.app.routes)
    finally:
        await built.stop()


async def test_every_route_has_a_row(served: set[tuple[str, str]]) -> None:
    missing = [route for route in served if scope_of(*route) is None]
    assert missing == [], "say in edge/scopes.py which scope the new route needs"


async def test_the_rows_are_what_a_reader_expects(served: set[tuple[str, str]]) -> None:
    found = {needed: {route for route in served if scope_of(*route) == needed} for needed in (*SCOPES, ANY_KEY, NO_KEY)}
    assert {path for method, path in found["chat"]} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/sessions/{id:path}/chat",
        "/api/sessions/{id:path}/chat/stream",
    }
    assert all(method in ("GET", "HEAD") for method, path in found["responses:read"] if "input_tokens" not in path)
    assert found["tools:approve"] == {("DELETE", "/v1/approvals/{id}"), ("POST", "/v1/runs/{id}/approval")}
    assert {path.split("/")[2] for method, path in found["admin"]} == {"keys", "audit", "elsewhere"}
    changing = {path for method, path in found[ANY_KEY] | found[NO_KEY] if method not in ("GET", "HEAD")}
    assert changing == {"/api/markdown"}, "it renders a text, and stores nothing"


async def answer(request: Request) -> Response:
    return Response("done")


def request_with(*scopes: str) -> Any:
    return Request({"type": "http", "state": {"key": ApiKey("k", "ann", frozenset(scopes)), "audit": NoTrail()}})


async def test_a_route_without_a_row_is_closed_to_all_but_admins() -> None:
    planted = guarded(answer, "GET", "/v1/planted")
    assert (await planted(request_with(ADMIN))).status_code == 200
    with pytest.raises(ClientError) as told:
        await planted(request_with(*(scope for scope in SCOPES if scope != ADMIN)))
    assert (told.value.status, told.value.code) == (403, "insufficient_scope")


async def test_a_route_of_another_package_names_its_own_scope() -> None:
    planted = guarded(answer, "POST", "/v1/planted", "chat")
    assert (await planted(request_with("chat"))).status_code == 200
    with pytest.raises(ClientError, match=r"lacks the scope chat \(it has: responses:read\)"):
        await planted(request_with("responses:read"))


def test_no_package_can_open_a_route_of_ours() -> None:
    assert guarded(answer, "POST", "/v1/runs/{id}/approval", ANY_KEY) is not answer
