"""Rules of ninelives/http/edge/gate.py and errors.py (A4 to A8)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ninelives.core.errors import AgentError, ClientError, Damaged, NewerEvent, ServerError, WentBack
from ninelives.http.edge.gate import Gate, Rules, traced
from ninelives.http.edge.keys import Keyring
from ninelives.http.errors import error_response, on_http_exception
from ninelives.journal.values import StoreUnavailable
from tests.asgi import Answer, call, knock

SECRET = "ak_gate-secret-0123456789"
HOST = {"host": "127.0.0.1:8642"}
AUTH = {**HOST, "authorization": f"Bearer {SECRET}"}
PAGE = "https://chat.example.org"
FIXED = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}


class Lines:
    """A log that remembers its lines as (level, name, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def info(self, name: str, **fields: object) -> None:
        self.lines.append(("info", name, fields))

    def warning(self, name: str, **fields: object) -> None:
        self.lines.append(("warning", name, fields))

    def error(self, name: str, **fields: object) -> None:
        self.lines.append(("error", name, fields))


class Deeds:
    """An app with one route of each kind, which remembers what reached it."""

    def __init__(self, **rules: Any) -> None:
        self.seen: list[str] = []
        self.log = Lines()
        self.states: list[dict[str, Any]] = []
        numbers = itertools.count(1)
        keyring = Keyring()
        self.key = keyring.add(SECRET, "default", {"admin"})
        rules = {"loopback": True, "max_body": 1000, "open_paths": frozenset({"/", "/health"})} | rules
        gate = Middleware(
            Gate, keyring=keyring, rules=Rules(**rules), new_id=lambda: f"req_{next(numbers)}", log=self.log
        )
        names = ("/", "/health", "/v1/models", "/v1/responses", "/v1/messages", "/static/app.js")
        routes = [Route(name, self.note, methods=["GET", "POST", "PATCH", "DELETE"]) for name in names]
        routes += [
            Route("/stream", self.stream),
            Route("/own-headers", self.own_headers),
            Route("/fail/{how}", self.fail),
        ]
        self.app = Starlette(
            routes=routes, middleware=[gate], exception_handlers={404: on_http_exception, 405: on_http_exception}
        )

    async def note(self, request: Request) -> Response:
        self.seen.append(f"{request.method} {request.url.path}")
        self.states.append(dict(request.scope["state"]))
        return JSONResponse({"ok": True})

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(iter([b"data: 1\n\n", b"data: 2\n\n"]), media_type="text/event-stream")

    async def own_headers(self, request: Request) -> Response:
        headers = {"cache-control": "public", "x-request-id": "theirs", "vary": "Accept", "x-other": "kept"}
        return PlainTextResponse("ok", headers=headers)

    async def fail(self, request: Request) -> Response:
        raise FAILURES[request.path_params["how"]]


FAILURES: dict[str, Exception] = {
    "bug": RuntimeError("the password is hunter2"),
    "key": KeyError("x"),
    "damage": Damaged("a gap"),
    "newer": NewerEvent("an event of kind x"),
    "back": WentBack("r1", 7),
    "client": ClientError("model_not_found", "no such model", status=404, param="model"),
    "conflict": ClientError("idempotency_key_conflict", "other body", status=409),
    "busy": ClientError("too_many_runs", "wait", status=429),
    "busy-long": ClientError("too_many_runs", "wait", status=429, retry_after=30),
    "stopping": ServerError("stopping", "wait"),
    "full": ServerError("storage_full", "wait", retry_after=60),
    "upstream": AgentError("upstream_failed", "the model is gone"),
}


def assert_fixed(answer: Answer) -> None:
    assert {name: answer.header(name) for name in FIXED} == FIXED
    assert (answer.header("x-request-id") or "").startswith("req_")
    assert "Origin" in answer.all("vary")


async def test_P15_store_unavailable_is_503_with_retry_after_on_any_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAILURES, "store", StoreUnavailable("the database is away", passing=True))
    answer = await call(Deeds().app, "GET", "/fail/store", AUTH)
    assert (answer.status, answer.error()["code"]) == (503, "store_unavailable")
    assert answer.header("retry-after") == "2" and "try again" in answer.error()["message"]
    assert_fixed(answer)


# A4: the key


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses", "/nowhere", "/health/", "/static/app.js", "//health"])
async def test_without_a_key_every_route_is_401_known_or_not(method: str, path: str) -> None:
    deeds = Deeds()
    answer = await call(deeds.app, method, path, HOST)
    assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key")
    assert answer.header("www-authenticate") == "Bearer"
    assert deeds.seen == []
    assert_fixed(answer)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {SECRET}, Bearer {SECRET}",
        "Basic eDp5",
        b"Bearer \xff",
        "Bearer " + "a" * 60_000,
    ],
)
async def test_a_bad_credential_is_401_and_never_5xx(value: str | bytes) -> None:
    answer = await call(Deeds().app, "POST", "/v1/responses", [("host", "localhost"), ("authorization", value)])
    assert (answer.status, answer.error()["code"]) == (401, "invalid_api_key")


async def test_two_authorization_headers_are_401_even_if_both_are_right() -> None:
    headers = [("host", "localhost"), ("authorization", f"Bearer {SECRET}"), ("authorization", f"Bearer {SECRET}")]
    assert (await call(Deeds().app, "GET", "/v1/models", headers)).status == 401


async def test_a_right_key_opens_the_route_and_is_told_to_it() -> None:
    deeds = Deeds()
    answer = await call(deeds.app, "POST", "/v1/responses", AUTH, b"{}")
    assert (answer.status, deeds.seen) == (200, ["POST /v1/responses"])
    assert deeds.states[0]["key"] == deeds.key
    assert deeds.states[0]["request_id"] == answer.header("x-request-id")


BEARER, API_KEY = ("authorization", f"Bearer {SECRET}"), ("x-api-key", SECRET)


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/v1/messages", [API_KEY], 200),
        ("/v1/messages", [BEARER], 200),
        ("/v1/models", [API_KEY], 200),
        ("/v1/messages", [API_KEY, API_KEY], 401),
        ("/v1/messages", [BEARER, API_KEY], 401),
        ("/v1/messages", [("authorization", "Bearer wrong"), API_KEY], 401),
        ("/v1/messages", [("x-api-key", f"{SECRET}, {SECRET}")], 401),
        ("/v1/messages", [("x-api-key", f"Bearer {SECRET}")], 401),
        ("/v1/messages", [("x-api-key", "")], 401),
        ("/v1/models", [API_KEY, API_KEY], 401),
        ("/v1/models", [BEARER, ("x-api-key", "a proxy's own")], 200),
        ("/v1/models", [("authorization", "Bearer wrong"), API_KEY], 401),
    ],
)
async def test_a_key_may_come_as_x_api_key_but_not_twice(path: str, given: list[tuple[str, str]], status: int) -> None:
    """Elsewhere Authorization alone counts where it is sent: a proxy may have an x-api-key of its own."""
    assert (await call(Deeds().app, "GET", path, [("host", "localhost"), *given])).status == status


@pytest.mark.parametrize(("path", "status"), [("/v1/messages", 401), ("/v1/messages/nowhere", 404)])
async def test_errors_on_messages_have_that_apis_shape(path: str, status: int) -> None:
    answer = await call(Deeds().app, "POST", path, AUTH if status == 404 else HOST, b"{}")
    told = answer.json()
    assert answer.status == status and set(told) == {"type", "error", "request_id"} and told["type"] == "error"
    assert told["error"]["type"] == {401: "authentication_error", 404: "not_found_error"}[status]
    assert told["request_id"] == answer.header("request-id") == answer.header("x-request-id")
    assert (await call(Deeds().app, "POST", "/v1/messagesx", HOST)).error()["code"] == "invalid_api_key"


@pytest.mark.parametrize("headers", [HOST, {**HOST, "authorization": "Bearer wrong"}], ids=["none", "wrong"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_open_paths_need_no_key(method: str, headers: dict[str, str]) -> None:
    deeds = Deeds()
    assert (await call(deeds.app, method, "/health", headers)).status == 200
    assert deeds.states[0]["key"] is None


async def test_open_paths_know_a_key_that_is_sent() -> None:
    deeds = Deeds()
    await call(deeds.app, "GET", "/health", AUTH)
    assert deeds.states[0]["key"] == deeds.key


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE"])
async def test_open_paths_are_open_for_reading_only(method: str) -> None:
    deeds = Deeds()
    assert (await call(deeds.app, method, "/", HOST)).status == 401
    assert deeds.seen == []


async def test_a_prefix_opens_what_is_below_it() -> None:
    deeds = Deeds(open_prefixes=("/static/",))
    assert (await call(deeds.app, "GET", "/static/app.js", HOST)).status == 200
    assert (await call(deeds.app, "GET", "/v1/models", HOST)).status == 401


# A5: pages of other origins

FOREIGN = [
    PAGE,
    "null",
    "http://127.0.0.1:9999",
    "http://localhost:8642",
    "https://evil.example",
    "",
    "http://127.0.0.1",
]


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/health", "/v1/responses"])
async def test_origin_not_allowed_is_403_and_starts_nothing(method: str, origin: str, path: str) -> None:
    deeds = Deeds()
    answer = await call(deeds.app, method, path, {**AUTH, "origin": origin}, b"{}")
    assert (answer.status, answer.error()["code"]) == (403, "origin_not_allowed")
    assert "server.cors_origins" in answer.error()["message"]
    assert answer.header("access-control-allow-origin") is None
    assert deeds.seen == []
    assert_fixed(answer)


@pytest.mark.parametrize(
    "origin", [PAGE + ".evil.example", PAGE + ":444", PAGE + "/", "http://chat.example.org", PAGE.upper(), "null"]
)
async def test_listed_origins_are_compared_exactly(origin: str) -> None:
    deeds = Deeds(cors_origins=(PAGE,))
    assert (await call(deeds.app, "POST", "/v1/responses", {**AUTH, "origin": origin})).status == 403
    assert deeds.seen == []


async def test_two_origin_headers_are_403() -> None:
    headers = [*AUTH.items(), ("origin", PAGE), ("origin", PAGE)]
    assert (await call(Deeds(cors_origins=(PAGE,)).app, "GET", "/health", headers)).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8642", "localhost:8642", "[::1]:8642", "LOCALHOST"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_our_own_page_may_call_without_any_setting(scheme: str, host: str) -> None:
    headers = {**AUTH, "host": host, "origin": f"{scheme}://{host.lower()}"}
    answer = await call(Deeds().app, "POST", "/v1/responses", headers, b"{}")
    assert answer.status == 200
    assert answer.header("access-control-allow-origin") is None


@pytest.mark.parametrize(("listed", "shown"), [((PAGE,), PAGE), (("*",), "*"), (("https://a.example", PAGE), PAGE)])
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", AUTH, 200),
        ("/stream", AUTH, 200),
        ("/nowhere", AUTH, 404),
        ("/v1/models", HOST, 401),
        ("/fail/bug", AUTH, 500),
        ("/fail/busy", AUTH, 429),
        ("/v1/models", {**AUTH, "host": "evil.example"}, 421),
    ],
)
async def test_a_listed_origin_is_told_so_on_every_answer(
    path: str, headers: dict[str, str], status: int, listed: tuple[str, ...], shown: str
) -> None:
    answer = await call(Deeds(cors_origins=listed).app, "GET", path, {**headers, "origin": PAGE})
    assert answer.status == status
    assert answer.header("access-control-allow-origin") == shown
    exposed = str(answer.header("access-control-expose-headers")).split(", ")
    assert exposed[:3] == ["X-Hermes-Session-Id", "x-request-id", "Retry-After"]
    rates = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")]
    assert exposed[3:] == rates
    assert_fixed(answer)


PREFLIGHT = {**HOST, "origin": PAGE, "access-control-request-method": "POST"}


async def test_a_preflight_needs_no_key_and_reaches_no_route() -> None:
    deeds = Deeds(cors_origins=(PAGE,))
    answer = await call(deeds.app, "OPTIONS", "/v1/responses", PREFLIGHT)
    assert (answer.status, answer.body, deeds.seen) == (204, b"", [])
    assert answer.header("access-control-allow-origin") == PAGE
    assert answer.header("access-control-allow-methods") == "GET, POST, PATCH, DELETE, OPTIONS"
    assert answer.header("access-control-max-age") == "600"
    assert answer.header("access-control-allow-credentials") is None
    assert_fixed(answer)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("authorization,content-type", "authorization, content-type"),
        ("Authorization, X-Stainless-OS", "authorization, x-stainless-os"),
        ("x-stainless-retry-count, x-stainless-read-timeout", "x-stainless-retry-count, x-stainless-read-timeout"),
        ("idempotency-key, x-evil, last-event-id", "idempotency-key, last-event-id"),
        ("x-hermes-session-id, x-hermes-session-key", "x-hermes-session-id, x-hermes-session-key"),
        ("x-multitask-strategy, x-tool-items, x-tool-progress", "x-multitask-strategy, x-tool-items, x-tool-progress"),
        ("x-on-disconnect, x-end-user-id, x-hermes-user-id", "x-on-disconnect, x-end-user-id, x-hermes-user-id"),
        ("x-api-key, anthropic-version, x-other", "x-api-key, anthropic-version"),
        ("authorization, x-stainless-a\r\nset-cookie: x", "authorization"),
        ("authorization, x-stainless-ü, *", "authorization"),
    ],
)
async def test_a_preflight_is_told_the_allowed_names_that_it_asked_for(asked: str, told: str) -> None:
    headers = {**PREFLIGHT, "access-control-request-headers": asked}
    answer = await call(Deeds(cors_origins=("*",)).app, "OPTIONS", "/v1/responses", headers)
    assert answer.header("access-control-allow-headers") == told


@pytest.mark.parametrize("asked", ["", "x-evil", "*"])
async def test_a_preflight_that_asks_for_nothing_allowed_is_told_the_fixed_names(asked: str) -> None:
    headers = {**PREFLIGHT, "access-control-request-headers": asked}
    answer = await call(Deeds(cors_origins=(PAGE,)).app, "OPTIONS", "/v1/responses", headers)
    told = (answer.header("access-control-allow-headers") or "").split(", ")
    assert "authorization" in told
    assert "x-evil" not in told
    assert "*" not in told


async def test_options_without_a_page_is_answered_without_cors() -> None:
    answer = await call(Deeds().app, "OPTIONS", "/v1/responses", HOST)
    assert answer.status == 204
    assert not [name for name, _ in answer.headers if name.startswith("access-control")]


# A6: what every answer carries, and the Host check


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/health", HOST, 200),
        ("GET", "/v1/models", AUTH, 200),
        ("GET", "/stream", AUTH, 200),
        ("GET", "/nowhere", AUTH, 404),
        ("PUT", "/v1/models", AUTH, 405),
        ("GET", "/v1/models", HOST, 401),
        ("GET", "/health", {"host": "evil.example"}, 421),
        ("POST", "/v1/responses", {**AUTH, "content-length": "1001"}, 413),
        ("GET", "/fail/bug", AUTH, 500),
        ("GET", "/fail/full", AUTH, 503),
        ("OPTIONS", "/health", HOST, 204),
    ],
)
async def test_the_fixed_headers_and_a_request_id_are_on_every_answer(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await call(Deeds().app, method, path, headers)
    assert answer.status == status
    assert_fixed(answer)


@pytest.mark.parametrize(
    ("sent", "ids"),
    [
        (None, ["req_1", "req_2"]),
        ("mine-4.2:a_b", ["mine-4.2:a_b"] * 2),
        ("two words", ["req_1", "req_2"]),
        ("<b>", ["req_1", "req_2"]),
        ("x" * 129, ["req_1", "req_2"]),
        ("", ["req_1", "req_2"]),
    ],
)
async def test_the_request_id_of_a_caller_is_taken_over_where_it_is_a_plain_word(
    sent: str | None, ids: list[str]
) -> None:
    deeds = Deeds()
    headers = AUTH if sent is None else {**AUTH, "x-request-id": sent}
    found = [(await call(deeds.app, "GET", "/health", headers)).header("x-request-id") for _ in range(2)]
    assert found == ids


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("sent", "valid"),
    [
        (TRACE, True),
        (TRACE.upper(), False),
        (TRACE.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32), False),
        (TRACE.replace("b7ad6b7169203331", "0" * 16), False),
        ("01" + TRACE[2:], False),
        (TRACE + "-x", False),
    ],
)
def test_a_traceparent_is_taken_over_where_it_is_valid(sent: str, valid: bool) -> None:
    assert traced({b"traceparent": [sent.encode()]}, lambda: "new") == ("new", sent if valid else "")


async def test_our_headers_win_over_those_of_a_route_and_its_others_stay() -> None:
    answer = await call(Deeds().app, "GET", "/own-headers", AUTH)
    assert answer.header("cache-control") == "no-store"
    assert answer.header("x-request-id") == "req_1"
    assert answer.header("x-other") == "kept"
    assert answer.all("vary") == ["Accept", "Origin"]


async def test_a_stream_passes_as_it_is() -> None:
    answer = await call(Deeds().app, "GET", "/stream", AUTH)
    assert [chunk for chunk in answer.chunks if chunk] == [b"data: 1\n\n", b"data: 2\n\n"]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8642", "127.8.9.1", "localhost", "LocalHost:1", "localhost.", "[::1]", "[::1]:8642"],
)
async def test_loopback_names_are_answered(host: str) -> None:
    assert (await call(Deeds().app, "GET", "/health", {"host": host})).status == 200


BAD_HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.example:8642",
    "0.0.0.0:8642",
    "192.168.1.4",
    "[::]:8642",
    "user@localhost",
    "localhost/x",
    "localhost:8642:1",
    "localhost:port",
    "127.1",
    "",
    b"\xff\xfe",
]


@pytest.mark.parametrize("host", BAD_HOSTS)
async def test_on_loopback_another_host_is_421_and_the_setting_is_named(host: str | bytes) -> None:
    deeds = Deeds()
    answer = await call(
        deeds.app, "POST", "/v1/responses", [("host", host), ("authorization", f"Bearer {SECRET}")], b"{}"
    )
    assert (answer.status, answer.error()["code"]) == (421, "host_not_allowed")
    assert "server.allowed_hosts" in answer.error()["message"]
    assert deeds.seen == []


@pytest.mark.parametrize("headers", [[], [("host", "localhost"), ("host", "localhost")]], ids=["none", "two"])
async def test_on_loopback_exactly_one_host_header_is_needed(headers: list[tuple[str, str]]) -> None:
    assert (await call(Deeds().app, "GET", "/health", headers)).status == 421


async def test_a_page_that_points_its_own_name_at_us_is_refused() -> None:
    headers = {**AUTH, "host": "evil.example:8642", "origin": "http://evil.example:8642"}
    deeds = Deeds()
    assert (await call(deeds.app, "POST", "/v1/responses", headers, b"{}")).status == 421
    assert deeds.seen == []


@pytest.mark.parametrize("host", ["box.lan", "BOX.lan:8642", "box.lan."])
async def test_listed_hosts_are_answered_on_loopback(host: str) -> None:
    assert (await call(Deeds(allowed_hosts=("Box.lan",)).app, "GET", "/health", {"host": host})).status == 200


@pytest.mark.parametrize("host", ["box.lan", "evil.example"])
async def test_beyond_loopback_any_host_is_answered(host: str) -> None:
    assert (await call(Deeds(loopback=False).app, "GET", "/health", {"host": host})).status == 200


# A7: errors


@pytest.mark.parametrize(
    ("how", "status", "code", "kind", "param"),
    [
        ("client", 404, "model_not_found", "invalid_request_error", "model"),
        ("conflict", 409, "idempotency_key_conflict", "invalid_request_error", None),
        ("busy", 429, "too_many_runs", "invalid_request_error", None),
        ("stopping", 503, "stopping", "server_error", None),
        ("upstream", 502, "upstream_failed", "upstream_error", None),
        ("bug", 500, "internal_error", "server_error", None),
        ("damage", 500, "store_damaged", "server_error", None),
        ("newer", 503, "store_newer", "server_error", None),
        ("back", 409, "events_lost", "server_error", None),
        ("key", 500, "internal_error", "server_error", None),
    ],
)
async def test_an_error_of_a_route_becomes_the_one_json_shape(
    how: str, status: int, code: str, kind: str, param: str | None
) -> None:
    answer = await call(Deeds().app, "GET", f"/fail/{how}", AUTH)
    error = answer.error()
    assert (answer.status, error["code"], error["type"], error["param"]) == (status, code, kind, param)
    assert answer.header("content-type") == "application/json"
    assert answer.header("content-length") == str(len(answer.body))


async def test_internal_error_is_logged_with_its_cause_and_answered_without_it() -> None:
    deeds = Deeds()
    answer = await call(deeds.app, "GET", "/fail/bug", AUTH)
    assert (answer.status, answer.error()["code"]) == (500, "internal_error")
    assert b"hunter2" not in answer.body
    assert b"Traceback" not in answer.body
    assert "req_1" in answer.error()["message"]
    ((level, name, fields),) = deeds.log.lines
    assert (level, name, fields["request_id"]) == ("error", "request_failed", "req_1")
    assert "hunter2" in str(fields["trace"])
    assert fields["key"] == deeds.key.id
    assert SECRET not in str(fields)


async def test_a_refusal_is_logged_with_its_request_id_and_without_the_credential() -> None:
    deeds = Deeds()
    await call(deeds.app, "GET", "/v1/models", {**HOST, "authorization": "Bearer a-wrong-secret"})
    ((level, name, fields),) = deeds.log.lines
    assert (level, name, fields["code"]) == ("info", "request_refused", "invalid_api_key")
    assert (fields["request_id"], fields["key"]) == ("req_1", None)
    assert "a-wrong-secret" not in str(fields)


@pytest.mark.parametrize(
    ("how", "wait"),
    [("busy", "1"), ("busy-long", "30"), ("stopping", "5"), ("full", "60"), ("conflict", None), ("bug", None)],
)
async def test_429_and_503_say_when_to_come_back(how: str, wait: str | None) -> None:
    assert (await call(Deeds().app, "GET", f"/fail/{how}", AUTH)).header("retry-after") == wait


@pytest.mark.parametrize(("how", "told"), [("conflict", "false"), ("busy", None), ("stopping", None), ("client", None)])
async def test_every_409_tells_sdks_not_to_retry(how: str, told: str | None) -> None:
    assert (await call(Deeds().app, "GET", f"/fail/{how}", AUTH)).header("x-should-retry") == told


async def test_a_session_that_was_named_well_is_echoed_on_errors_too() -> None:
    """D2: on every answer, to a caller who is known."""
    sent = {**AUTH, "x-hermes-session-id": "my-session"}
    for how in ("client", "conflict", "busy", "stopping", "bug"):
        assert (await call(Deeds().app, "GET", f"/fail/{how}", sent)).header("x-hermes-session-id") == "my-session"
    bad = {**AUTH, "x-hermes-session-id": "a b"}
    assert (await call(Deeds().app, "GET", "/fail/client", bad)).header("x-hermes-session-id") is None
    unknown = {"host": "127.0.0.1", "x-hermes-session-id": "my-session"}
    assert (await call(Deeds().app, "GET", "/fail/client", unknown)).header("x-hermes-session-id") is None


async def test_unknown_routes_and_methods_are_json_too() -> None:
    deeds = Deeds()
    missing = await call(deeds.app, "GET", "/nowhere", AUTH)
    assert (missing.status, missing.error()["code"]) == (404, "not_found")
    wrong = await call(deeds.app, "PUT", "/v1/models", AUTH)
    assert (wrong.status, wrong.error()["code"]) == (405, "method_not_allowed")
    assert "GET" in (wrong.header("allow") or "")


def test_an_error_can_be_rendered_whatever_its_message_holds() -> None:
    status, headers, body = error_response(ClientError("x", "bad \ud800 text\r\nset-cookie: a"))
    assert status == 400
    assert b"?" in body
    assert all(b"\r" not in value for _, value in headers)


# A8: declared size, and heads

MANY = [("x-a", "b")] * 200
LONG = [("x-a", "b" * 65_536)]


@pytest.mark.parametrize(("path", "headers"), [("/v1/models", MANY), ("/v1/models", LONG), ("/" + "a" * 65_536, [])])
async def test_headers_too_large_is_431_before_the_key_and_closes(path: str, headers: list[tuple[str, str]]) -> None:
    deeds = Deeds()
    answer = await call(deeds.app, "GET", path, [*HOST.items(), *headers])
    assert (answer.status, answer.error()["code"]) == (431, "headers_too_large")
    assert answer.header("connection") == "close" and deeds.seen == []
    assert_fixed(answer)


@pytest.mark.parametrize("length", ["1001", "99999999999", "9" * 5000])
async def test_a_declared_size_over_the_limit_is_413_before_anything_is_read(length: str) -> None:
    deeds = Deeds()
    answer = await call(deeds.app, "POST", "/v1/responses", {**AUTH, "content-length": length})
    assert (answer.status, answer.error()["code"]) == (413, "payload_too_large")
    assert "limits.body_bytes" in answer.error()["message"]
    assert deeds.seen == []


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "", "１２"])
async def test_invalid_content_length_is_400(length: str) -> None:
    headers = [*AUTH.items(), ("content-length", length.encode())]
    answer = await call(Deeds().app, "POST", "/v1/responses", headers)
    assert (answer.status, answer.error()["code"]) == (400, "invalid_content_length")


async def test_a_size_at_the_limit_is_let_in() -> None:
    assert (await call(Deeds().app, "POST", "/v1/responses", {**AUTH, "content-length": "1000"})).status == 200


async def test_the_key_is_asked_for_before_the_size() -> None:
    assert (await call(Deeds().app, "POST", "/v1/responses", {**HOST, "content-length": "9999"})).status == 401


# The edges of a bare ASGI app


def gated(app: Any, log: Lines | None = None, **rules: Any) -> Gate:
    keyring = Keyring()
    keyring.add(SECRET, "default", {"admin"})
    bounds = Rules(**({"loopback": True, "max_body": 1000} | rules))
    return Gate(app, keyring=keyring, rules=bounds, new_id=lambda: "req_1", log=log or Lines())


@pytest.mark.parametrize(
    ("error", "level"), [(RuntimeError("late"), "error"), (ServerError("late", "late", status=500), "warning")]
)
async def test_a_failure_after_the_answer_began_cuts_the_stream(error: Exception, level: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise error

    log = Lines()
    with pytest.raises(type(error)):
        await call(gated(app, log), "GET", "/x", AUTH)
    assert [line[0] for line in log.lines] == [level]


@pytest.mark.parametrize("begun", [True, False])
async def test_a_client_that_leaves_is_not_an_error(begun: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ClientDisconnect

    log = Lines()
    answer = await call(gated(app, log), "POST", "/x", AUTH)
    assert answer.chunks == []
    assert [line[:2] for line in log.lines] == [("info", "client_left")]


async def test_lifespan_passes_untouched() -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    scope = {"type": "lifespan"}
    await gated(app)(scope, None, None)  # type: ignore[arg-type]
    assert scopes == [{"type": "lifespan"}]


# Websockets

WS_REFUSED = {
    "no key": (HOST, 401),
    "wrong key": ({**HOST, "authorization": "Bearer wrong"}, 401),
    "foreign host": ({**AUTH, "host": "evil.example"}, 421),
    "foreign page": ({**AUTH, "origin": PAGE}, 403),
}


async def welcome(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": scope["state"]["key"].owner})


@pytest.mark.parametrize(("headers", "status"), WS_REFUSED.values(), ids=WS_REFUSED.keys())
@pytest.mark.parametrize("path", ["/v1/responses", "/health"])
async def test_a_websocket_meets_the_same_checks_before_it_is_accepted(
    headers: dict[str, str], status: int, path: str
) -> None:
    gate = gated(welcome, open_paths=frozenset({"/health"}))
    (closed,) = await knock(gate, path, headers)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    start, body = await knock(gate, path, headers, extensions=["websocket.http.response"])
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert dict(start["headers"])[b"cache-control"] == b"no-store"
    assert (body["type"], b'"error"' in body["body"]) == ("websocket.http.response.body", True)


@pytest.mark.parametrize("more", [{}, {"origin": PAGE}, {"origin": "http://127.0.0.1:8642"}], ids=str)
async def test_a_websocket_with_a_key_is_let_in(more: dict[str, str]) -> None:
    accepted, text = await knock(gated(welcome, cors_origins=(PAGE,)), "/v1/responses", {**AUTH, **more})
    assert (accepted["type"], text["text"]) == ("websocket.accept", "default")
    assert dict(accepted["headers"])[b"x-request-id"] == b"req_1"


async def test_an_error_before_a_websocket_is_accepted_refuses_it() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ClientError("gone", "gone")

    (closed,) = await knock(gated(app), "/v1/responses", AUTH)
    assert (closed["type"], closed["reason"]) == ("websocket.close", "gone")
