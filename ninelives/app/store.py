"""Opens the store. Owns: which backend the settings name, what a process needs to use it (directory lock or replica
identity, notifier, secret, homes of workspaces), its bounds in bytes, how long to wait for a database that is down, and
where the time and the ids of a server come from. PostgreSQL is imported here, only where the settings name it.
Refuses to know: engines, HTTP and the command line."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ninelives.app.errors import ConfigError, StartError
from ninelives.app.known_secrets import without_secrets
from ninelives.app.settings import Settings, without_password
from ninelives.core.errors import Damaged
from ninelives.journal.base import Store
from ninelives.journal.move import Carrier, InUse
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.sqlite.load import database_in
from ninelives.journal.sqlite.lock import DirectoryLock
from ninelives.journal.sqlite.maintenance import MOVED
from ninelives.journal.sqlite.space import Space
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Gone, Judge, NewerStore, Report, StoreUnavailable
from ninelives.models.net.kept import ConnectionHolder
from ninelives.observe.log import Log
from ninelives.tools.homes import Homes, home_of
from ninelives.tools.quota import QuotaLimits, disk_bytes
from ninelives.tools.workspace import workspace_name

if TYPE_CHECKING:
    from ninelives.journal.postgres.move import PostgresCarrier
    from ninelives.journal.postgres.store import Identity, PostgresStore

RETRY_S = 0.5
LEAST_TOTAL_BYTES = 1 << 30
"""A very small disk is bounded by store.low_water_bytes instead."""
RESERVE_BYTES = 1 << 30
SETTLE_S = 60.0
"""How long a tool call waits for a database that is down. Then the model gets an error."""
SKEW_MS = 5_000
"""Clocks that differ by more than this are logged."""


class ServerStore(Store, Protocol):
    """A store with what a server needs besides: a way to close it."""

    async def close(self) -> None:
        """Close its files or connections."""
        ...


class ProcessRole(Struct, frozen=True):
    """What a process does, and its name."""

    serves: bool = True
    """False for a worker: it executes runs and answers only /health."""
    name: str = ""
    """Its name in health and in logs of other replicas."""
    connections: ConnectionHolder | None = None
    """Makes connections to models that outlive this process."""
    adopted: frozenset[Gone] = frozenset()
    """Runs (owner, run) whose callers waited at the process before, and are still connected."""
    before: tuple[str, ...] = ()
    """The names under which processes before held claims, where a supervisor has seen their end."""
    holder: str = ""
    """The name under which this process holds claims in a shared store. Empty: a new one."""


class StoreDown(StartError):
    """The database cannot be used. The text says which one and why, without a password."""


class OpenedStore(Struct):
    """An open store, and what belongs to it."""

    store: ServerStore
    notifier: LocalNotifier
    secret: bytes
    holder: str
    """The name under which this process holds claims."""
    health: dict[str, object]
    """What /health/detailed says of the store."""
    steady_ms: Callable[[], int]
    """The clock by which things expire, the same for the store and the engine."""
    lock: DirectoryLock | None = None
    homes: Homes | None = None
    """None: all workspaces are on this machine."""

    async def close(self) -> None:
        """Close the store and release the data directory."""
        await self.store.close()
        if self.lock is not None:
            self.lock.release()


async def open_store(settings: Settings, role: ProcessRole, log: Log) -> OpenedStore:
    """Open the store that the settings name. The data directory must exist."""
    return await (_open_postgres(settings, role, log) if settings.store.shared else _open_sqlite(settings, log))


def now_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


def steady_clock(ahead_ms: int = 0) -> Callable[[], int]:
    """The wall clock of the start, continued by the monotonic clock. Setting the system clock while the server runs
    neither expires things early nor keeps them for ever (P12). `ahead_ms`: how far the shared clock of all replicas is
    ahead of this machine's."""
    begun = time.monotonic_ns() // 1_000_000
    wall = now_ms() + ahead_ms
    return lambda: wall + time.monotonic_ns() // 1_000_000 - begun


def id_maker() -> Callable[[], str]:
    """Makes ids of 24 random characters: 96 bits. One system call serves 256 ids, because each call releases the
    interpreter and waits to get it back. That cost 70 us per id with a busy store, and a request needs three ids."""
    pool: list[str] = []
    os.register_at_fork(after_in_child=pool.clear)

    def new_id() -> str:
        if not pool:
            fresh = secrets.token_hex(12 * 256)
            pool.extend(fresh[place : place + 24] for place in range(0, len(fresh), 24))
        return pool.pop()

    return new_id


def new_code() -> str:
    """An approval code that a person can type: 30 bits, valid for its owner only."""
    return "".join(secrets.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(6))


async def _open_sqlite(settings: Settings, log: Log) -> OpenedStore:
    data = settings.server.data_path
    if (data / MOVED).exists():
        raise ConfigError(
            f"the store in {data} was moved to PostgreSQL. Name that database with --store. To start with an empty "
            f"store here instead, remove {data / MOVED}."
        )
    lock = DirectoryLock(data)
    steady_ms = steady_clock()
    space = Space(data, settings.store.low_water_bytes, settings.store.ballast_bytes)
    try:
        store = await SqliteStore.open_at(database_in(data), settings.store.durability, steady_ms, space)
    except BaseException:
        lock.release()
        raise
    if store.lost:
        log.warning("power_loss", entries=store.lost, note="the machine lost what was not on its disk yet")
    return OpenedStore(
        store=store,
        notifier=LocalNotifier(),
        secret=secret_from(directory_secret(data)),
        holder=secrets.token_hex(12),
        health={"kind": "sqlite", "durability": settings.store.durability},
        steady_ms=steady_ms,
        lock=lock,
    )


async def _open_postgres(settings: Settings, role: ProcessRole, log: Log) -> OpenedStore:
    """The data directory then holds only workspaces. Replicas may share it, so it is not locked."""
    with _asyncpg_needed():
        from ninelives.journal.postgres.store import Identity

    notifier, holder = LocalNotifier(), role.holder or secrets.token_hex(12)
    home = await asyncio.to_thread(home_of, settings.server.data_path / "workspaces")
    identity = Identity(holder, role.name or socket.gethostname(), settings.server.worker, role.before)
    store = await _connect(settings, identity, notifier, log)
    try:
        secret = secret_from(await store.secret())
        asked = time.time_ns()
        there = await store.now_ms()
        ahead_ms = there - (asked + time.time_ns()) // 2_000_000
    except BaseException:
        await store.close()
        raise
    health: dict[str, object] = {
        "kind": "postgres",
        "durability": "database",
        "url": without_password(settings.store.url),
        "replica": role.name,
        "holder": holder,
        "home": home,
    }
    if abs(ahead_ms) > SKEW_MS:
        log.warning("clocks_differ", database_ahead_s=round(ahead_ms / 1000, 1), note="times in events will not agree")
    homes = Homes(home, _RetryingPeers(store).settle)
    return OpenedStore(store, notifier, secret, holder, health, steady_clock(ahead_ms), homes=homes)


async def _connect(settings: Settings, identity: Identity, notifier: LocalNotifier, log: Log) -> PostgresStore:
    """Connect to PostgreSQL. Waits store.wait_s for a database that is down, then raises StoreDown."""
    from ninelives.journal.postgres.connections import Wiring
    from ninelives.journal.postgres.move import refuse_moved
    from ninelives.journal.postgres.store import PostgresStore

    chosen = settings.store
    wiring = Wiring(chosen.lanes, chosen.pool, chosen.direct_url, chosen.prepared)
    deadline, logged = time.monotonic() + chosen.wait_s, False
    while True:
        try:
            with permitted(chosen.url):
                await refuse_moved(chosen.direct_url or chosen.url)
                return await PostgresStore.open_at(chosen.url, identity, notifier, chosen.lease_s, wiring)
        except (InUse, NewerStore, Damaged, NotPermitted) as error:  # waiting would not help
            raise StoreDown(f"{without_password(chosen.url)}: {error}") from error
        except StoreUnavailable as error:
            why = without_secrets(str(error), chosen.url, chosen.direct_url)
            if not error.passing or time.monotonic() >= deadline:
                raise StoreDown(
                    f"{without_password(chosen.url)}: {why}. Check store.url, and that the database is running "
                    "(--wait-store says how long to wait for it)."
                ) from error
            if not logged:
                log.warning("store_awaited", url=without_password(chosen.url), why=why, seconds=chosen.wait_s)
                logged = True
            await asyncio.sleep(RETRY_S)


class NotPermitted(Exception):
    """The role in the URL lacks a permission that the store needs. The text says what to do."""


@contextmanager
def permitted(*places: str) -> Iterator[None]:
    """Turn a missing privilege in one of these databases into NotPermitted."""
    if not any(map(is_postgres, places)):
        yield
        return
    with _asyncpg_needed():
        from asyncpg import InsufficientPrivilegeError

    try:
        yield
    except InsufficientPrivilegeError as error:
        raise NotPermitted(
            f"{error}. The role needs a database of its own: ALTER DATABASE ... OWNER TO ..., "
            "or GRANT ALL ON SCHEMA public TO ... in it. Or upgrade the schema with another role that may "
            "(ninelives store upgrade)."
        ) from error


@contextmanager
def _asyncpg_needed() -> Iterator[None]:
    """Around imports of the store on PostgreSQL: ConfigError where its driver is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError("a store on PostgreSQL needs the package asyncpg. Run: pip install asyncpg") from error


def carrier_of(settings: Settings, place: str) -> Carrier:
    """One side of a move: a database URL or a data directory."""
    if not is_postgres(place):
        from ninelives.journal.sqlite.move import SqliteCarrier

        return SqliteCarrier(Path(place).expanduser())
    return postgres_carrier(settings, place)


def postgres_carrier(settings: Settings, url: str) -> PostgresCarrier:
    """A database that `migrate` reads or fills. It bypasses a configured pooler."""
    with _asyncpg_needed():
        from ninelives.journal.postgres.move import PostgresCarrier

    return PostgresCarrier(_direct(settings, url))


def _direct(settings: Settings, url: str) -> str:
    """The URL that bypasses the pooler, where `url` is the configured store and has one."""
    return settings.store.direct_url or url if url == settings.store.url else url


async def settle_workspaces(settings: Settings, data: Path, url: str, lived: Iterable[tuple[str, str]]) -> int:
    """Record the home of each workspace of a data directory whose store moved to a database. The files stay where they
    are. `lived` are the (owner, session) pairs that had runs. Returns the number of workspaces."""
    top = data / "workspaces"
    named = {(owner, name) for owner, session in lived for name in (owner, f"{owner}/{session}")}
    there = sorted(each for each in named if (top / workspace_name(each[1])).is_dir())
    if there:
        with _asyncpg_needed():
            from ninelives.journal.postgres.move import settle_all

        await settle_all(_direct(settings, url), there, home_of(top))
    return len(there)


async def describe_postgres(settings: Settings) -> str:
    """One line about the configured database. Raises StoreUnavailable."""
    with _asyncpg_needed():
        from ninelives.journal.postgres.move import describe

    url = settings.store.url
    return f"{without_password(url)}: {await describe(_direct(settings, url))}"


async def upgrade_postgres(settings: Settings) -> tuple[int, int]:
    """Bring the schema of the configured database up to date; its number before and after. Raises StoreUnavailable,
    NewerStore and NotPermitted."""
    with _asyncpg_needed():
        from ninelives.journal.postgres.connections import Wiring
        from ninelives.journal.postgres.schema import upgrade

    chosen = settings.store
    with permitted(chosen.url):
        return await upgrade(_direct(settings, chosen.url), Wiring(chosen.lanes, chosen.pool, chosen.direct_url))


async def check_postgres(settings: Settings, judge: Judge, on_progress: Callable[[int, int], None]) -> Report:
    """Check every run in the database. Raises StoreUnavailable and NotPermitted."""
    with _asyncpg_needed():
        from ninelives.journal.postgres.move import check

    url = _direct(settings, settings.store.url)
    with permitted(url):
        return await check(url, judge, on_progress)


def is_postgres(place: str) -> bool:
    """True for the URL of a database, False for a directory."""
    return place.startswith(("postgresql://", "postgres://"))


class _RetryingPeers:
    """Peers.settle with retries: a tool call waits for a database that is down for a moment."""

    def __init__(self, store: ServerStore) -> None:
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


def directory_secret(data: Path) -> bytes:
    """The secret stored in a data directory. It is created at first use."""
    path = data / "secret"
    with suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def secret_from(kept: bytes) -> bytes:
    """The key for derived session names and sealed items, derived from the stored secret."""
    return hashlib.sha256(kept).digest()


def total_bytes(settings: Settings) -> int:
    """store.total_bytes. `auto` is half of the disk; for PostgreSQL no bound, because its disk is not ours."""
    chosen = settings.store.total_bytes
    if chosen != "auto":
        return chosen
    return 0 if settings.store.shared else max(LEAST_TOTAL_BYTES, disk_bytes(settings.server.data_path) // 2)


def store_bytes(settings: Settings) -> int | None:
    """The size of the database files; None for a shared store, whose files are elsewhere."""
    if settings.store.shared:
        return None
    database = database_in(settings.server.data_path)
    files = database.parent.glob(f"{database.name}*")
    return sum(each.stat().st_size for each in files if each.is_file())


def quota_limits(settings: Settings) -> QuotaLimits:
    """The bounds of workspaces. Tools leave free what the store needs, and room for what they write before they are
    stopped."""
    low = settings.store.low_water_bytes
    return QuotaLimits(
        workspace_bytes=settings.tools.workspace_bytes,
        owner_bytes=settings.store.owner_bytes,
        total_bytes=total_bytes(settings),
        reserve_bytes=low + min(RESERVE_BYTES, disk_bytes(settings.server.data_path) // 20) if low else 0,
    )
