"""Whose address counts where a request came through proxies."""

from __future__ import annotations

import pytest

from ninelives.http.edge.proxies import HOPS, TrustedProxies

ONE = ("127.0.0.1",)
NET = ("127.0.0.1", "10.0.0.0/8", "::1")


def client(trusted: tuple[str, ...], peer: str, forwarded_for: str | None = None, forwarded: str | None = None) -> str:
    headers = [] if forwarded_for is None else [(b"x-forwarded-for", forwarded_for.encode("latin-1"))]
    headers += [] if forwarded is None else [(b"forwarded", forwarded.encode("latin-1"))]
    scope = {"client": (peer, 1) if peer else None, "headers": headers}
    return TrustedProxies.of(trusted).client_of(scope)


@pytest.mark.parametrize(
    ("trusted", "peer", "named", "expected"),
    [
        ((), "127.0.0.1", "6.6.6.6", "127.0.0.1"),
        (ONE, "9.9.9.9", "6.6.6.6", "9.9.9.9"),
        (ONE, "127.0.0.1", None, "127.0.0.1"),
        (ONE, "127.0.0.1", "6.6.6.6", "6.6.6.6"),
        (ONE, "127.0.0.1", "6.6.6.6, 7.7.7.7", "7.7.7.7"),
        (NET, "127.0.0.1", "6.6.6.6, 7.7.7.7, 10.1.2.3", "7.7.7.7"),
        (NET, "127.0.0.1", "10.1.2.3", "10.1.2.3"),
        (NET, "::ffff:127.0.0.1", "7.7.7.7:4711", "7.7.7.7"),
        (NET, "::1", "[2001:db8::1]:80", "2001:db8::1"),
        (NET, "::1", "2001:db8::1", "2001:db8::1"),
        (ONE, "127.0.0.1", "6.6.6.6, unknown", "127.0.0.1"),
        (ONE, "127.0.0.1", "", "127.0.0.1"),
        (ONE, "127.0.0.1", "\xff\x00,,;", "127.0.0.1"),
        (("unix",), "", "6.6.6.6", "6.6.6.6"),
        (("unix",), "127.0.0.1", "6.6.6.6", "127.0.0.1"),
        (ONE, "", "6.6.6.6", ""),
    ],
)
def test_only_what_trusted_proxies_wrote_is_believed(
    trusted: tuple[str, ...], peer: str, named: str | None, expected: str
) -> None:
    assert client(trusted, peer, named) == expected


def test_forwarded_is_read_where_there_is_no_x_forwarded_for() -> None:
    assert client(ONE, "127.0.0.1", None, 'for=6.6.6.6;proto=https, For="[2001:db8::1]:99";by=_x') == "2001:db8::1"
    assert client(ONE, "127.0.0.1", "7.7.7.7", "for=6.6.6.6") == "7.7.7.7"
    assert client((), "127.0.0.1", None, "for=6.6.6.6") == "127.0.0.1"


def test_a_long_list_is_read_from_its_end() -> None:
    assert client(NET, "127.0.0.1", ",".join(["6.6.6.6"] + ["10.0.0.1"] * 5000)) == "10.0.0.1"
    assert client(NET, "127.0.0.1", ",".join(["6.6.6.6"] + ["10.0.0.1"] * (HOPS - 1))) == "6.6.6.6"
