"""Errors as HTTP responses. Owns: the JSON of an error, in the shape of the API that was called (A7), and the headers
that say whether and when to retry. Refuses to know: why something failed, and how a response is sent."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import ClientError, Damaged, NewerEvent, NinelivesError, ServerError, WentBack
from ninelives.http.api_style import OPENAI, ApiStyle, style_of

Headers = list[tuple[bytes, bytes]]
_RETRY_AFTER_S = {429: 1, 503: 5}
"""Seconds, where the error itself does not say."""


def error_response(error: NinelivesError, style: ApiStyle = OPENAI, request_id: str = "") -> tuple[int, Headers, bytes]:
    """Status, headers and body of the response to a request that failed with `error`. Lone surrogates in the message
    are replaced, so that it can always be encoded."""
    error.message = error.message.encode("utf-8", "replace").decode()
    body = msgspec.json.encode(style.error(error, request_id))
    headers: Headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    wait = error.retry_after if error.retry_after is not None else _RETRY_AFTER_S.get(error.status)
    if wait is not None:
        headers.append((b"retry-after", b"%d" % wait))
    if error.status == 409 or error.spent:
        headers.append((b"x-should-retry", b"false"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    headers += error.headers
    return error.status, headers, body


def damaged() -> ServerError:
    """The stored data cannot be read. The server never shows a shorter history instead (P14)."""
    words = "The stored data is damaged. Run `ninelives store check` to see what is affected, or restore a backup."
    return ServerError("store_damaged", words, status=500)


def newer() -> ServerError:
    """A replica of a newer release wrote the data (R18)."""
    words = "A newer release of the server wrote this. Retry: another replica may read it. Or upgrade this one."
    return ServerError("store_newer", words, retry_after=5)


def went_back(error: WentBack) -> ServerError:
    """The database has lost what this caller was shown. The same request would fail again."""
    return ServerError("events_lost", f"{error}.", status=409)


def unexpected(error: Exception, request_id: str) -> ServerError:
    """The error for an exception that no route handles."""
    if isinstance(error, NewerEvent):
        return newer()
    if isinstance(error, WentBack):
        return went_back(error)
    return damaged() if isinstance(error, Damaged) else internal_error(request_id)


def internal_error(request_id: str) -> ServerError:
    """The error for a bug of the server. It names the log line, never the cause."""
    words = f"The server failed; this is a bug. Its log has the cause under request id {request_id}."
    return ServerError("internal_error", words, status=500)


async def on_http_exception(request: Request, exception: Exception) -> Response:
    """Starlette's own errors (no such route, wrong method) in the shape of the API. A Starlette exception handler."""
    assert isinstance(exception, HTTPException)
    status, route = exception.status_code, f"{request.method} {request.url.path[:200]}"
    if status == 404:
        error = ClientError("not_found", f"There is no route {route}: GET /v1/capabilities lists them.", status=404)
    elif status == 405:
        error = ClientError("method_not_allowed", f"There is no route {route}: see the Allow header.", status=405)
    else:
        error = ClientError("invalid_request", exception.detail, status=status)
    status, headers, body = error_response(error, style_of(request.url.path), request.state.request_id)
    answer = Response(body, status, exception.headers)
    answer.raw_headers[:] = [pair for pair in answer.raw_headers if pair[0] not in dict(headers)] + headers
    return answer
