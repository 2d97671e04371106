"""Errors as HTTP answers. Owns: the JSON of an error, in the shape of the API that was called (A7), and the headers
that tell a client whether and when to try again. Refuses to know: why something failed, and how an answer is sent."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.errors import ClientError, Damaged, HoldfastError, NewerEvent, ServerError
from holdfast.http.manners import OPENAI, Manners, manners_of

Headers = list[tuple[bytes, bytes]]
_RETRY_AFTER_S = {429: 1, 503: 5}
"""How long to wait where the error itself does not say."""


def error_response(error: HoldfastError, manners: Manners = OPENAI, request_id: str = "") -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer to a request that failed with `error`. It can always be built: half
    characters in a message are replaced."""
    error.message = error.message.encode("utf-8", "replace").decode()
    body = msgspec.json.encode(manners.error(error, request_id))
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    wait = error.retry_after if error.retry_after is not None else _RETRY_AFTER_S.get(error.status)
    if wait is not None:
        headers.append((b"retry-after", b"%d" % wait))
    if error.status == 409 or error.spent:
        headers.append((b"x-should-retry", b"false"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return error.status, headers, body


def damaged() -> ServerError:
    """What was asked for cannot be read: never a shorter history instead (P14)."""
    words = "What is stored of this is damaged. `holdfast store check` says what; a backup can be restored."
    return ServerError("store_damaged", words, status=500)


def newer() -> ServerError:
    """Another release of the server, which is at work beside this one, wrote what was asked for."""
    words = "This was written by a newer release of the server. Ask again: another replica may know it; or upgrade."
    return ServerError("store_newer", words, retry_after=5)


def unexpected(error: Exception, request_id: str) -> ServerError:
    """The answer to an exception that nobody expected."""
    if isinstance(error, NewerEvent):
        return newer()
    return damaged() if isinstance(error, Damaged) else internal_error(request_id)


def internal_error(request_id: str) -> ServerError:
    """The answer to a bug of ours: it names the log line, never the cause."""
    words = f"The server failed; this is a bug. Its log has the cause under request id {request_id}."
    return ServerError("internal_error", words, status=500)


async def on_http_exception(request: Request, exception: Exception) -> Response:
    """Starlette's own errors (no such route, wrong method) in the one shape: an exception handler for its app."""
    assert isinstance(exception, HTTPException)
    status, route = exception.status_code, f"{request.method} {request.url.path[:200]}"
    if status == 404:
        error = ClientError("not_found", f"There is no route {route}: GET /v1/capabilities lists them.", status=404)
    elif status == 405:
        error = ClientError("method_not_allowed", f"There is no route {route}: see the Allow header.", status=405)
    else:
        error = ClientError("invalid_request", exception.detail, status=status)
    status, headers, body = error_response(error, manners_of(request.url.path), request.state.request_id)
    answer = Response(body, status, exception.headers)
    answer.raw_headers[:] = [pair for pair in answer.raw_headers if pair[0] not in dict(headers)] + headers
    return answer
