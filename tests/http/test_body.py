"""Rules of ninelives/http/body.py (A6, A7, A8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request

from ninelives.core.errors import ClientError
from ninelives.dialects.fields import decode
from ninelives.http import body as body_module
from ninelives.http.body import Aside, BodyLimits, parse_checked, read_body, read_json, read_json_optional
from tests.asgi import Script, http_scope

JSON = {"content-type": "application/json"}


class Known(msgspec.Struct):
    """What a dialect decodes: unknown fields are skipped."""

    a: Any = None


async def parsed(request: Request, limits: BodyLimits, aside: Aside) -> bytes:
    """The body of a request that a dialect parses at once."""
    parse = partial(parse_checked, limits, lambda body: (decode(body, Known), body))
    return (await read_body(request, limits, aside, parse))[0][1]


READERS = [read_json, read_json_optional, parsed]
each_reader = pytest.mark.parametrize("read", READERS)


def bounds(size: int = 1000, depth: int = 64, values: int = 100_000) -> BodyLimits:
    return BodyLimits(bytes=size, depth=depth, values=values)


async def take(body: bytes | Iterable[bytes], headers: Any = None, *, read: Any = read_json, **limits: int) -> bytes:
    receive = Script([body] if isinstance(body, bytes) else body)
    request = Request(http_scope("POST", "/x", JSON if headers is None else headers), receive)
    return bytes(await read(request, bounds(**limits), Aside()))


async def refused(body: bytes | Iterable[bytes], headers: Any = None, **more: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await take(body, headers, **more)
    return caught.value


@each_reader
@pytest.mark.parametrize(
    "body",
    [b"{}", b' {"a": 1} ', '{"ä":"😀"}'.encode(), rb'{"a":"\ud83d\ude00"}', rb'{"a":"\\ud800"}', b'{"a":1e30}'],
)
async def test_an_object_comes_through_as_the_bytes_that_were_sent(read: Any, body: bytes) -> None:
    assert await take(body, read=read) == body


async def test_chunks_are_joined() -> None:
    assert await take([b'{"a', b"", b'":', b"1}"]) == b'{"a":1}'


INVALID = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "cut": (b'{"a":', "not valid JSON"),
    "words": (b"hello", "not valid JSON"),
    "single quotes": (b"{'a':1}", "not valid JSON"),
    "trailing comma": (b'{"a":1,}', "not valid JSON"),
    "two documents": (b"{}{}", "not valid JSON"),
    "NUL at the end": (b"{}\x00", "not valid JSON"),
    "control character": (b'{"a":"\x01"}', "not valid JSON"),
    "bad escape": (rb'{"a":"\x"}', "not valid JSON"),
    "leading zero": (b'{"a":01}', "not valid JSON"),
    "NaN": (b'{"a":NaN}', "NaN and Infinity"),
    "Infinity": (b'{"a":Infinity}', "NaN and Infinity"),
    "-Infinity": (b'{"a":[-Infinity]}', "NaN and Infinity"),
    "high half": (rb'{"a":"\ud83d"}', "surrogate"),
    "high half, text": (rb'{"a":"\ud83dxxxxxxxx"}', "surrogate"),
    "low half": (rb'{"a":"\ude00"}', "surrogate"),
    "two high halves": (rb'{"a":"\ud83d\ud83d"}', "surrogate"),
    "half in a key": (rb'{"\uD83D":1}', "surrogate"),
    "half deep inside": (rb'{"a":[{"b":"\udfff"}]}', "surrogate"),
    "half as raw bytes": (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
    "not UTF-8": (b'{"a":"\xff"}', "UTF-8"),
    "not UTF-8 in an unknown place": (b'{"a":{"b":["\xc3"]}}', "UTF-8"),
    "latin-1": ('{"a":"ü"}'.encode("latin-1"), "UTF-8"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf{}", "byte order mark"),
    "array": (b"[]", "object"),
    "string": (b'"a"', "object"),
    "number": (b"1", "object"),
    "null": (b"null", "object"),
}


@pytest.mark.parametrize(("body", "word"), INVALID.values(), ids=INVALID.keys())
@pytest.mark.parametrize("read", [read_json, parsed])
async def test_what_is_not_one_json_object_is_400_invalid_json_with_the_likely_cause(
    read: Any, body: bytes, word: str
) -> None:
    error = await refused(body, read=read)
    assert (error.status, error.code, error.param) == (400, "invalid_json", None)
    assert word in error.message


def nested(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)


@each_reader
@pytest.mark.parametrize("depth", [4, 64, 512])
async def test_depth_is_allowed_up_to_the_limit_and_400_beyond(read: Any, depth: int) -> None:
    assert await take(nested(depth), size=10**6, depth=depth, read=read)
    error = await refused(nested(depth + 1), size=10**6, depth=depth, read=read)
    assert (error.status, error.code) == (400, "invalid_json")
    assert "limits.json_depth" in error.message


@pytest.mark.parametrize("body", [nested(300_000), b'{"a":' + b"[" * 10**6, b"[" * 10**6, b'{"a":' * 10**5])
@pytest.mark.parametrize("read", [read_json, parsed])
async def test_any_depth_is_a_bad_request_and_never_a_crash(read: Any, body: bytes) -> None:
    error = await refused(body, size=10**7, read=read)
    assert (error.status, error.code) == (400, "invalid_json")


@each_reader
async def test_brackets_at_the_end_of_texts_hide_no_depth(read: Any) -> None:
    """Each level is an array with a text and an object, whose bracket must not look like the neighbour of another."""
    deep = b'{"a":' + b'["}",{"a":' * 40 + b'"' + b"x" * 5000 + b'"' + b"}]" * 40 + b"}"
    assert (await refused(deep, size=10**6, depth=64, read=read)).code == "invalid_json"
    assert await take(deep, size=10**6, depth=81, read=read)


async def test_brackets_in_texts_and_neighbours_do_not_count_as_depth() -> None:
    wide = b'{"a":[' + b",".join([b'{"[[{":"]\\"[[\\\\","b":[]}'] * 500) + b"]}"
    assert await take(wide, size=10**6, depth=4) == wide
    assert (await refused(wide, size=10**6, depth=2)).code == "invalid_json"


TREES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('"\\[]{},:a\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\[]{}b', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def depth_of(tree: object) -> int:
    inner: Iterable[object] = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return (1 if isinstance(tree, dict | list) else 0) + max(map(depth_of, inner), default=0)


@given(TREES)
def test_the_depth_of_a_document_is_that_of_its_tree(tree: object) -> None:
    marks = body_module._marks(msgspec.json.encode(tree), 1000)
    assert marks is not None
    assert body_module._depth(marks) == depth_of(tree)


def values_in(tree: object) -> int:
    """Commas and opening brackets."""
    if not isinstance(tree, dict | list):
        return 0
    inner = list(tree.values()) if isinstance(tree, dict) else tree
    return max(len(inner), 1) + sum(map(values_in, inner))


@given(TREES)
def test_values_are_counted_as_in_the_tree_and_never_inside_of_a_text(tree: object) -> None:
    body, exact = msgspec.json.encode({"a": tree}), values_in({"a": tree})
    body_module.check_object(body, bounds(values=exact))
    if exact > 1:
        with pytest.raises(ClientError, match=r"limits\.json_values"):
            body_module.check_object(body, bounds(values=exact - 1))


HOSTILE = {
    "empty arrays": b'{"tools":[' + b",".join([b"[]"] * 200_000) + b"]}",
    "arrays with brackets as text": b'{"tools":[' + b",".join([b'["["]'] * 200_000) + b"]}",
    "numbers": b'{"tools":[' + b",".join([b"1"] * 200_000) + b"]}",
    "texts": b'{"tools":[' + b",".join([b'""'] * 500_000) + b"]}",
    "members": b'{"tools":{' + b",".join([b'"%d":1' % n for n in range(200_000)]) + b"}}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_too_many_values_are_400_with_the_field_the_limit_and_the_setting(body: bytes) -> None:
    error = await refused(body, size=10**7)
    assert (error.status, error.code, error.param) == (400, "too_many_values", "tools")
    assert "100000" in error.message
    assert "limits.json_values" in error.message


async def test_too_many_unknown_fields_are_400_without_a_param() -> None:
    body = b'{"a":1' + b"".join(b',"%d":1' % n for n in range(200_000)) + b"}"
    error = await refused(body, size=10**7)
    assert (error.code, error.param) == ("too_many_values", None)


async def test_commas_and_brackets_in_a_text_are_no_values() -> None:
    body = msgspec.json.encode({"a": 'x = [1, {2, 3}, "[,"], \\' * 50_000})
    assert await take(body, size=10**7) == body


@each_reader
async def test_a_body_over_the_limit_is_413_as_soon_as_it_is_met(read: Any) -> None:
    receive = Script([b" " * 600] * 10)
    request = Request(http_scope("POST", "/x", JSON), receive)
    with pytest.raises(ClientError) as caught:
        await read(request, bounds(), Aside())
    assert (caught.value.status, caught.value.code) == (413, "payload_too_large")
    assert "limits.body_bytes" in caught.value.message
    assert receive.reads == 2


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert len(await take(b"{" + b" " * 998 + b"}")) == 1000


@each_reader
@pytest.mark.parametrize(
    "value",
    [
        "application/json",
        "Application/JSON",
        "application/json;",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json ; v=1",
        "application/vnd.api+json",
    ],
)
async def test_json_content_types_are_taken(read: Any, value: str) -> None:
    assert await take(b"{}", {"content-type": value}, read=read) == b"{}"


@each_reader
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/jsonp"},
        {"content-type": "text/plain; application/json"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json; charset=utf-16"},
        [("content-type", "text/plain"), ("content-type", "application/json")],
        {**JSON, "content-encoding": "gzip"},
    ],
    ids=str,
)
async def test_other_content_types_are_415(read: Any, headers: Any) -> None:
    error = await refused(b"{}", headers, read=read)
    assert (error.status, error.code) == (415, "unsupported_media_type")


async def test_a_wrong_content_type_is_refused_before_a_byte_is_read() -> None:
    receive = Script([b"{}"])
    with pytest.raises(ClientError):
        await read_json(Request(http_scope("POST", "/x", {}), receive), bounds(9, 4), Aside())
    assert receive.reads == 0


@pytest.mark.parametrize("headers", [{}, JSON, {"content-type": "text/plain"}], ids=str)
async def test_a_post_without_a_body_is_an_empty_object_where_the_body_is_optional(headers: Any) -> None:
    assert await take(b"", headers, read=read_json_optional) == b"{}"


@each_reader
async def test_a_client_that_leaves_in_the_middle_is_no_error_of_ours(read: Any) -> None:
    receive = Script([b'{"a"', b":1}"])
    receive.messages.pop()
    with pytest.raises(ClientDisconnect):
        await read(Request(http_scope("POST", "/x", JSON), receive), bounds(99, 4), Aside())


async def test_request_timeout_is_408_for_a_body_that_never_arrives() -> None:
    limits = BodyLimits(bytes=99, depth=4, seconds=0.01)

    async def never() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(ClientError) as caught:
        await read_json(Request(http_scope("POST", "/x", JSON), never), limits, Aside())
    assert (caught.value.status, caught.value.code) == (408, "request_timeout")
