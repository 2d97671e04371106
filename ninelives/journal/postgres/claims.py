"""How a process gets to hold a run on PostgreSQL. Owns: the transactions of open() and claim(), and what happens when
the answer to one is lost. Refuses to know: notifications, and what an event means.

Theory of operation. Unique constraints that begin with the owner (a key, the name of a conversation) and row locks (a
conversation, the run that another follows) decide races. The loser gets LostRace and decides again from what it finds.
Where a conversation and a run are both locked, the conversation comes first. Only append_marked (log.sql) must lock the
run first. If the two deadlock, PostgreSQL aborts one of them and it is retried.

A connection that breaks during a commit leaves open whether it happened. open() and claim() find out by trying again:
the run, or the attempt, is there or not. If the database stays away, the caller gets StoreUnavailable, and the run is
remembered in Unconfirmed. An opening that joins nothing (no key, chain, conversation or session) may also be retried
with the same id. What it wrote is recognised by its bytes.

Such an opening is one statement, which writes only if there is no run that the same request joins. A run that is lost
after that statement looked was lost after the request was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import admission
from ninelives.core.spec import Resolved
from ninelives.journal.postgres.connections import (
    ROUNDS,
    Connection,
    Connections,
    NotAsked,
    in_turn,
    retry_while_away,
)
from ninelives.journal.postgres.keyed_lock import KeyedLock
from ninelives.journal.postgres.listener import Listener, notify_payloads
from ninelives.journal.postgres.log import LogRow, PostgresLog, RunEnd, packed
from ninelives.journal.postgres.rows import EVICTED, SQL
from ninelives.journal.segments import origin
from ninelives.journal.values import Attached, Claim, FirstRecord, Mark, Opened, Opening, Record, StoreUnavailable

UNCONFIRMED_S = 60.0
"""The last statement of a broken connection may still be committed for a while."""
T = TypeVar("T")
OpenResult = tuple[Opened, RunEnd] | Attached
Claimed = tuple[Claim, RunEnd]


class LostRace(Exception):
    """Another transaction was faster: decide again."""


class AlreadyOpen(Exception):
    """The run exists: an earlier try of the same opening was committed."""


class OpenCall(Struct):
    """One call of open(), and what it tried."""

    opening: Opening
    until: float
    tries: list[Opened] = []
    """What it may have written."""
    joins: list[str] = []
    """The runs that it may have joined."""


class ClaimCall(Struct):
    """One call of claim(), and the first records that it tried to write, by attempt."""

    run: str
    holder: str
    at: int
    first: FirstRecord
    tried: dict[int, tuple[bytes, bool]] = {}
    """Also whether the run was overdue. The claim itself ends that."""

    def first_record(self, attempt: int, row: Any) -> bytes:
        """The data of the first record of an attempt; `row` is what claim_look found."""
        lost = max(0, row["told_seq"] - row["last"][0])
        data = self.first(attempt, row["parked"], lost)
        self.tried[attempt] = data, row["overdue"]
        return data


class PostgresClaims:
    """Opens and claims runs for one process. `log` learns where each of them ends."""

    def __init__(
        self, connections: Connections, log: PostgresLog, listener: Listener, holder: str, lease_ms: int
    ) -> None:
        self._connections = connections
        self._log = log
        self._listener = listener
        self._holder = holder
        self._lease_ms = lease_ms
        self._opening_locks = KeyedLock()
        self.unconfirmed = Unconfirmed(connections, holder)

    # Opening

    async def open(self, opening: Opening, until: float) -> Opened | Attached:
        """See Journal.open. `until` is its deadline by the clock of the event loop."""
        call = OpenCall(opening, until)
        async with self.unconfirmed.reserve(opening.run, until):
            try:
                done = await self._open_confirmed(call)
            except BaseException:
                if call.tries:
                    self.unconfirmed.add_opening(opening.run, held=bool(opening.holder))
                self.unconfirmed.add_joins(call.joins)
                raise
            self.unconfirmed.confirm(opening.run)
        if isinstance(done, Attached):
            self.unconfirmed.confirm_join(done.run)
            return done
        opened, end = done
        if opening.holder and not opening.ended:
            self._log.hold_run(opening.run, end)
        return opened

    async def _open_confirmed(self, call: OpenCall) -> OpenResult:
        """Open, and retry while the answer is unknown. If a try was committed after all, the stored records say which
        one: the tries may have been decided differently."""
        opening = call.opening
        with suppress(AlreadyOpen):
            return await retry_while_away(lambda: self._open_once(call), call.until)
        data = await self._connections.fetchval(SQL["first_records"], opening.asked.owner, opening.run)
        for opened in call.tries:
            row = packed(opened.records, origin(opening.run))
            if row.data == data:
                return await self._open_anew(opening, opened, row)
        raise RuntimeError(f"the id {opening.run} is in use by another run")

    async def _open_anew(self, opening: Opening, opened: Opened, row: LogRow) -> OpenResult:
        """The run was written by a try that had no answer. It may have been released since, and even claimed by
        another process, which then works on it for this request."""
        asked, attempt = opening.asked, 1 if opening.holder else 0
        values = (opening.run, opening.holder, attempt, self._lease_ms, self._holder, opening.ended is not None)
        if await self._connections.fetch(SQL["retake"], *values):
            return opened, RunEnd(attempt, row.first, row.last, row.after, len(row.data))
        if asked.credential:
            await self._connections.execute(SQL["wait_again"], *self._place_of(asked, opening.run, None))
        return Attached(opening.run, again=bool(asked.credential))

    async def _open_once(self, call: OpenCall) -> OpenResult:
        resolved = None if call.tries else _settled(call.opening)
        if resolved is not None:
            done = await self._open_at_once(call, resolved)
            if done is not None:
                return done

        async def work(connection: Connection) -> OpenResult:
            return await self._open_in_transaction(connection, call)

        async with in_turn(self._opening_locks.hold_all(_contended(call.opening)), call.until):
            return await _retry_races(lambda: self._connections.transact(work, call.until))

    async def _open_at_once(self, call: OpenCall, resolved: Resolved) -> OpenResult | None:
        """Open a run that needs no look-up, in one statement. None if there is a run to join, or if an earlier call
        with this id was committed: a transaction must decide."""
        opening, match = call.opening, call.opening.asked.match or None
        opened = _accept(opening, resolved)
        call.tries.append(opened)
        try:
            end = await self._connections.once(
                lambda connection: self._insert_run(connection, opening, opened, match), call.until
            )
        except asyncpg.UniqueViolationError:
            return None
        except NotAsked:
            call.tries.remove(opened)
            raise
        return None if end is None else (opened, end)

    async def _open_in_transaction(self, connection: Connection, call: OpenCall) -> OpenResult:
        """Decide and write. What is about to be written or joined is noted in `call` first."""
        opening, asked = call.opening, call.opening.asked
        joined = call.joins and await connection.fetchval(SQL["joined"], call.joins, self._holder)
        if joined:
            return Attached(joined, again=True)
        found, gone = await self._look_up(connection, asked, opening.run)
        decision = admission.decide(asked, found)
        if isinstance(decision, admission.Attach):
            if decision.again:
                call.joins.append(decision.run)
                if not await connection.fetch(SQL["wait_again"], *self._place_of(asked, decision.run, gone)):
                    call.joins.remove(decision.run)
                    raise LostRace
            return Attached(decision.run, decision.again)
        await _join(connection, opening, decision.resolved, found)
        opened = _accept(opening, decision.resolved)
        call.tries.append(opened)
        end = await self._insert_run(connection, opening, opened, None)
        assert end is not None  # the look-up found nothing to join
        return opened, end

    def _place_of(self, asked: admission.Asked, run: str, gone: str | None) -> tuple[Any, ...]:
        """The parameters of wait_again. `gone` is the process at which the first caller waited, if it is not known to
        be lost."""
        (payload,) = notify_payloads(self._holder, ["work"])
        return asked.owner, run, self._holder, gone, asked.credential, payload

    async def resolve(self, asked: admission.Asked) -> Resolved:
        """See Catalog.resolve."""
        found, _ = await self._connections.ask(lambda connection: self._look_up(connection, asked, ""))
        decision = admission.decide(asked, found)
        if not isinstance(decision, admission.Accept):
            raise ValueError("a request that is not stored has no idempotency key")
        return decision.resolved

    async def _look_up(
        self, connection: Connection, asked: admission.Asked, run: str
    ) -> tuple[admission.Found, str | None]:
        """What the store holds for a request, and the process of the first caller where nobody has recorded its loss.
        `run` is the run that will be written. A request that writes none locks nothing and attaches to no lost run."""
        conversation = None
        if asked.conversation:
            name = "conversation_locked" if run and asked.kept == "stored" else "conversation"
            conversation = await connection.fetchrow(SQL[name], asked.owner, asked.conversation)
        active = await _active_in_session(connection, asked) if asked.alone else None
        joins = self._lost_of(asked, (asked.match or None) if run else None)
        row = await connection.fetchrow(SQL["found"], *joins, run, asked.key, asked.previous, asked.session)
        if row["own"]:
            raise AlreadyOpen
        previous, (lost, gone) = row["previous"], row["lost"] or (None, None)
        found = admission.Found(
            key=admission.KeyFound(*row["key"]) if row["key"] else None,
            previous=admission.RunFound(previous[0], previous[1], expired=previous[2] == EVICTED) if previous else None,
            conversation=admission.ConversationFound(*conversation) if conversation else None,
            session_turns=row["turns"],
            session_active=active,
            lost=lost,
        )
        return found, gone

    def _lost_of(self, asked: admission.Asked, match: str | None) -> tuple[Any, ...]:
        """The first parameters of the statements that look for a run to join. Without a `match` they find none."""
        counted = asked.credential if asked.counted else None
        return asked.owner, match, counted, self._holder, self._listener.trusts_locks, self._lease_ms

    async def _insert_run(
        self, connection: Connection, opening: Opening, opened: Opened, match: str | None
    ) -> RunEnd | None:
        """Write a run. None if there is one to join that has this `match`."""
        asked, resolved = opening.asked, opened.resolved
        attempt = 1 if opening.holder else 0
        mark = (opening.ended or Mark(status="running" if attempt else "queued", at=opening.at)).filled()
        row = packed(opened.records, origin(opening.run))
        waits = bool(asked.credential) and not mark.void
        written = await connection.fetch(
            SQL["insert_run"],
            *self._lost_of(asked, match),
            opening.run,
            opening.dialect,
            opening.model,
            mark.status,
            attempt,
            None if mark.ended else opening.holder,
            not attempt,
            mark.ended,
            mark.chains,
            row.last,
            len(row.data) + len(mark.turn),
            opening.at,
            mark.at,
            resolved.session or "",
            resolved.conversation,
            resolved.previous,
            asked.key,
            opening.metadata,
            mark.turn or None,
            asked.match,
            asked.credential,
            waits,
            asked.kept,
            asked.resend_ms,
            mark.ended and mark.void,
            row.before,
            row.after,
            row.data,
            notify_payloads(self._holder, () if attempt else ("work",)),
        )
        if not written:
            return None
        if mark.session:
            values = (asked.owner, mark.session, mark.at, opening.run, mark.session_turn)
            await connection.execute(SQL["add_turn"], *values)
        return RunEnd(attempt, row.first, row.last, row.after, len(row.data))

    # Claiming

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """See Journal.claim."""
        call = ClaimCall(run, holder, at, first)

        async def work(connection: Connection) -> Claimed | None:
            return await _find_claim(connection, call) or await self._write_claim(connection, call)

        done = None
        async with self.unconfirmed.reserve(run):
            try:
                done = await retry_while_away(lambda: self._connections.transact(work))
            finally:
                if done is None:
                    self.unconfirmed.add_claims(run, call.tried)
            if done is None:
                return None
            self.unconfirmed.confirm(run)
        claim, end = done
        self._log.hold_run(run, end)
        return claim

    async def _write_claim(self, connection: Connection, call: ClaimCall) -> Claimed | None:
        run = call.run
        row = await connection.fetchrow(SQL["claim_look"], self._holder, run)
        if row is None or row["last"] is None:
            return None
        owner, attempt, (seq, crc) = row["owner"], row["attempt"] + 1, row["last"]
        data = call.first_record(attempt, row)
        payload = notify_payloads(self._holder, [run])[0]
        while True:
            record = Record(seq + 1, attempt, call.at, data)
            new = packed([record], crc)
            values = (run, record.seq, attempt, call.at, crc, new.after, new.data, call.holder, self._lease_ms, payload)
            if await connection.fetch(SQL["claim_run"], *values, owner):
                end = RunEnd(attempt, record.seq, record.seq, new.after, row["bytes"] + len(new.data))
                return Claim(owner, run, attempt, record, row["overdue"]), end
            # the old holder wrote once more before the fence
            seq, crc = await connection.fetchrow(SQL["log_end"], owner, run)


class Unconfirmed:
    """Openings and claims of one process whose answer was lost for good. Nobody works on such a run, so it is released
    for others to claim. Its caller was told of a failure and counts as disconnected, so that a retry finds the run
    (G13, B8)."""

    def __init__(self, connections: Connections, holder: str) -> None:
        self._connections = connections
        self._holder = holder
        self._held: dict[tuple[str, int], float] = {}
        """(run, attempt) that this process may hold without knowing it, and since when."""
        self._begun: dict[str, float] = {}
        """Runs that may exist although their callers were told of a failure, and since when."""
        self._lock = asyncio.Lock()
        """A run is released or taken again, never both at once."""

    def add_opening(self, run: str, *, held: bool) -> None:
        """The answer to an opening was lost."""
        self._begun[run] = asyncio.get_running_loop().time()
        if held:
            self._held[run, 1] = self._begun[run]

    def add_joins(self, runs: Iterable[str]) -> None:
        """A caller may have taken the place of a lost one in these runs, and was told of a failure."""
        self._begun.update(dict.fromkeys(runs, asyncio.get_running_loop().time()))

    def confirm_join(self, run: str) -> None:
        """A caller waits for this run: it does not count as lost."""
        self._begun.pop(run, None)

    def add_claims(self, run: str, attempts: Iterable[int]) -> None:
        """The answers to these claims were lost."""
        now = asyncio.get_running_loop().time()
        self._held.update({(run, attempt): now for attempt in attempts})

    @asynccontextmanager
    async def reserve(self, run: str, until: float | None = None) -> AsyncIterator[None]:
        """While this process opens or claims the run again, release() leaves it alone. `until`: how long to wait."""
        if run not in self._begun and all(held != run for held, _ in self._held):
            yield
            return
        async with in_turn(self._lock, until):
            yield

    def confirm(self, run: str) -> None:
        """This process works on the run now: it must not be released."""
        self._held = {key: since for key, since in self._held.items() if key[0] != run}
        self._begun.pop(run, None)

    async def release(self, but: str = "", until: float | None = None) -> bool:
        """Release the runs that are found to exist, except one that is about to be opened again. Returns whether there
        is work for others. `until`: how long to wait for others that do the same."""
        if not self._begun.keys() - {but} and not self._attempts(but):
            return False
        async with in_turn(self._lock, until):
            released, lost = await self._connections.ask(lambda connection: self._give_back(connection, but))
            oldest = asyncio.get_running_loop().time() - UNCONFIRMED_S
            self._held = {key: at for key, at in self._held.items() if key[0] not in released and at > oldest}
            self._begun = {run: at for run, at in self._begun.items() if run not in lost and at > oldest}
        return bool(released)

    def _attempts(self, but: str) -> list[tuple[str, int]]:
        return [key for key in self._held if key[0] != but]

    async def _give_back(self, connection: Connection, but: str) -> tuple[set[str], set[str]]:
        """The runs that were released, and those whose callers are now known to be lost."""
        attempts = self._attempts(but)
        runs, numbers = [run for run, _ in attempts], [number for _, number in attempts]
        released = await connection.fetch(SQL["give_back"], runs, numbers, self._holder)
        lost = await connection.fetch(SQL["lose_begun"], list(self._begun.keys() - {but}), self._holder)
        return {row["id"] for row in released}, {row["id"] for row in lost}


def _contended(opening: Opening) -> list[tuple[str, str, str]]:
    """What only one opening of this process at a time asks the database for. Others would wait there, each with a
    connection."""
    asked = opening.asked
    names = []
    if asked.key is not None:
        names.append(("key", asked.owner, asked.key))
    if asked.conversation:
        names.append(("conversation", asked.owner, asked.conversation))
    if asked.match:
        names.append(("match", asked.owner, asked.match))
    return names


async def _active_in_session(connection: Connection, asked: admission.Asked) -> str | None:
    """The active run of a session that a request wants to itself. Until the transaction ends nobody else decides."""
    await connection.fetch(SQL["lock_session"], asked.owner, asked.session)
    active: str | None = await connection.fetchval(SQL["session_active"], asked.owner, asked.session)
    return active


def _settled(opening: Opening) -> Resolved | None:
    """What is decided about a run that names nothing in the store: one statement opens it, unless there is a run that
    the same request joins. None for all others."""
    joins = opening.asked.key is not None or opening.ended is not None
    return None if joins else admission.resolve_without_store(replace(opening.asked, match=""))


def _accept(opening: Opening, resolved: Resolved) -> Opened:
    records = opening.first_records(opening.accept(resolved))
    return Opened(opening.run, resolved, records)


async def _retry_races(work: Callable[[], Awaitable[T]]) -> T:
    """Retry work that lost a race."""
    for _ in range(ROUNDS):
        with suppress(LostRace):
            return await work()
        await asyncio.sleep(0)
    raise StoreUnavailable("too many requests ask for the same at once, try again", passing=False)


async def _join(connection: Connection, opening: Opening, resolved: Resolved, found: admission.Found) -> None:
    """Write what a run joins: its chain, its key, its conversation."""
    asked = opening.asked
    if resolved.previous:
        await _fetch_or_lose(connection, "keep_previous", asked.owner, resolved.previous)
    if asked.key is not None:
        await _fetch_or_lose(connection, "insert_key", asked.owner, asked.key, asked.fingerprint, opening.run)
    if resolved.conversation and asked.kept == "stored":  # others take no slot and never become the latest
        await _join_conversation(connection, opening, resolved.conversation, exists=found.conversation is not None)


async def _join_conversation(connection: Connection, opening: Opening, conversation: str, *, exists: bool) -> None:
    asked, over = opening.asked, opening.ended
    active = None if over else opening.run
    latest = opening.run if over and over.chains else None
    if exists:
        await connection.execute(SQL["take_conversation"], asked.owner, conversation, active, latest)
        return
    metadata = opening.metadata if asked.conversation_use == "make" else b"{}"
    row = (asked.owner, conversation, asked.conversation, active, latest, opening.at, metadata)
    await _fetch_or_lose(connection, "insert_conversation", *row)


async def _fetch_or_lose(connection: Connection, name: str, *values: Any) -> None:
    """Run a statement that returns no row where another transaction was faster."""
    if not await connection.fetch(SQL[name], *values):
        raise LostRace


async def _find_claim(connection: Connection, call: ClaimCall) -> Claimed | None:
    """The claim of an earlier try whose answer was lost. Nothing was written after it."""
    for attempt, (data, overdue) in call.tried.items():
        row = await connection.fetchrow(SQL["claim_mine"], call.run, call.holder, attempt)
        if row is None:
            continue
        record = Record(row["first_seq"], attempt, call.at, data)
        if packed([record], row["crc_before"]).data == row["data"]:
            end = RunEnd(attempt, record.seq, record.seq, row["crc_after"], row["bytes"])
            return Claim(row["owner"], call.run, attempt, record, overdue), end
    return None
