"""The body of a request. Owns: reading it within its limits (bytes, time, depth, values), checking that it is one JSON
object, so that a dialect can decode it safely later, and the rule that large requests are checked and parsed in a
thread of their own. The check skips values instead of building them: ten megabytes cost milliseconds and no objects.
Refuses to know: what the object means.

Python runs one thread at a time, so the thread is not faster. But the loop gets its turn every 5 ms, and after each
call into C, instead of at the end."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from operator import itemgetter
from typing import ParamSpec, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ninelives.core.errors import ClientError
from ninelives.core.rope import HUGE_BYTES, LARGE_BYTES, LARGE_WORK, alone

P = ParamSpec("P")
T = TypeVar("T")
MAX_VALUES = 100_000
"""How many values a body may have, where nothing else is set."""
TRIM_S = 1.0
"""After a huge request, and so many seconds of no other one, memory is given back."""
SHORT_BYTES = 4096
"""Of a longer body, the marks are taken out first: one pass instead of four."""
LONG_FIELDS = (
    *("messages", "input", "items", "tools", "logit_bias", "response_format", "text", "stop", "stop_sequences"),
    *("system", "conversation_history", "metadata", "include", "prediction", "modalities", "tool_choice"),
)
"""Fields that can be long, in any API. One of them is named when a body has too many values."""


class _Object(msgspec.Struct):
    """Any object. Its values are skipped, not built."""


_object = msgspec.json.Decoder(_Object)
_fields = msgspec.json.Decoder(
    msgspec.defstruct("_Fields", [(name, msgspec.Raw, msgspec.Raw()) for name in LONG_FIELDS])
)
_JSON_TYPE = re.compile(
    r"\Aapplication/(?:[\w.+-]+\+)?json\s*(?:;(?!.*charset)|;.*charset=\"?utf-?8\b|\Z)", re.IGNORECASE
)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_NAME: Callable[[tuple[bytes, bytes]], bytes] = itemgetter(0)
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_NOT_MARKS = bytes(byte for byte in range(256) if byte not in b'",[]{}')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


class BodyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a body."""

    bytes: int
    depth: int
    seconds: float = 120.0
    values: int = MAX_VALUES


class Aside:
    """A thread for large requests. A moment after those of megabytes, what is free of their bodies goes back to the
    system."""

    def __init__(self) -> None:
        self._trims: asyncio.TimerHandle | None = None

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do pure work on a request of `size` bytes and return its result."""
        if size <= LARGE_BYTES:
            return work(*args, **kwargs)
        if size > HUGE_BYTES:
            self._trim_later()
        return await asyncio.get_running_loop().run_in_executor(LARGE_WORK, partial(alone, size, work, *args, **kwargs))

    def _trim_later(self) -> None:
        if self._trims is not None:
            self._trims.cancel()
        self._trims = asyncio.get_running_loop().call_later(TRIM_S, LARGE_WORK.submit, _trim)


def _trim() -> None:
    """Give free memory back, also from the middle of the heap. Only glibc needs to be told."""
    import ctypes

    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


async def read_json(request: Request, limits: BodyLimits, aside: Aside) -> bytes:
    """Read the body and check that it is one JSON object in UTF-8 within the limits."""
    return await read_body(request, limits, aside, partial(_checked, limits))


def parse_checked(limits: BodyLimits, parse: Callable[[bytes], T], body: bytes) -> tuple[T, int]:
    """Parse a body as if check_object() had passed it. `parse` finds by itself what is not JSON, so the bytes of a body
    that is surely within the limits are not checked twice. Returns the result and the size of the body."""
    if not _is_surely_small(body, limits) or not (body.isascii() or _is_utf8(body)):
        check_object(body, limits)
    try:
        return parse(body), len(body)
    except ClientError:
        check_object(body, limits)  # its reasons are better
        raise


async def read_json_optional(request: Request, limits: BodyLimits, aside: Aside) -> bytes:
    """Like read_json(), for routes that work without a body. No body counts as an empty object."""
    body = await read_body(request, limits, aside, bytes, typed=False)
    if not body:
        return b"{}"
    _check_type(request)
    return await aside.run(len(body), _checked, limits, body)


def _check_type(request: Request) -> None:
    headers = request.scope["headers"]
    names = list(map(_NAME, headers))
    if names.count(b"content-type") != 1 or not _is_json(headers[names.index(b"content-type")][1]):
        words = "The body must be JSON in UTF-8: send the header Content-Type: application/json"
        raise ClientError("unsupported_media_type", words, status=415)
    if b"content-encoding" in names and headers[names.index(b"content-encoding")][1].lower() != b"identity":
        words = "The body must not be compressed: send it without Content-Encoding."
        raise ClientError("unsupported_media_type", words, status=415)


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    return _JSON_TYPE.match(content_type.decode("latin-1").strip()) is not None


async def read_body(
    request: Request, limits: BodyLimits, aside: Aside, work: Callable[[bytes], T], *, typed: bool = True
) -> T:
    """Read the body, and do this work with it: check it, or parse it, which for a large one is one visit to the thread.
    To join the pieces of a large one is a part of the work. `typed`: its type must be JSON."""
    if typed:
        _check_type(request)
    take_body = request.scope.get("extensions", {}).get("ninelives.body")
    body: bytes | None = None if take_body is None else take_body()
    if body is None:
        chunks, size = await _received_in_time(request, limits)
    elif len(body) > limits.bytes:
        raise too_large(limits.bytes)
    elif len(body) <= LARGE_BYTES:  # nearly every request: it is here, and short
        return work(body)
    else:
        chunks, size = [body], len(body)
        del body
    return await aside.run(size, lambda: work(b"".join(chunks)))


async def _received_in_time(request: Request, limits: BodyLimits) -> tuple[list[bytes], int]:
    """The pieces of the body, and how many bytes they are."""
    try:
        async with asyncio.timeout(limits.seconds):
            return await _received(request, limits)
    except TimeoutError as error:
        words = f"The body did not arrive within {limits.seconds:g} seconds: send it again over a better connection."
        raise ClientError("request_timeout", words, status=408) from error


async def _received(request: Request, limits: BodyLimits) -> tuple[list[bytes], int]:
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limits.bytes:
            raise too_large(limits.bytes)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks, size


def too_large(max_bytes: int) -> ClientError:
    """The error for a body over the limit, whether its size was declared or not."""
    words = f"The body is larger than {max_bytes} bytes: send less, or raise limits.body_bytes."
    return ClientError("payload_too_large", words, status=413)


def _checked(limits: BodyLimits, body: bytes) -> bytes:
    check_object(body, limits)
    return body


def check_object(body: bytes, limits: BodyLimits) -> None:
    """Raise unless `body` is one JSON object within the limits. The cost is a few passes in C over its bytes: what
    takes a step in Python is counted before."""
    try:
        if not body.isascii():
            body.decode("utf-8")
        _object.decode(body)
    except UnicodeDecodeError as error:
        raise _invalid(f"The body is not UTF-8 (byte {error.start}): encode it as UTF-8.") from error
    except RecursionError as error:
        raise _too_deep(limits.depth) from error
    except msgspec.ValidationError as error:
        raise _invalid(f"The body must be a JSON object. {error}.") from error
    except msgspec.DecodeError as error:
        raise _invalid(_reason(body, str(error))) from error
    if _is_surely_small(body, limits):
        return
    marks = _marks(body, limits.values)
    if marks is None or marks.count(b",") + marks.count(b"[") + marks.count(b"{") > limits.values:
        raise _too_many_values(body, limits.values)
    if _depth(marks) > limits.depth:
        raise _too_deep(limits.depth)


def _is_utf8(body: bytes) -> bool:
    try:
        return bool(body.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _is_surely_small(body: bytes, limits: BodyLimits) -> bool:
    """Whether a body is within the limits even if the marks in its texts count: true of most bodies, and of any bytes,
    valid or not. An object right after another one, as in a list of messages, is not deeper than that one; the quotes
    are kept so that a bracket at the end of a text is not taken for such a neighbour."""
    marks = body if len(body) < SHORT_BYTES else body.translate(None, _NOT_MARKS)
    opened = marks.count(b"[") + marks.count(b"{")
    flat = opened <= limits.depth or opened - marks.count(b"},{") <= limits.depth
    return flat and opened + marks.count(b",") < limits.values


def _reason(body: bytes, error: str) -> str:
    """Why a body is not JSON, by its most likely cause."""
    found = _AT_BYTE.search(error)
    at = int(found[1]) if found else len(body)
    if not body.strip():
        return "The body is empty: send a JSON object."
    if body.startswith(b"\xef\xbb\xbf"):
        return "The body begins with a byte order mark: send plain UTF-8."
    if body.startswith((b"NaN", b"Infinity"), at):
        return f"NaN and Infinity are not JSON: send a number or null. {error}."
    if any(word in error for word in ("surrogate", "truncated", "hex escape")) and _HALF_PAIR.search(body):
        return "A text holds half of a surrogate pair (such as \\ud83d alone): send whole characters."
    return f"The body is not valid JSON: {error}."


def _marks(body: bytes, max_values: int) -> bytes | None:
    """The commas and brackets of a valid document that are not inside of a text, without a loop in Python: drop
    escapes, keep the marks and quotes, drop the texts. None: there are more texts than keys and values may be.
    (`""` is a text without marks, or the end of one text and the start of the next. Both may go.)"""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * max_values:
        return None
    marks = plain.translate(None, _NOT_MARKS).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])


def _depth(marks: bytes) -> int:
    """How deep a document with these marks nests."""
    return max(accumulate(array("b", marks.translate(_STEPS, b","))), default=0)


def _too_many_values(body: bytes, most: int) -> ClientError:
    fields = _fields.decode(body)
    sizes = {name: len(bytes(getattr(fields, name))) for name in LONG_FIELDS}
    longest = max(sizes, key=sizes.__getitem__)
    where = longest if sizes[longest] > len(body) // 2 else None
    words = f"The body has more than {most} values{f', most of them in {where}' if where else ''}."
    return ClientError("too_many_values", f"{words} Send less, or raise limits.json_values.", param=where)


def _too_deep(max_depth: int) -> ClientError:
    return _invalid(f"The body nests deeper than {max_depth} levels: flatten it, or raise limits.json_depth.")


def _invalid(message: str) -> ClientError:
    return ClientError("invalid_json", message)
