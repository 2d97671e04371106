"""Rules of ninelives/http/edge/keys.py (requirement A4)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Any, cast

import pytest

from ninelives.http.edge import keys
from ninelives.http.edge.keys import Keyring, StoredKeys, missing_key, new_secret
from ninelives.journal.accounts.base import KeyRow
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.values import StoreUnavailable

SECRET = "ak_the-first-secret-0001"
OTHER = "ak_the-other-secret-0002"


@pytest.fixture
def ring() -> Keyring:
    ring = Keyring()
    ring.add(SECRET, "default", {"admin"})
    ring.add(OTHER, "anna", {"chat"})
    return ring


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  ", " Bearer"])
def test_a_known_secret_finds_its_key_whatever_the_case_of_the_scheme(ring: Keyring, scheme: str) -> None:
    key = ring.match([f"{scheme} {SECRET}".encode()])
    assert (key.owner, key.scopes) == ("default", frozenset({"admin"}))
    assert ring.match([f"{scheme} {OTHER}".encode()]).owner == "anna"


def test_a_key_is_named_by_the_first_eight_of_its_digest(ring: Keyring) -> None:
    assert ring.match([f"Bearer {SECRET}".encode()]).id == hashlib.sha256(SECRET.encode()).hexdigest()[:8]


REFUSED: dict[str, list[bytes]] = {
    "missing": [],
    "doubled": [f"Bearer {SECRET}".encode()] * 2,
    "doubled in one header": [f"Bearer {SECRET}, Bearer {SECRET}".encode()],
    "wrong": [b"Bearer ak_the-first-secret-0002"],
    "a prefix": [f"Bearer {SECRET[:-1]}".encode()],
    "longer": [f"Bearer {SECRET}x".encode()],
    "other case": [f"Bearer {SECRET.upper()}".encode()],
    "empty": [b""],
    "scheme only": [b"Bearer"],
    "scheme and space": [b"Bearer "],
    "no scheme": [SECRET.encode()],
    "other scheme": [b"Basic dXNlcjpwYXNz"],
    "no space": [f"Bearer{SECRET}".encode()],
    "quoted": [f'Bearer "{SECRET}"'.encode()],
    "control characters": [f"Bearer {SECRET}\x00".encode()],
    "line break": [f"Bearer {SECRET}\nBearer x".encode()],
    "not ASCII": ["Bearer ключ-ключ-ключ-ключ".encode()],
    "not even UTF-8": [b"Bearer \xff\xfe\xfd\xfc"],
    "overlong": [b"Bearer " + b"a" * 100_000],
    "sql": [b"Bearer ' OR 1=1 --"],
}


@pytest.mark.parametrize("headers", REFUSED.values(), ids=REFUSED.keys())
def test_every_other_credential_is_401_invalid_api_key(ring: Keyring, headers: list[bytes]) -> None:
    assert ring.match(headers) is None
    refused = missing_key(headers)
    assert (refused.status, refused.code) == (401, "invalid_api_key")
    assert "Authorization: Bearer" in refused.message
    assert SECRET not in refused.message


def test_an_empty_ring_lets_nobody_in() -> None:
    assert Keyring().match([f"Bearer {SECRET}".encode()]) is None


@pytest.mark.parametrize("secret", [SECRET, OTHER, "ak_nobody-knows-this-one"])
def test_known_and_unknown_secrets_are_compared_with_every_digest(
    ring: Keyring, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def watch(one: bytes, two: bytes) -> bool:
        compared.append((len(one), len(two)))
        return real(one, two)

    real = hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", watch)
    ring.match([f"Bearer {secret}".encode()])
    assert compared == [(32, 32), (32, 32)]


def test_the_ring_keeps_no_secret(ring: Keyring) -> None:
    assert SECRET not in repr(vars(ring))


def test_a_secret_cannot_change_hands(ring: Keyring) -> None:
    assert ring.add(SECRET, "default", {"admin"}).owner == "default"
    with pytest.raises(ValueError, match="already exists"):
        ring.add(SECRET, "mallory", {"admin"})
    assert ring.match([f"Bearer {SECRET}".encode()]).owner == "default"


class _Rows:
    """A shared store of keys that fails once, after a moment."""

    def __init__(self) -> None:
        self.reads = 0

    async def since(self, version: int) -> list[KeyRow]:
        self.reads += 1
        if self.reads == 2:
            await asyncio.sleep(0.01)
            raise StoreUnavailable("away", passing=True, away=True)
        return []


async def test_a_key_is_not_refused_on_a_read_of_the_keys_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait for the same read: one is told that the store is away, the others read by themselves."""
    monkeypatch.setattr("ninelives.http.edge.keys.RENEW_S", 0.05)
    rows = _Rows()
    stored = StoredKeys(cast(Any, rows), lambda: 0, cast(Any, None), LocalNotifier())
    await stored.renew()
    assert stored.doubts(None, [b"Bearer " + new_secret()[1].encode()]) and not stored.doubts(None, [b"Bearer other"])
    outcomes = await asyncio.gather(*(stored.confirm(None) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in outcomes].count(StoreUnavailable) == 1 and rows.reads >= 3
