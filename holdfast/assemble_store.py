"""Where the store is chosen. Owns: which one the settings mean, what a process needs to use it (directory lock or
identity, bell, secret, homes of workspaces), and the patience with a database that is not there yet. Imports of
PostgreSQL happen here and only where it is asked for. Only assemble.py and the commands that move stores import it.
Refuses to know: engines, HTTP and the command line."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from holdfast.config import Settings, without_password
from holdfast.config_keys import ConfigError
from holdfast.core.errors import Damaged
from holdfast.journal.base import NewerStore, Sessions, Store, StoreUnavailable
from holdfast.journal.base_care import Judge, Report
from holdfast.journal.base_carry import Carrier, InUse
from holdfast.journal.bell import LocalBell
from holdfast.journal.lock import DirectoryLock
from holdfast.journal.space import Space
from holdfast.journal.sqlite import SqliteStore
from holdfast.journal.sqlite_care import MOVED
from holdfast.observe.log import Log
from holdfast.tools.homes import Homes, home_of
from holdfast.tools.workspace import workspace_name

if TYPE_CHECKING:
    from holdfast.journal.postgres import PostgresStore
    from holdfast.journal.postgres_carry import PostgresCarrier

RETRY_S = 0.5
SETTLE_S = 60.0
"""How long a tool waits for a database that is away, before the model is told."""


class Backing(Store, Protocol):
    """A store as the composition root has it."""

    @property
    def sessions(self) -> Sessions:
        """Its sessions."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


SKEW_MS = 5_000
"""A machine whose clock is farther off than this should be looked at."""


class Role(Struct, frozen=True):
    """What a process is for."""

    serves: bool = True
    """It answers requests; else it only carries out runs, and shows its health."""
    name: str = ""
    """How other replicas and people speak of it."""


class StoreDown(Exception):
    """The database cannot be used; the text says which and why, without a password."""


class Shelf(Struct):
    """A store that is open, and what belongs to it."""

    store: Backing
    bell: LocalBell
    secret: bytes
    holder: str
    shown: dict[str, object]
    """What health says of it."""
    lock: DirectoryLock | None = None
    homes: Homes | None = None
    """None: all workspaces are here."""
    ahead_ms: int = 0
    """How far the store's clock is ahead of this machine's, where the machines that share it must agree."""

    async def close(self) -> None:
        """Let go."""
        await self.store.close()
        if self.lock is not None:
            self.lock.release()


async def open_shelf(settings: Settings, role: Role, log: Log) -> Shelf:
    """The store that the settings mean. The data directory is there."""
    log.secrets.update(secrets_in(settings.store.url, settings.store.direct_url))
    return await (_postgres(settings, role, log) if settings.store.shared else _sqlite(settings, log))


async def _sqlite(settings: Settings, log: Log) -> Shelf:
    data = settings.server.data_path
    if (data / MOVED).exists():
        raise ConfigError(
            f"the store in {data} was moved to PostgreSQL: name it with --store. To begin an empty one here instead, "
            f"remove {data / MOVED}."
        )
    lock = DirectoryLock(data)
    space = Space(data, settings.store.low_water_bytes, settings.store.ballast_bytes)
    try:
        store = await SqliteStore.open_at(data / "holdfast.db", settings.store.durability, time.monotonic, space=space)
    except BaseException:
        lock.release()
        raise
    if store.lost:
        log.warning("power_loss", entries=store.lost, note="the machine lost what was not on its disk yet")
    shown: dict[str, object] = {"kind": "sqlite", "durability": settings.store.durability}
    return Shelf(store, LocalBell(), secret_from(directory_secret(data)), secrets.token_hex(12), shown, lock)


async def _postgres(settings: Settings, role: Role, log: Log) -> Shelf:
    """The data directory holds only workspaces then, and several replicas may share it: there is no lock on it."""
    bell, holder = LocalBell(), secrets.token_hex(12)
    home = await asyncio.to_thread(home_of, settings.server.data_path / "workspaces")
    store = await connected(
        settings, Whom(holder, role.name or socket.gethostname(), settings.server.worker), bell, log
    )
    try:
        secret = secret_from(await store.secret())
        asked = time.time_ns()
        there = await store.now_ms()
        ahead_ms = there - (asked + time.time_ns()) // 2_000_000
    except BaseException:
        await store.close()
        raise
    shown: dict[str, object] = {
        "kind": "postgres",
        "durability": "database",
        "url": without_password(settings.store.url),
        "replica": role.name,
        "holder": holder,
        "home": home,
    }
    if abs(ahead_ms) > SKEW_MS:
        log.warning("clocks_differ", database_ahead_s=round(ahead_ms / 1000, 1), note="times in events will not agree")
    return Shelf(store, bell, secret, holder, shown, homes=Homes(home, _Settling(store).settle), ahead_ms=ahead_ms)


class Whom(Struct, frozen=True):
    """As whom a process joins a database."""

    holder: str
    name: str
    works: bool


async def connected(settings: Settings, whom: Whom, bell: LocalBell, log: Log) -> PostgresStore:
    """The store on PostgreSQL, once the database is there; StoreDown where it does not come within the patience."""
    carrying, journal, lines = _postgres_parts()
    chosen = settings.store
    identity = journal.Identity(whom.holder, whom.name, whom.works)
    wiring = lines.Wiring(chosen.lanes, chosen.pool, chosen.direct_url, chosen.prepared)
    deadline, told = time.monotonic() + chosen.wait_s, False
    while True:
        try:
            with permitted(chosen.url):
                await carrying.refuse_moved(chosen.direct_url or chosen.url)
                store: PostgresStore = await journal.PostgresStore.open_at(
                    chosen.url, identity, bell, chosen.lease_s, wiring
                )
            return store
        except (InUse, NewerStore, Damaged, NotPermitted) as error:  # no use to wait
            raise StoreDown(f"{without_password(chosen.url)}: {error}") from error
        except StoreUnavailable as error:
            why = without_secrets(str(error), chosen.url, chosen.direct_url)
            if not error.passing or time.monotonic() >= deadline:
                raise StoreDown(
                    f"{without_password(chosen.url)}: {why}. Check store.url, and that the database is running "
                    "(--wait-store says how long to wait for it)."
                ) from error
            if not told:
                log.warning("store_awaited", url=without_password(chosen.url), why=why, seconds=chosen.wait_s)
                told = True
            await asyncio.sleep(RETRY_S)


class NotPermitted(Exception):
    """The role in the URL may not do in its database what a store needs; the text says what to do."""


@contextmanager
def permitted(*places: str) -> Iterator[None]:
    """Raises NotPermitted for what a role may not do in one of these places."""
    if not any(map(is_postgres, places)):
        yield
        return
    _postgres_parts()
    from asyncpg import InsufficientPrivilegeError

    try:
        yield
    except InsufficientPrivilegeError as error:
        raise NotPermitted(
            f"{error}. The role needs a database of its own: ALTER DATABASE ... OWNER TO ..., "
            "or GRANT ALL ON SCHEMA public TO ... in it."
        ) from error


def _postgres_parts() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules of the store on PostgreSQL; ConfigError where its driver is not installed."""
    try:
        from holdfast.journal import postgres, postgres_carry, postgres_lines
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError("a store on PostgreSQL needs asyncpg: pip install 'holdfast[postgres]'") from error
    return postgres_carry, postgres, postgres_lines


def carrier_of(settings: Settings, place: str) -> Carrier:
    """One side of a move: a URL, or a data directory."""
    if not is_postgres(place):
        from holdfast.journal.sqlite_carry import SqliteCarrier

        return SqliteCarrier(Path(place).expanduser())
    return postgres_carrier(settings, place)


def postgres_carrier(settings: Settings, url: str) -> PostgresCarrier:
    """A database, to be read or filled; past a pooler where one is configured."""
    carrying, _, _ = _postgres_parts()
    chosen = settings.store
    made: PostgresCarrier = carrying.PostgresCarrier(chosen.direct_url or url if url == chosen.url else url)
    return made


async def settle_workspaces(settings: Settings, data: Path, url: str, lived: Iterable[tuple[str, str]]) -> int:
    """The workspaces of a data directory stay where they are when its store moves to a database: that knows their home
    from then on. `lived` are the (owner, session) that had runs; how many workspaces there were."""
    top = data / "workspaces"
    named = {(owner, name) for owner, session in lived for name in (owner, f"{owner}/{session}")}
    there = sorted(each for each in named if (top / workspace_name(each[1])).is_dir())
    if there:
        carrying, _, _ = _postgres_parts()
        chosen = settings.store
        direct = chosen.direct_url if url == chosen.url and chosen.direct_url else url
        await carrying.settle_all(direct, there, home_of(top))
    return len(there)


async def describe_postgres(settings: Settings) -> str:
    """What database it is. Raises StoreUnavailable."""
    carrying, _, _ = _postgres_parts()
    said: str = await carrying.describe(settings.store.direct_url or settings.store.url)
    return f"{without_password(settings.store.url)}: {said}"


async def check_postgres(settings: Settings, judge: Judge, told: Callable[[int, int], None]) -> Report:
    """Look through the database. Raises StoreUnavailable, and NotPermitted."""
    _postgres_parts()
    from holdfast.journal.postgres_care import check

    url = settings.store.direct_url or settings.store.url
    with permitted(url):
        return await check(url, judge, told)


def is_postgres(place: str) -> bool:
    """Is it a database, or a directory?"""
    return place.startswith(("postgresql://", "postgres://"))


class _Settling:
    """Peers.settle for tools: a database that is away for a moment is no reason to refuse a call."""

    def __init__(self, store: Backing) -> None:
        self._store = store

    async def settle(self, owner: str, name: str, home: str) -> str:
        """See Peers.settle."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            try:
                return await self._store.peers.settle(owner, name, home)
            except StoreUnavailable as error:
                if not error.passing or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(RETRY_S)


def secrets_in(*urls: str) -> set[str]:
    """The passwords in URLs, as they are written and as they are meant. Very short ones are left out: nearly every line
    would have them."""
    found: set[str] = set()
    for url in filter(None, urls):
        with suppress(ValueError):
            parts = urlsplit(url)
            given: Sequence[str | None] = [parts.password, *parse_qs(parts.query).get("password", [])]
            found |= {text for word in given if word for text in (word, unquote(word))}
        head, at, _ = url.partition("://")[2].rpartition("@")
        if at and ":" in head:  # a password with signs that a URL may not have: it must not be shown all the same
            found.add(head.partition(":")[2])
    return {word for word in found if len(word) >= 4}


def without_secrets(text: str, *urls: str) -> str:
    """A message of somebody else about URLs, fit to be shown."""
    for secret in sorted(secrets_in(*urls), key=len, reverse=True):
        text = text.replace(secret, "********")
    return text


def directory_secret(data: Path) -> bytes:
    """A data directory's own secret as it is kept, made at first use."""
    path = data / "secret"
    with suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def secret_from(kept: bytes) -> bytes:
    """The secret that names of derived sessions and sealed items depend on, from the one that a store keeps."""
    return hashlib.sha256(kept).digest()
