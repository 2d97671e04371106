"""The journal for many machines: PostgreSQL through asyncpg. Owns: the life of the store in one process, and what
becomes of an opening or a claim whose answer was lost. Refuses to know: what an event means.

Theory of operation. Every process has two lanes that write the log (postgres_log.py), a few connections for queries
(postgres_lines.py) and one that listens and holds its session lock (postgres_bell.py). A run belongs to the attempt on
its row; whoever claims it raises the attempt, and the old holder's next slice finds no row to join. Leases are by the
database's clock: a run is held for one lease from its claim, and longer as long as its holder beats without a gap.

A connection that breaks during a commit leaves the question whether it happened. open() and claim() find out by doing
the same again: the run's id, or the attempt, is there or not. If the database stays away, the caller gets
StoreUnavailable and the run is remembered as doubtful (postgres_doubts.py): once connected again, its claim is given
back, because nobody here drives it, and whoever asks again gets it. An opening that joins nothing (no key, chain,
conversation or session) may also be tried again with the same id: what it wrote is known again by its bytes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import admission
from holdfast.core.spec import Resolved
from holdfast.journal import postgres_rows
from holdfast.journal.base import (
    Attached,
    Claim,
    Opened,
    Opening,
    Query,
    Record,
    Row,
    Signal,
    Slice,
    StoreUnavailable,
    Verdict,
)
from holdfast.journal.bell import LocalBell
from holdfast.journal.postgres_bell import SQL as PEERS
from holdfast.journal.postgres_bell import Listener, lock_key
from holdfast.journal.postgres_conversations import PostgresConversations
from holdfast.journal.postgres_deliveries import PostgresDeliveries
from holdfast.journal.postgres_doubts import Doubts
from holdfast.journal.postgres_lines import ASK_S, ROUNDS, WORK_S, Line, Lines, Wiring, by, collided, settled, within
from holdfast.journal.postgres_log import End, Log, notes, packed
from holdfast.journal.postgres_peers import PostgresPeers
from holdfast.journal.postgres_rows import SQL, Already, Holding, Raced, row_of
from holdfast.journal.postgres_schema import migrate
from holdfast.journal.postgres_sessions import PostgresSessions
from holdfast.journal.postgres_upkeep import PostgresUpkeep
from holdfast.journal.segments import origin
from holdfast.journal.turnstile import Turnstile

START_S = 10.0
AT_ONCE_S = 0.5
CLOSE_S = 1.0
T = TypeVar("T")


class Identity(Struct, frozen=True):
    """A process that uses the store: `holder` is its own for ever, `name` is what people call it."""

    holder: str
    name: str
    works: bool


class PostgresStore:
    """Journal, Catalog and Pending in one database. Make one with `await PostgresStore.open_at(...)`."""

    def __init__(self, lines: Lines, listener: Listener, identity: Identity, bell: LocalBell, lease_s: float) -> None:
        self._lines = lines
        self._listener = listener
        self._identity = identity
        self._bell = bell
        self._who = Holding(identity.holder, int(lease_s * 1000))
        self._log = Log(lines, identity.holder)
        self._turnstile = Turnstile()
        self._doubts = Doubts(lines, identity.holder)
        self._listening: asyncio.Task[None]
        self.sessions = PostgresSessions(lines)
        self.deliveries = PostgresDeliveries(lines)
        self.conversations = PostgresConversations(lines)
        self.upkeep = PostgresUpkeep(lines, listener)
        self.peers = PostgresPeers(lines)

    @classmethod
    async def open_at(
        cls, url: str, identity: Identity, bell: LocalBell, lease_s: float = 15.0, wiring: Wiring | None = None
    ) -> PostgresStore:
        """Migrate the database, register this process and begin to listen. Raises StoreUnavailable where the database
        cannot be reached, NewerStore where it is newer than this program."""
        wiring = wiring or Wiring()
        await migrate(url, wiring, identity.name)
        lines = await Lines.to(url, wiring, identity.name)
        listener = Listener(url, wiring, identity.holder, bell, lease_s)
        store = cls(lines, listener, identity, bell, lease_s)
        listener.back, listener.besides, listener.lock_gone = store._back, store._settle, store._unlocked
        store._listening = asyncio.create_task(listener.run(), name="journal listens")
        try:
            await asyncio.wait_for(listener.connected.wait(), START_S)
        except TimeoutError:
            await store.close()
            raise StoreUnavailable(listener.trouble or "the database does not answer", passing=True) from None
        except BaseException:
            await store.close()
            raise
        return store

    async def secret(self) -> bytes:
        """32 random bytes of this database, the same for every process, made once by whoever comes first."""

        async def work(line: Line) -> str:
            await line.execute(SQL["make_secret"], secrets.token_hex(32))
            return str(await line.fetchval(SQL["secret"]))

        return bytes.fromhex(await self._lines.ask(work))

    async def now_ms(self) -> int:
        """What time it is by the database's clock, which all machines have in common."""
        return int(await self._lines.ask(lambda line: line.fetchval(SQL["now"])))

    async def close(self) -> None:
        """End the connections. What this process still holds is free at once."""
        await self._stop_listening()
        with suppress(StoreUnavailable):  # then its lease will tell
            await self._lines.ask(lambda line: line.execute(PEERS["leave"], self._identity.holder))
        await self._lines.close()

    async def _stop_listening(self) -> None:
        while not self._listening.done():  # asyncpg drops a cancellation that comes with the connection it waits for
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=CLOSE_S)

    # Journal

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        tries: list[Opened] = []
        until = by(ASK_S)
        if opening.asked.again is not None:
            await self._settle()  # the first try may be one of those
        async with self._turnstile.through(_places(opening)), self._doubts.left_alone(opening.run):
            try:
                done = await self._known(opening, tries, until)
            except BaseException:
                if tries:
                    self._doubts.opening(opening.run, held=bool(opening.holder))
                raise
            self._doubts.taken(opening.run)
        if isinstance(done, Attached):
            return done
        opened, end = done
        if opening.holder and not opening.ended:
            self._log.hold(opening.run, end)
        if not opening.holder:
            self._bell.ring(["work"])
        return opened

    async def _tried(self, opening: Opening, tries: list[Opened], until: float) -> tuple[Opened, End] | Attached:
        async def once(job: Callable[[Line], Awaitable[Any]]) -> Any:
            return await self._lines.once(job, until)

        async def work(line: Line) -> tuple[Opened, End] | Attached:
            who = replace(self._who, judges=self._listener.judges)
            return await postgres_rows.open_run(line, opening, who, tries.append)

        if not tries and postgres_rows.asks_nothing(opening):
            with suppress(asyncpg.UniqueViolationError):  # it is there: this opening was tried before
                return await postgres_rows.begin_run(once, opening, self._who, tries.append)
        return await collided(lambda: _decided(lambda: once(lambda line: within(line, work))))

    async def _known(self, opening: Opening, tries: list[Opened], until: float) -> tuple[Opened, End] | Attached:
        """What became of an opening; and where it was there already, which try did it: they may have been decided
        otherwise."""
        with suppress(Already):  # then the row that is there says which
            return await settled(lambda: self._tried(opening, tries, until), until)
        data = await self._lines.ask(lambda line: line.fetchval(SQL["first_records"], opening.run))
        for opened in tries:
            row = packed(opened.records, origin(opening.run))
            if row.data == data:
                return opened, End(1 if opening.holder else 0, row.last, row.after, len(row.data))
        raise RuntimeError(f"the id {opening.run} is in use by another run")

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append. Each slice is written as a whole or not at all; slices of different runs may go in
        different transactions."""
        verdicts = await self._log.append(slices)
        if any(part.mark and part.mark.parked for part in slices):
            self._bell.ring(["work"])
        return verdicts

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """See Journal.claim."""
        tried: dict[int, bytes] = {}

        def noted(attempt: int, clean: bool) -> bytes:
            data = first(attempt, clean)
            tried[attempt] = data
            return data

        async def work(line: Line) -> tuple[Claim, End] | None:
            for attempt, data in tried.items():
                if mine := await postgres_rows.claimed(line, (run, holder, at), attempt, data):
                    return mine
            return await postgres_rows.claim(line, (run, holder, at), self._who, noted)

        done = None
        async with self._doubts.left_alone(run):
            try:
                done = await settled(lambda: collided(lambda: self._lines.once(lambda line: within(line, work))))
            finally:
                for attempt in tried if done is None else ():
                    self._doubts.claim(run, attempt)
            if done is None:
                return None
            self._doubts.taken(run)
        claim, end = done
        self._log.hold(run, end)
        return claim

    async def beat(self, holder: str) -> None:
        """See Journal.beat."""
        who = self._identity if holder == self._identity.holder else Identity(holder, holder, True)
        key = lock_key(holder) if who is self._identity and self._listener.locked else None
        values = (holder, who.name, who.works, self._who.lease_ms, key)
        anew = await self._lines.ask(lambda line: line.fetchval(PEERS["beat"], *values), self._who.lease_ms / 3000)
        if anew and who is self._identity:
            self._log.let_go()
        await self._settle()

    async def _back(self) -> None:
        """Connected again."""
        await self.beat(self._identity.holder)

    async def _unlocked(self) -> None:
        """Its lock is free though this process lives: it must not be judged by it."""
        with suppress(StoreUnavailable):
            await self._lines.ask(lambda line: line.execute(PEERS["unlocked_here"], self._identity.holder), AT_ONCE_S)

    async def _settle(self) -> None:
        """Runs that this process may hold without driving them are for others; if not now, then at the next look."""
        with suppress(StoreUnavailable):
            if await self._doubts.settle():
                await self._ring(["work"])

    async def _ring(self, topics: list[str]) -> None:
        for note in notes(self._identity.holder, topics):
            await self._lines.ask(lambda line, note=note: line.execute(SQL["ring"], note))  # type: ignore[misc]
        self._bell.ring(topics)

    async def read(self, owner: str, run: str, after: int) -> list[Record]:
        """See Journal.read."""
        return await self._log.read(owner, run, after)

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        topics = [f"signal:{signal.run}", "work"]
        held, free = (notes(self._identity.holder, some)[0] for some in (topics[:1], topics))
        values = (owner, signal.run, signal.kind, signal.key, signal.payload, held, free)
        row = await self._lines.ask(lambda line: line.fetchrow(SQL["insert_signal"], *values))
        if row is None:
            return False
        self._bell.ring(topics if row["free"] else topics[:1])
        return True

    async def delete(self, owner: str, run: str, at: int = 0) -> bool:
        """See Journal.delete. In the order of the run's lane: what was written before goes with it."""
        cut: list[StoreUnavailable] = []

        async def work(line: Line) -> bool:
            gone = await postgres_rows.hide(line, (owner, run), at, postgres_rows.DELETED)
            if gone:
                await line.execute(SQL["ring"], notes(self._identity.holder, [run])[0])
            elif cut:
                gone = bool(await line.fetch(SQL["hidden_run"], owner, run))
            return gone

        async def attempt() -> bool:
            lane = self._lines.lane_of(run)
            try:
                return await self._lines.on_lane(lane, lambda line: collided(lambda: within(line, work)))
            except StoreUnavailable as error:
                cut.append(error)
                raise

        gone = await settled(attempt)
        if gone:
            self._log.ends.pop(run, None)
            self._bell.ring([run])
        return gone

    # Catalog and Pending

    async def find(self, owner: str, run: str) -> Row | None:
        """See Catalog.find."""
        row = await self._lines.ask(lambda line: line.fetchrow(SQL["find"], owner, run))
        return row_of(row) if row else None

    async def rows(self, query: Query) -> list[Row]:
        """See Catalog.rows."""
        statuses = list(query.statuses)
        values = (query.owner, query.dialect, statuses, query.key, query.after, query.limit, query.but)
        name = "rows_up" if query.ascending else "rows_down"
        return [row_of(row) for row in await self._lines.ask(lambda line: line.fetch(SQL[name], *values))]

    async def resolve(self, asked: admission.Asked) -> Resolved:
        """See Catalog.resolve."""
        facts = await self._lines.ask(lambda line: postgres_rows.look_up(line, asked))
        decision = admission.decide(asked, facts.found)
        if not isinstance(decision, admission.Accept):
            raise ValueError("a request that is not stored has no idempotency key")
        return decision.resolved

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        if resolved.previous is None and resolved.session_turns is None:
            return []
        return await self._lines.ask(lambda line: postgres_rows.turns(line, owner, resolved), WORK_S)

    async def remember(self, owner: str, session: str, at: int, turn: bytes) -> None:
        """See Catalog.remember."""
        await self._lines.transact(lambda line: line.execute(SQL["add_turn"], owner, session, at, None, turn))

    async def claimable(self, limit: int) -> list[tuple[str, str]]:
        """See Catalog.claimable. One of each owner in turn; parked runs not before their time."""
        rows = await self._lines.ask(lambda line: line.fetch(SQL["claimable"], limit), WORK_S)
        return [(row["owner"], row["id"]) for row in rows]

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        return bool(await self._lines.ask(lambda line: line.fetch(SQL["annotate"], owner, run, metadata)))

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        return [Signal(*row) for row in await self._lines.ask(lambda line: line.fetch(SQL["signals"], run))]

    async def grant(self, owner: str, session: str, tool: str) -> None:
        """See Pending.grant."""
        await self._lines.ask(lambda line: line.execute(SQL["grant"], owner, session, tool))

    async def granted(self, owner: str, session: str, tool: str) -> bool:
        """See Pending.granted."""
        return bool(await self._lines.ask(lambda line: line.fetch(SQL["granted"], owner, session, tool)))


async def _decided(work: Callable[[], Awaitable[T]]) -> T:
    """Work again, where another was faster."""
    for _ in range(ROUNDS):
        try:
            return await work()
        except Raced:
            await asyncio.sleep(0)
    raise StoreUnavailable("too many ask for the same at once", passing=False)


def _places(opening: Opening) -> list[tuple[str, str, str]]:
    """What only one opening of this process at a time may ask for: the others would only wait in the database."""
    asked = opening.asked
    places = []
    if asked.key is not None:
        places.append(("key", asked.owner, asked.key))
    if asked.conversation:
        places.append(("talk", asked.owner, asked.conversation))
    if asked.again is not None:
        places.append(("again", asked.owner, asked.fingerprint))
    return places
