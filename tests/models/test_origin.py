"""Rules of an upstream's address, and of the request that is made from it."""

from __future__ import annotations

import base64

import pytest

from ninelives.core.errors import AgentError
from ninelives.models.base import Ask
from ninelives.models.net.connection import Origin
from ninelives.models.openai import OpenAIModel, Upstream
from tests.models.raw import raw

ORIGINS = {
    "http://h": (False, "h", 80, "h", "", "", ""),
    "https://H/v1/": (True, "h", 443, "h", "/v1", "", ""),
    "http://h:80/v1": (False, "h", 80, "h:80", "/v1", "", ""),
    "https://h:8443": (True, "h", 8443, "h:8443", "", "", ""),
    "http://[::1]:8000/v1": (False, "::1", 8000, "[::1]:8000", "/v1", "", ""),
    "http://[2001:db8::2]/v1": (False, "2001:db8::2", 80, "[2001:db8::2]", "/v1", "", ""),
    "http://bücher.example/v1": (False, "xn--bcher-kva.example", 80, "xn--bcher-kva.example", "/v1", "", ""),
    "http://h/a b/ü%20/{x}": (False, "h", 80, "h", "/a%20b/%C3%BC%20/%7Bx%7D", "", ""),
    "http://h/v1?api-version=1&x=ä b": (False, "h", 80, "h", "/v1", "?api-version=1&x=%C3%A4%20b", ""),
    "http://h/v1#part": (False, "h", 80, "h", "/v1", "", ""),
    " http://h/v1\n": (False, "h", 80, "h", "/v1", "", ""),
    "http://me:p%40ss%3A1@h/v1": (False, "h", 80, "h", "/v1", "", "me:p@ss:1"),
    "http://me@h": (False, "h", 80, "h", "", "", "me:"),
    "http://:pw@h": (False, "h", 80, "h", "", "", ":pw"),
    "http://me:ü@h": (False, "h", 80, "h", "", "", "me:ü"),
}


@pytest.mark.parametrize("url", ORIGINS)
def test_an_address_is_read_from_its_url(url: str) -> None:
    *rest, login = ORIGINS[url]
    assert Origin.of(url) == Origin(*rest, base64.b64encode(str(login).encode()).decode())  # type: ignore[arg-type,call-arg]


@pytest.mark.parametrize(
    "url", ["", "h/v1", "ftp://h", "http://", "http:///v1", "http://h:x", "http://[::1", "//h", "http://a..b"]
)
def test_what_is_no_url_of_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Origin.of(url)


def test_a_request_has_the_path_of_the_url_before_its_place_and_the_query_behind() -> None:
    head = Origin.of("http://h:81/a/?v=2").request("POST", "/chat", {"A": "b"})
    assert head == b"POST /a/chat?v=2 HTTP/1.1\r\nHost: h:81\r\nA: b\r\n"


def test_credentials_of_the_url_are_sent_where_there_is_no_key() -> None:
    origin = Origin.of("http://me:secret@h")
    basic = b"Authorization: Basic " + base64.b64encode(b"me:secret")
    assert basic in origin.request("GET", "/", {})
    headed = origin.request("GET", "/", {"Authorization": "Bearer k"})
    assert b"Bearer k" in headed
    assert b"Basic" not in headed


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nX: b", "a\rX: b", "a\0"])
async def test_a_key_of_two_lines_is_an_error_and_no_second_header(value: str) -> None:
    async with raw() as up:
        model = OpenAIModel(Upstream(up.url, "m", value, retries=2))
        with pytest.raises(AgentError) as caught:
            await anext(model.stream(Ask(())))
        assert not await model.probe()
        await model.close()
        assert (caught.value.code, up.peers) == ("upstream_auth", [])
        assert value not in caught.value.message
