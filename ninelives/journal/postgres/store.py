"""The store for many machines: PostgreSQL through asyncpg. Owns: the life of the store in one process, its lease, and
the notifications that follow a write. Refuses to know: what an event means.

Theory of operation. Every process has lanes that write the log (log.py), a few connections for queries
(connections.py) and one that listens and holds its session lock (listener.py). The attempt on a run's row says who may
write. A claim raises the attempt, and the next slice of the old holder finds no row to join (R5). Leases go by the
clock of the database. A run is held for one lease from its claim, and longer as long as its holder renews its lease
without a gap. claims.py opens and claims runs, and knows what to do when the answer to that was lost."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import astuple

from ninelives.core import admission
from ninelives.core.spec import Resolved
from ninelives.journal.accounts.postgres import PostgresAudit, PostgresKeys
from ninelives.journal.fair import FAIR, Fairness
from ninelives.journal.notifier import DRIVES, LocalNotifier
from ninelives.journal.postgres.claims import PostgresClaims
from ninelives.journal.postgres.connections import (
    ASK_S,
    WORK_S,
    Connection,
    Connections,
    Wiring,
    deadline_in,
    in_transaction,
    retry_collisions,
    retry_while_away,
)
from ninelives.journal.postgres.conversations import PostgresConversations
from ninelives.journal.postgres.ledger import PostgresLedger
from ninelives.journal.postgres.listener import Listener, lock_key, notify_payloads
from ninelives.journal.postgres.log import PostgresLog
from ninelives.journal.postgres.peers import SQL as PEERS
from ninelives.journal.postgres.peers import PostgresDeliveries, PostgresPeers
from ninelives.journal.postgres.rows import DELETED, SQL, hide_run, turns_before, unlist
from ninelives.journal.postgres.schema import migrate
from ninelives.journal.postgres.sessions import PostgresSessions
from ninelives.journal.postgres.upkeep import PostgresUpkeep
from ninelives.journal.values import (
    MAX_GRANTS,
    Attached,
    Claim,
    FirstRecord,
    Gone,
    Grant,
    Opened,
    Opening,
    Query,
    Record,
    RunRow,
    Signal,
    Slice,
    StoreUnavailable,
    Verdict,
)

UNLOCK_S = 0.5
FORGET_AT_ONCE = 64


class Identity(Struct, frozen=True):
    """A process that uses the store. `holder` is unique for ever; `name` is for people. `before` has the holders that
    this one succeeds; they have ended."""

    holder: str
    name: str
    works: bool
    before: tuple[str, ...] = ()


class PostgresStore:
    """Journal, Catalog and Pending in one database. Create it with `await PostgresStore.open_at(...)`. It is also the
    ListenerEvents of its listener."""

    parallel = True

    def __init__(
        self, connections: Connections, listen_url: str, identity: Identity, notifier: LocalNotifier, lease_s: float
    ) -> None:
        self._connections = connections
        self._identity = identity
        self._notifier = notifier
        self._lease_ms = int(lease_s * 1000)
        self._listener = Listener(listen_url, identity.holder, notifier, lease_s, self)
        self._log = PostgresLog(connections, identity.holder, self._listener.followed)
        self._claims = PostgresClaims(connections, self._log, self._listener, identity.holder, self._lease_ms)
        self.sessions = PostgresSessions(connections)
        self.deliveries = PostgresDeliveries(connections, identity.holder, identity.before)
        self.conversations = PostgresConversations(connections)
        self.upkeep = PostgresUpkeep(connections, self._listener)
        self.ledger = PostgresLedger(connections)
        self.peers = PostgresPeers(connections, identity.holder)
        self.keys = PostgresKeys(connections, identity.holder)
        self.audit = PostgresAudit(connections)

    @classmethod
    async def open_at(
        cls, url: str, identity: Identity, notifier: LocalNotifier, lease_s: float = 15.0, wiring: Wiring | None = None
    ) -> PostgresStore:
        """Migrate the database, register this process and start to listen. Raises StoreUnavailable where the database
        cannot be reached, NewerStore where its schema is newer than this program."""
        wiring = wiring or Wiring()
        await migrate(url, wiring, identity.name)
        connections = await Connections.create(url, wiring, identity.name)
        store = cls(connections, wiring.direct_url or url, identity, notifier, lease_s)
        try:
            await store._listener.start()
        except BaseException:
            await store.close()
            raise
        return store

    async def secret(self) -> bytes:
        """32 random bytes of this database, the same for every process. The first process creates them."""
        await self._connections.execute(SQL["make_secret"], secrets.token_hex(32))
        return bytes.fromhex(await self._connections.fetchval(SQL["secret"]))

    async def now_ms(self) -> int:
        """The time by the clock of the database, which all machines share."""
        return int(await self._connections.fetchval(SQL["now"]))

    async def close(self) -> None:
        """Close the connections. Others can claim at once what this process still holds."""
        await self._listener.stop()
        with suppress(StoreUnavailable):  # others then wait until the lease expires
            await self._connections.execute(PEERS["leave"], self._identity.holder)
        await self._connections.close()

    # Journal

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        until = deadline_in(ASK_S)
        if opening.asked.match:
            await self._release_unconfirmed(opening.run, until)  # the first try of this request may be one of those
        done = await self._claims.open(opening, until)
        if done.again if isinstance(done, Attached) else not opening.holder:
            self._notifier.ring(["work"])
        return done

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append. Each slice is written as a whole or not at all. Slices of different runs may be written
        in different transactions."""
        verdicts = await self._log.append(slices)
        if any(part.mark and part.mark.parked for part in slices):
            self._notifier.ring(["work"])
        return verdicts

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """See Journal.claim."""
        return await self._claims.claim(run, holder, first, at)

    async def beat(self, holder: str) -> None:
        """See Journal.beat."""
        own = holder == self._identity.holder
        who = self._identity if own else Identity(holder, holder, True)
        key = lock_key(holder) if own and self._listener.locked else None
        ((anew, missed),) = await self._connections.fetch(
            PEERS["beat"], holder, who.name, who.works, self._lease_ms, key, limit_s=self._lease_ms / 3000
        )
        if anew and own:
            self._log.forget_runs()
        if missed:
            (payload,) = notify_payloads(holder, ["work"])
            await self._connections.execute(PEERS["welcome_back"], holder, payload)
        await self._release_unconfirmed()

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        """See Journal.read."""
        return await self._log.read(owner, run, after, seen)

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        topic = f"signal:{signal.run}"
        (held,) = notify_payloads(self._identity.holder, [topic])
        (free,) = notify_payloads(self._identity.holder, [topic, "work"])
        values = (owner, signal.run, signal.kind, signal.key, signal.payload, held, free)
        row = await self._connections.fetchrow(SQL["insert_signal"], *values)
        if row is None:
            return False
        self._notifier.ring([topic, "work"] if row["free"] else [topic])
        return True

    async def delete(self, owner: str, run: str, at: int = 0) -> bool:
        """See Journal.delete. It waits for writes to the run, so that it also deletes what was appended before."""
        unanswered = False

        async def work(connection: Connection) -> bool:
            if await hide_run(connection, owner, run, at, DELETED):
                await connection.execute(SQL["notify"], notify_payloads(self._identity.holder, [run])[0])
                return True
            return unanswered and bool(await connection.fetch(SQL["hidden_run"], owner, run))

        async def attempt() -> bool:
            nonlocal unanswered
            try:
                return await self._connections.after_writes(
                    lambda connection: retry_collisions(lambda: in_transaction(connection, work))
                )
            except StoreUnavailable:
                unanswered = True
                raise

        deleted = await retry_while_away(attempt)
        if deleted:
            self._log.forget_run(run)
            self._notifier.ring([run])
        return deleted

    async def forget(self, gone: Sequence[Gone]) -> None:
        """See Journal.forget. Rows are deleted; docs/postgres.md says what VACUUM and the write-ahead log keep."""
        for start in range(0, len(gone), FORGET_AT_ONCE):
            owners, runs = [list(column) for column in zip(*gone[start : start + FORGET_AT_ONCE], strict=True)]
            for run in await self._connections.transact(partial(_forget, owners=owners, runs=runs)):
                self._log.forget_run(run)

    # ListenerEvents

    async def on_connected(self) -> None:
        """See ListenerEvents.on_connected: renew the lease."""
        await self.beat(self._identity.holder)

    async def on_tick(self) -> None:
        """See ListenerEvents.on_tick. Whoever began to follow a run of ours may have missed its last row, and does not
        know whether a draft in the log stands."""
        await self._release_unconfirmed()
        fresh = self._listener.followed.take_fresh() & self._log.ends.keys()
        with suppress(StoreUnavailable):  # they look by themselves, a little later
            for payload in notify_payloads(self._identity.holder, [*fresh, *(DRIVES + run for run in fresh)]):
                await self._connections.execute(SQL["notify"], payload)

    async def on_disconnected(self) -> None:
        """See ListenerEvents.on_disconnected. The lock is free although this process lives: others must ignore it."""
        with suppress(StoreUnavailable):
            await self._connections.execute(PEERS["unlocked_here"], self._identity.holder, limit_s=UNLOCK_S)

    async def _release_unconfirmed(self, but: str = "", until: float | None = None) -> None:
        """Release runs (except one) that this process holds without working on them. The next tick tries again where
        this fails."""
        with suppress(StoreUnavailable):
            if await self._claims.unconfirmed.release(but, until):
                (payload,) = notify_payloads(self._identity.holder, ["work"])
                await self._connections.execute(SQL["notify"], payload)
                self._notifier.ring(["work"])

    # Catalog

    async def find(self, owner: str, run: str) -> RunRow | None:
        """See Catalog.find."""
        row = await self._connections.fetchrow(SQL["find"], owner, run)
        return RunRow(**row) if row else None

    async def owner_of(self, run: str) -> str | None:
        """See Catalog.owner_of."""
        owner: str | None = await self._connections.fetchval(SQL["owner_of"], run)
        return owner

    async def rows(self, query: Query) -> list[RunRow]:
        """See Catalog.rows."""
        page = (query.key, query.after, query.limit, query.but, query.stored)
        values = (query.owner, query.dialect, list(query.statuses), *page)
        return [RunRow(**row) for row in await self._connections.fetch_filtered(SQL[query.plan], *values)]

    async def resolve(self, asked: admission.Asked) -> Resolved:
        """See Catalog.resolve."""
        return await self._claims.resolve(asked)

    def foregone(self, asked: admission.Asked) -> Resolved | None:
        """See Catalog.foregone. Other processes write too."""
        return None

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        if resolved.previous is None and resolved.session_turns is None:
            return []
        return await self._connections.ask(lambda connection: turns_before(connection, owner, resolved), WORK_S)

    async def asking(self, owner: str, code: str) -> str | None:
        """See Catalog.asking."""
        run: str | None = await self._connections.fetchval(SQL["asking"], owner, code)
        return run

    async def claimable(self, limit: int, now: int, fairness: Fairness = FAIR) -> list[tuple[str, str]]:
        """See Catalog.claimable. Times go by the clock of the database, not by `now`."""
        weights, debts = fairness.weights, fairness.debts
        shares = list(weights), list(weights.values()), list(debts), list(debts.values())
        rows = await self._connections.fetch(SQL["claimable"], self._identity.holder, limit, *shares, limit_s=WORK_S)
        return [(row["owner"], row["id"]) for row in rows]

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        return bool(await self._connections.fetch(SQL["annotate"], owner, run, metadata))

    # Pending

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        rows = await self._connections.fetch(SQL["signals"], run)
        return [Signal(*row) for row in rows]

    async def grant(self, given: Grant) -> None:
        """See Pending.grant."""
        await self._connections.execute(SQL["grant"], *astuple(given))
        await self._connections.execute(SQL["trim_grants"], given.owner, MAX_GRANTS)

    async def granted(self, owner: str, ids: Sequence[str]) -> bool:
        """See Pending.granted."""
        return bool(await self._connections.fetch(SQL["granted"], owner, list(ids)))

    async def grants(self, owner: str) -> list[Grant]:
        """See Pending.grants."""
        return [Grant(*row) for row in await self._connections.fetch(SQL["grants"], owner)]

    async def revoke(self, owner: str, grant: str) -> bool:
        """See Pending.revoke."""
        return bool(await self._connections.fetch(SQL["revoke"], owner, grant))


async def _forget(connection: Connection, owners: list[str], runs: list[str]) -> list[str]:
    """Journal.forget, inside a transaction. Returns the runs that were forgotten."""
    gone = await connection.fetch(SQL["forget"], owners, runs)
    for owner, run, entry in gone:
        await unlist(connection, owner, run, entry)
    return [run for _, run, _ in gone]
