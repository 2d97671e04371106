"""The journal on one machine, in SQLite. Owns: Journal, Catalog, Pending, Deliveries and Peers over one database.
Refuses to know: threads, files and sealing (database.py), and what an event means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import apsw
import msgspec
from msgspec.structs import astuple, replace

from ninelives.core import admission
from ninelives.core.spec import Resolved
from ninelives.journal.accounts.sqlite import SqliteAudit, SqliteKeys
from ninelives.journal.base import Alone
from ninelives.journal.fair import FAIR, Fairness
from ninelives.journal.sqlite import rows as run_rows
from ninelives.journal.sqlite.conversations import SqliteConversations, SqliteSessions
from ninelives.journal.sqlite.database import Durability, SqliteDatabase
from ninelives.journal.sqlite.rows import SQL
from ninelives.journal.sqlite.segments import read_segment
from ninelives.journal.sqlite.space import Space
from ninelives.journal.sqlite.upkeep import SqliteLedger, SqliteUpkeep
from ninelives.journal.values import (
    MAX_GRANTS,
    Attached,
    Claim,
    FirstRecord,
    Gone,
    Grant,
    HeldRun,
    Opened,
    Opening,
    Query,
    Record,
    RunRow,
    Signal,
    Slice,
    Verdict,
)


class SqliteStore:
    """Journal, Catalog and Pending in one database file. Make one with `await SqliteStore.open_at(...)`."""

    parallel = False

    def __init__(self, database: SqliteDatabase, now_ms: Callable[[], int]) -> None:
        self.database = database
        self.lost = database.lost
        """Committed entries of the last process that a power loss took."""
        self._now_ms = now_ms
        self._fences = database.fences
        self._tails = database.tails
        self.sessions = SqliteSessions(database)
        self.deliveries = SqliteDeliveries(database, now_ms)
        self.peers = SqlitePeers(database, now_ms)
        self.conversations = SqliteConversations(database)
        self.upkeep = SqliteUpkeep(database)
        self.ledger = SqliteLedger(database)
        self.keys = SqliteKeys(database)
        self.audit = SqliteAudit(database)

    @classmethod
    async def open_at(
        cls, path: Path, durability: Durability, now_ms: Callable[[], int], space: Space | None = None
    ) -> SqliteStore:
        """Open or create the database, and migrate it. `now_ms` gives the milliseconds of the entries; `space` is the
        disk space to watch."""
        return cls(await SqliteDatabase.open_at(path, durability, now_ms(), space), now_ms)

    async def close(self) -> None:
        """Commit what is queued, and stop the threads."""
        await self.database.close()

    # Journal

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""

        def opened(done: tuple[Opened, int, int] | Attached) -> Opened | Attached:
            if isinstance(done, Attached):
                return done
            new, n, first_id = done
            self._tails.add_opened(opening, new.records, n, first_id)
            return new

        return await self.database.write(lambda db: run_rows.open_run(db, self._fences, opening), opened)

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        whole = self._tails.short_ends(slices)
        return await self.database.write(
            lambda db: run_rows.append(db, self._fences, slices, whole), partial(self._tails.add_appended, slices)
        )

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """See Journal.claim."""

        def claimed(done: tuple[Claim, int] | None) -> Claim | None:
            if done is None:
                return None
            claim, row_id = done
            self._tails.add_claimed(run, claim.record, row_id)
            return claim

        return await self.database.write(lambda db: run_rows.claim(db, self._fences, run, holder, first, at), claimed)

    async def beat(self, holder: str) -> None:
        """See Journal.beat. There are no leases: all claims end with the process."""

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        """See Journal.read."""
        tail = self._tails.by_run.get(run)
        if tail is not None:
            if tail.owner != owner:
                return []
            page = tail.page(after)
            if page is not None:
                return page
        return await self.database.query(lambda db: read_segment(db, owner, run, after))

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        return await self.database.write(lambda db: run_rows.signal(db, self._fences, owner, signal))

    async def delete(self, owner: str, run: str, at: int = 0) -> bool:
        """See Journal.delete."""

        def deleted(gone: bool) -> bool:
            if gone:
                self._tails.drop(run)
            return gone

        return await self.database.write(
            lambda db: run_rows.hide(db, self._fences, owner, run, at, run_rows.DELETED), deleted
        )

    async def forget(self, gone: Sequence[Gone]) -> None:
        """See Journal.forget."""

        def forgotten(runs: list[str]) -> None:
            for run in runs:
                self._tails.drop(run)
            if runs:
                self.database.scrub_soon()

        since = self._tails.opened_from(run for _, run in gone)
        await self.database.write(lambda db: run_rows.forget(db, self._fences, gone, since), forgotten)

    # Catalog and Pending

    async def find(self, owner: str, run: str) -> RunRow | None:
        """See Catalog.find."""
        return await self.database.query(lambda db: next(run_rows.rows_of(db, "find", (owner, run)), None))

    async def owner_of(self, run: str) -> str | None:
        """See Catalog.owner_of."""
        found = await self.database.query(lambda db: next(iter(db.execute(SQL["owner_of"], (run,))), None))
        return None if found is None else str(found[0])

    async def rows(self, query: Query) -> list[RunRow]:
        """See Catalog.rows."""
        statuses = f",{','.join(query.statuses)}," if query.statuses else ""
        page = (query.key, query.after, query.limit, query.but, int(query.stored))
        values = (query.owner, query.dialect, statuses, *page)
        return await self.database.query(lambda db: list(run_rows.rows_of(db, query.plan, values)))

    async def resolve(self, asked: admission.Asked) -> Resolved:
        """See Catalog.resolve."""
        decision = await self.database.query(lambda db: admission.decide(asked, run_rows.found(db, asked)))
        if not isinstance(decision, admission.Accept):
            raise ValueError("a request that is not stored has no idempotency key")
        return decision.resolved

    def foregone(self, asked: admission.Asked) -> Resolved | None:
        """See Catalog.foregone. Nobody else writes, so the runs that can be joined are known here."""
        if asked.counted or self.database.joinable.until.get((asked.owner, asked.match), -1) >= self._now_ms():
            return None
        return admission.resolve_without_store(replace(asked, match=""))

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        if resolved.previous is None and resolved.session_turns is None:
            return []
        return await self.database.query(lambda db: run_rows.turns(db, owner, resolved))

    async def asking(self, owner: str, code: str) -> str | None:
        """See Catalog.asking."""
        found = await self.database.select(SQL["asking"], (owner, code))
        return found[0][0] if found else None

    async def claimable(self, limit: int, now: int, fairness: Fairness = FAIR) -> list[Gone]:
        """See Catalog.claimable."""
        return await self.database.ask_fences(lambda fences: fences.claimable(limit, now, fairness))

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        return bool(await self.database.execute(SQL["annotate"], (owner, run, metadata)))

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        return [Signal(*row) for row in await self.database.select(SQL["signals"], (run,))]

    async def grant(self, given: Grant) -> None:
        """See Pending.grant."""

        def write(db: apsw.Connection) -> None:
            db.execute(SQL["grant"], astuple(given))
            db.execute(SQL["trim_grants"], (given.owner, MAX_GRANTS))

        await self.database.write(write)

    async def granted(self, owner: str, ids: Sequence[str]) -> bool:
        """See Pending.granted."""
        return bool(await self.database.select(SQL["granted"], (owner, msgspec.json.encode(ids).decode())))

    async def grants(self, owner: str) -> list[Grant]:
        """See Pending.grants."""
        return [Grant(*row) for row in await self.database.select(SQL["grants"], (owner,))]

    async def revoke(self, owner: str, grant: str) -> bool:
        """See Pending.revoke."""
        return bool(await self.database.execute(SQL["revoke"], (owner, grant)))


class SqliteDeliveries:
    """See journal.base.Deliveries."""

    def __init__(self, database: SqliteDatabase, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._fences = database.fences
        self._now_ms = now_ms

    async def answered(self, told: Sequence[Gone]) -> None:
        """See Deliveries.answered."""
        at = self._now_ms()
        if told:
            await self._database.write(lambda db: run_rows.answered(db, self._fences, told, at), late=True)

    async def rest_given(self, owner: str, run: str) -> None:
        """See Deliveries.rest_given."""
        await self._database.execute(SQL["rest_given"], (owner, run, self._now_ms()))

    async def lost(self, owner: str, run: str, at: int, *, left: bool = True) -> None:
        """See Deliveries.lost."""
        await self._database.write(
            lambda db: run_rows.lose(db, self._fences, owner, run, at, left=left),
            lambda found: self._database.joinable.add(found, self._now_ms()),
        )

    async def strand(self, at: int, besides: Collection[Gone] = ()) -> None:
        """See Deliveries.strand. Only the first call after the start has something to do."""
        if self._fences.stranded:
            await self._database.write(
                lambda db: run_rows.strand(db, self._fences, at, besides), lambda done: self._fences.stranded.clear()
            )


class SqlitePeers(Alone):
    """See journal.base.Peers."""

    def __init__(self, database: SqliteDatabase, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms

    async def held(self, holder: str) -> Sequence[HeldRun]:
        """See Peers.held."""
        now = self._now_ms()
        return await self._database.ask_fences(lambda fences: fences.held(holder, now))

    async def queued(self) -> int:
        """See Peers.queued."""
        now = self._now_ms()
        return sum(await self._database.ask_fences(lambda fences: [fences.queued(now)]))

    async def active(self, owner: str) -> int:
        """See Peers.active."""
        return sum(await self._database.ask_fences(lambda fences: [fences.active(owner)]))
