"""The journal in memory, for runs that are never written to the disk and for tests. Owns: Journal, Catalog and Pending
over plain dicts, with the same contract as the durable backends. Refuses to know: disks. Nothing survives the
process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ninelives.core import admission
from ninelives.core.errors import Damaged
from ninelives.core.spec import Resolved
from ninelives.journal.accounts.memory import MemoryAudit, MemoryKeys
from ninelives.journal.base import Peers, Upkeep
from ninelives.journal.fair import FAIR, Fairness
from ninelives.journal.memory.conversations import MemoryConversations
from ninelives.journal.memory.deliveries import MemoryDeliveries, MemoryPeers, MemoryWaiting, deliver, wake_at
from ninelives.journal.memory.ledger import MemoryLedger
from ninelives.journal.memory.sessions import MemorySessions
from ninelives.journal.memory.tables import MemoryConversation, MemoryRun, MemoryTables, MemoryTurn
from ninelives.journal.memory.upkeep import MemoryUpkeep
from ninelives.journal.values import (
    MAX_GRANTS,
    PAGE_BYTES,
    Attached,
    Claim,
    FirstRecord,
    Gone,
    Grant,
    Mark,
    Opened,
    Opening,
    Query,
    Record,
    RunRow,
    Signal,
    Slice,
    Verdict,
)


class MemoryStore:
    """Journal and Catalog over dicts. `clock` gives seconds for leases; it need not be the wall clock. `now_ms` gives
    the milliseconds of the entries; without it, `clock` gives them too."""

    parallel = False

    def __init__(
        self, clock: Callable[[], float], lease_s: float = 15.0, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._now_ms = now_ms or (lambda: int(clock() * 1000))
        self._tables = tables = MemoryTables()
        self._runs = tables.runs
        self._keys = tables.keys
        self._conversations = tables.conversations
        self._sessions = tables.sessions
        self._signals = tables.signals
        self.audit = MemoryAudit()
        self.keys = MemoryKeys(self.audit)
        self.conversations = MemoryConversations(tables)
        self.sessions = MemorySessions(tables)
        self.deliveries = self._make_deliveries()
        self._waiting = MemoryWaiting(tables, self._is_held, self.deliveries.caller_waits)
        self.upkeep: Upkeep = MemoryUpkeep(tables)
        self.ledger = MemoryLedger()
        self.peers: Peers = MemoryPeers(self._waiting, self._now_ms)

    def _make_deliveries(self) -> MemoryDeliveries:
        return MemoryDeliveries(self._tables, self._is_held, self._now_ms)

    def has(self, run: str) -> bool:
        """Whether a run is in this store, and not deleted."""
        return run in self._runs and not self._runs[run].hidden

    def restart(self) -> None:
        """What the end of the process is for a durable store: all claims are free, and the next strand() marks all
        callers as lost. For tests, where one store serves several processes, one after the other."""
        for run in self._runs.values():
            run.holder = None
        self.deliveries.restart()

    # Journal

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        asked = opening.asked
        decision = admission.decide(asked, self._found(asked, opening.now or opening.at))
        if isinstance(decision, admission.Attach):
            if decision.again:
                self.deliveries.wait_again(decision.run, asked.credential)
            return Attached(decision.run, decision.again)
        resolved = decision.resolved
        records = opening.first_records(opening.accept(resolved))
        run = self._add(opening, resolved, records)
        if asked.key is not None:
            self._keys[asked.owner, asked.key] = admission.KeyFound(opening.run, asked.fingerprint)
        if resolved.conversation and asked.kept == "stored":
            self._take_conversation(opening, resolved.conversation)
        if opening.ended:
            self._mark(run, opening.ended.filled())
        return Opened(opening.run, resolved, list(records))

    def _add(self, opening: Opening, resolved: Resolved, records: list[Record]) -> MemoryRun:
        asked, status = opening.asked, "running" if opening.holder else "queued"
        run = MemoryRun(asked.owner, opening, resolved, status, opening.at, opening.metadata, records)
        run.waits, run.credential = bool(asked.credential), asked.credential
        if opening.holder:
            run.attempt, run.holder, run.parked = 1, opening.holder, False
            run.lease_until = self._clock() + self._lease_s
        self._runs[opening.run] = run
        return run

    def _take_conversation(self, opening: Opening, conversation: str) -> None:
        asked = opening.asked
        found = self._conversations.get((asked.owner, conversation))
        if found is None:
            found = MemoryConversation(conversation, opening.at, asked.conversation)
            if asked.conversation_use == "make":
                found.metadata = opening.metadata
            for name in (conversation, asked.conversation or conversation):
                self._conversations[asked.owner, name] = found
        found.active = opening.run

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        return [self._append(part) for part in slices]

    def _writable(self, part: Slice) -> MemoryRun | None:
        run = self._runs.get(part.run)
        if run is None or run.ended or run.hidden or run.attempt != part.attempt or run.holder is None:
            return None
        first, last = (part.records[0].seq, part.records[-1].seq) if part.records else (len(run.records), 0)
        whole = not part.records or last - first + 1 == len(part.records)
        return run if first == len(run.records) and whole else None

    def _append(self, part: Slice) -> Verdict:
        if part.opening and part.opening.foregone:
            self._add(part.opening, part.opening.foregone, [])
        run = self._writable(part)
        if run is None:
            return Verdict.FENCED
        run.records.extend(part.records)
        if part.mark:
            self._mark(run, part.mark.filled())
        if part.audit:
            self.audit.put(part.audit)
        return Verdict.WRITTEN

    def _mark(self, run: MemoryRun, mark: Mark) -> None:
        run.status, run.updated_at, run.used_at = mark.status, mark.at, mark.at
        run.asks, run.wake_at = mark.asks, wake_at(run, mark)
        if mark.parked:
            run.parked, run.holder = True, None
        if not mark.ended:
            return
        run.ended, run.chains, run.holder = True, mark.chains, None
        run.turn = mark.turn or None if run.kept == "stored" else None
        if mark.void:
            deliver(run, mark.at)
        waiting = self._signals.get(run.opening.run, [])
        waiting[:] = filter(is_steer, waiting)
        conversation = self._conversations.get((run.owner, run.resolved.conversation or ""))
        if conversation and conversation.active == run.opening.run:
            conversation.active = None
            if mark.chains:
                conversation.latest = run.opening.run
        if mark.session:
            turn = MemoryTurn(mark.at, run.opening.run, mark.session_turn)
            self._sessions.setdefault((run.owner, mark.session), []).append(turn)

    async def claim(self, run: str, holder: str, first: FirstRecord, at: int) -> Claim | None:
        """See Journal.claim."""
        found = self._runs.get(run)
        if found is None or found.ended or found.hidden or self._is_held(found):
            return None
        attempt, overdue = found.attempt + 1, self._waiting.is_overdue(run, self._time(at))
        record = Record(len(found.records), attempt, at, first(attempt, found.parked, 0))
        found.records.append(record)
        found.attempt, found.updated_at = attempt, at
        found.holder, found.parked, found.status = holder, False, "running"
        found.wake_at, found.asks = 0, ""
        found.lease_until = self._clock() + self._lease_s
        return Claim(found.owner, run, found.attempt, record, overdue)

    def _time(self, given: int) -> int:
        """The time by which runs wake: the caller's, because there is no other process."""
        return given

    def _is_held(self, run: MemoryRun) -> bool:
        return run.holder is not None and run.lease_until > self._clock()

    async def beat(self, holder: str) -> None:
        """See Journal.beat."""
        until = self._clock() + self._lease_s
        for run in self._runs.values():
            if run.holder == holder and self._is_held(run):
                run.lease_until = until

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        """See Journal.read."""
        found = self._tables.visible(owner, run)
        if found is None:
            return []
        page, size = [], 0
        for record in found.records[after + 1 :]:
            page.append(record)
            size += len(record.data)
            if size > PAGE_BYTES:
                break
        return page

    async def signal(self, owner: str, signal: Signal) -> bool:
        """See Journal.signal."""
        found = self._tables.visible(owner, signal.run)
        if found is None or found.ended:
            return False
        waiting = self._signals.setdefault(signal.run, [])
        if all((old.kind, old.key) != (signal.kind, signal.key) for old in waiting):
            waiting.append(signal)
        return True

    async def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        return self._tables.delete(owner, run)

    async def forget(self, gone: Sequence[Gone]) -> None:
        """See Journal.forget."""
        for owner, run in gone:
            self._tables.forget(owner, run)

    # Catalog

    async def find(self, owner: str, run: str) -> RunRow | None:
        """See Catalog.find."""
        found = self._tables.visible(owner, run)
        return found.row() if found else None

    async def owner_of(self, run: str) -> str | None:
        """See Catalog.owner_of."""
        found = self._runs.get(run)
        return None if found is None or found.hidden else found.owner

    async def rows(self, query: Query) -> list[RunRow]:
        """See Catalog.rows."""
        runs = [run for run in self._runs.values() if query.owner in (None, run.owner)]
        if not query.ascending:
            runs.reverse()
        if query.after is not None:
            place = next((n for n, run in enumerate(runs) if run.opening.run == query.after), len(runs))
            runs = runs[place + 1 :]
        rows = (run.row() for run in runs if not run.hidden)
        return [row for row in rows if _matches(row, query)][: query.limit]

    async def resolve(self, asked: admission.Asked) -> Resolved:
        """See Catalog.resolve."""
        decision = admission.decide(asked, self._found(asked))
        if not isinstance(decision, admission.Accept):
            raise ValueError("a request that is not stored has no idempotency key")
        return decision.resolved

    def foregone(self, asked: admission.Asked) -> Resolved | None:
        """See Catalog.foregone."""
        if self.peers.shared or asked.counted or self._found(asked, 1).lost is not None:
            return None
        return admission.resolve_without_store(replace(asked, match=""))

    def _found(self, asked: admission.Asked, at: int = 0) -> admission.Found:
        conversation = self._conversations.get((asked.owner, asked.conversation or ""))
        return admission.Found(
            key=self._keys.get((asked.owner, asked.key)) if asked.key is not None else None,
            previous=self._previous(asked),
            conversation=conversation.found() if conversation else None,
            session_turns=len(self._sessions.get((asked.owner, asked.session or ""), [])),
            session_active=self._tables.active_in(asked.owner, asked.session) if asked.alone else None,
            lost=self.deliveries.find_lost(asked, at),
        )

    def _previous(self, asked: admission.Asked) -> admission.RunFound | None:
        _, was_stored = self._tables.expired.get((asked.owner, asked.previous or ""), (0, False))
        if was_stored:
            return admission.RunFound(False, "", expired=True)
        found = self._tables.visible(asked.owner, asked.previous or "")
        if found is None or found.kept != "stored":
            return None
        return admission.RunFound(found.chains, found.resolved.session or "")

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        if resolved.session_turns is not None:
            own = self._sessions.get((owner, resolved.session or ""), [])[: resolved.session_turns]
            kept = [turn.turn for turn in own]
            return kept if len(kept) == resolved.session_turns else []
        turns: list[bytes] = []
        conversation = self._conversations.get((owner, resolved.conversation or ""))
        edits = conversation.edits if conversation else {}
        run = resolved.previous
        while run is not None:
            found = self._runs.get(run)
            if found is None or found.owner != owner or found.turn is None:
                raise Damaged(f"an earlier turn ({run}) of this chain is gone")
            turns.append(edits[run][1] if run in edits else found.turn)
            run = found.resolved.previous
        turns.reverse()
        return turns

    async def asking(self, owner: str, code: str) -> str | None:
        """See Catalog.asking."""
        asking = (name for name, run in reversed(self._runs.items()) if code and (run.owner, run.asks) == (owner, code))
        return next(asking, None)

    async def claimable(self, limit: int, now: int, fairness: Fairness = FAIR) -> list[Gone]:
        """See Catalog.claimable."""
        return self._waiting.claimable(limit, self._time(now), fairness)

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        found = self._tables.visible(owner, run)
        if found is not None:
            found.metadata = metadata
        return found is not None

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        return sorted(self._signals.get(run, []), key=lambda signal: (signal.kind, signal.key))

    async def grant(self, given: Grant) -> None:
        """See Pending.grant."""
        self._tables.grants.setdefault((given.owner, given.id), given)
        for old in (await self.grants(given.owner))[MAX_GRANTS:]:
            del self._tables.grants[old.owner, old.id]

    async def granted(self, owner: str, ids: Sequence[str]) -> bool:
        """See Pending.granted."""
        return any((owner, each) in self._tables.grants for each in ids)

    async def grants(self, owner: str) -> list[Grant]:
        """See Pending.grants."""
        own = [grant for grant in self._tables.grants.values() if grant.owner == owner]
        return sorted(own, key=lambda grant: (-grant.at, grant.id))

    async def revoke(self, owner: str, grant: str) -> bool:
        """See Pending.revoke."""
        return self._tables.grants.pop((owner, grant), None) is not None


def is_steer(signal: Signal) -> bool:
    """Whether it stays when its run ends."""
    return signal.kind == "steer"


def _matches(row: RunRow, query: Query) -> bool:
    return (
        (query.dialect is None or row.dialect == query.dialect)
        and row.dialect != query.but
        and (not query.statuses or row.status in query.statuses)
        and (query.key is None or row.key == query.key)
        and (not query.stored or row.kept == "stored")
    )
