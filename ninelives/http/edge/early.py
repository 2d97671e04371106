"""Answers to requests that do not reach the application. Owns: the headers that every answer has (A6), and the bytes of
an error that a connection sends by itself: a head that is too long or too late, no HTTP, too many connections. Imports
nothing heavy before the first error (F3). Refuses to know: when such an answer is due."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from http import HTTPStatus

from ninelives.core.errors import ClientError, NinelivesError, ServerError

Headers = list[tuple[bytes, bytes]]

FIXED: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"vary", b"Origin"),
]
MAX_HEADERS = 200
"""How many headers a request may have."""
CLOSE = (b"connection", b"close")


def new_request_id() -> str:
    """An id for x-request-id where no application gives one."""
    return secrets.token_hex(12)


def head_too_large(max_bytes: int) -> ClientError:
    """The head of a request exceeds a bound. The request line counts."""
    words = f"The request line and headers are larger than {max_bytes} bytes, or more than {MAX_HEADERS} headers."
    return ClientError("headers_too_large", f"{words} Send less, or raise limits.head_bytes.", status=431)


def head_too_late(seconds: float) -> ClientError:
    """The head of a request was begun, and is not complete in time."""
    words = f"The head of the request did not arrive within {seconds:g} seconds: send it again."
    return ClientError("request_timeout", words, status=408)


def not_http() -> ClientError:
    """The bytes of a connection are not HTTP/1.1."""
    return ClientError("invalid_http", "This is not a valid HTTP/1.1 request: check the URL, TLS and the proxy.")


def too_many_connections(most: int) -> ServerError:
    """All connections are in use."""
    words = f"All {most} connections of this server are in use: try again in a moment, or raise limits.connections."
    return ServerError("too_many_connections", words, status=503, retry_after=1)


def early_answer(error: NinelivesError, url: bytes, more: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A whole HTTP response, in the shape of the API that `url` belongs to. The connection must be closed after it."""
    from ninelives.http.api_style import style_of
    from ninelives.http.errors import error_response

    style, request_id = style_of(url.partition(b"?")[0].decode("latin-1")), new_request_id()
    status, headers, body = error_response(error, style, request_id)
    headers = [*more, *headers, *style.headers(request_id)]
    headers = [pair for pair in headers if pair != CLOSE] + [CLOSE]
    lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), lines, body)
