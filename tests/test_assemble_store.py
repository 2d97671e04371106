"""Which store the settings mean, and that its passwords stay secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ninelives.app import store as assemble_store
from ninelives.app.known_secrets import secrets_in, without_secrets
from ninelives.app.settings import without_password
from ninelives.app.store import _RetryingPeers, directory_secret, secret_from
from ninelives.journal.base import Alone
from ninelives.journal.values import StoreUnavailable

WORDS = [
    ("postgresql://me:hunter22@host/db", "hunter22"),
    ("postgresql://me:hunter%2F22@host/db", "hunter/22"),
    ("postgresql://me:hun/ter@22@host/db", "hun/ter@22"),
    ("postgresql://me:hunter22@/db?host=/run/postgresql", "hunter22"),
    ("postgresql://me@host/db?password=hunter22&sslmode=require", "hunter22"),
    ("postgresql://me:a:b:c:d@host:5432,other:5433/db", "a:b:c:d"),
    ("postgresql://[bad:hunter22@host/db", "hunter22"),
]


@pytest.mark.parametrize(("url", "word"), WORDS)
def test_a_password_is_never_shown_whatever_the_url_looks_like(url: str, word: str) -> None:
    assert word in secrets_in(url)
    assert word not in without_password(url)
    assert word not in without_secrets(f"cannot connect as {word}: {url}", url)


def test_a_url_without_a_password_hides_nothing() -> None:
    assert secrets_in("postgresql://me@host/db", "", "postgresql:///db?host=/tmp") == set()
    assert without_password("postgresql://me@host/db") == "postgresql://me@host/db"


def test_the_secret_of_a_directory_is_created_once_and_derived_for_the_store(tmp_path: Path) -> None:
    kept = directory_secret(tmp_path)
    assert len(kept) == 32 and directory_secret(tmp_path) == kept
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert secret_from(kept) != kept and len(secret_from(kept)) == 32


class Away(Alone):
    """The Peers of a database that fails a number of times."""

    def __init__(self, failures: int, *, passing: bool) -> None:
        self.left, self._passing = failures, passing

    async def settle(self, owner: str, place: str, home: str) -> str:
        self.left -= 1
        if self.left >= 0:
            raise StoreUnavailable("away", passing=self._passing)
        return home


def settling(peers: Away) -> _RetryingPeers:
    return _RetryingPeers(cast(Any, SimpleNamespace(peers=peers)))


async def test_a_tool_waits_for_a_database_that_is_away_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble_store, "RETRY_S", 0)
    assert await settling(Away(3, passing=True)).settle("ann", "ann", "here") == "here"


async def test_a_tool_does_not_wait_for_ever_or_for_a_permanent_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble_store, "SETTLE_S", 0)
    for peers in (Away(10**9, passing=True), Away(1, passing=False)):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(settling(peers).settle("ann", "ann", "here"), 60)
