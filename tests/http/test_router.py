"""Rules of FastRouter in ninelives/http/routes/base.py: it finds the same endpoints as Starlette's router."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ninelives.http.routes.base import FastRouter
from tests.asgi import call


def says(name: str) -> Any:
    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{name} {dict(request.path_params)}")

    return endpoint


ROUTES = [
    Route("/v1/things", says("make"), methods=["POST"]),
    Route("/v1/things", says("list"), methods=["GET"]),
    Route("/v1/things/fixed", says("fixed"), methods=["POST"]),
    Route("/v1/things/{id}", says("one"), methods=["GET"]),
    Route("/v1/things/{id}", says("drop"), methods=["DELETE"]),
    Route("/v1/things/{id}/parts", says("parts"), methods=["GET"]),
    Route("/v1/deep/{id:path}", says("deep"), methods=["GET"]),
]
ASKED = [
    ("POST", "/v1/things"),
    ("GET", "/v1/things"),
    ("HEAD", "/v1/things"),
    ("PUT", "/v1/things"),
    ("POST", "/v1/things/fixed"),
    ("GET", "/v1/things/fixed"),
    ("GET", "/v1/things/a b%"),
    ("DELETE", "/v1/things/x"),
    ("GET", "/v1/things/"),
    ("GET", "/v1/things/x/parts"),
    ("GET", "/v1/things/x/y"),
    ("GET", "/v1/deep/x/y"),
    ("GET", "/v1/unknown"),
]


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_the_fast_router_answers_as_starlettes_does(method: str, path: str) -> None:
    plain = Starlette(routes=ROUTES)
    plain.router.redirect_slashes = False
    expected = await call(plain, method, path)
    found = await call(FastRouter(plain, plain, ROUTES), method, path)
    assert (found.status, found.body) == (expected.status, expected.body)


async def test_plain_and_named_paths_do_not_reach_the_router() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the router was asked")

    assert (await call(FastRouter(never, never, ROUTES), "GET", "/v1/things/x")).body == b"one {'id': 'x'}"
    assert (await call(FastRouter(never, never, ROUTES), "POST", "/v1/things")).body == b"make {}"
