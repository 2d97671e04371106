"""The journal in memory: for runs that are not stored (the connection owns them) and for tests. Owns: the same
contract as the durable backends, in plain dicts. Refuses to know: disks. It survives nothing, and says so by its
name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.core import admission
from holdfast.core.errors import Damaged
from holdfast.core.spec import Resolved
from holdfast.journal.base import (
    PAGE_BYTES,
    Attached,
    Catalog,
    Claim,
    Mark,
    Opened,
    Opening,
    Query,
    Record,
    Row,
    Signal,
    Slice,
    Verdict,
)
from holdfast.journal.base_conversations import Link
from holdfast.journal.base_peers import Alone, Peers
from holdfast.journal.base_upkeep import Gone, Upkeep
from holdfast.journal.memory_conversations import MemoryConversations, Talk
from holdfast.journal.memory_deliveries import MemoryDeliveries
from holdfast.journal.memory_upkeep import MemoryUpkeep


class _Run(Struct):
    owner: str
    opening: Opening
    resolved: Resolved
    status: str
    updated_at: int
    metadata: bytes
    records: list[Record]
    attempt: int = 0
    holder: str | None = None
    lease_until: float = 0.0
    parked: bool = True
    ended: bool = False
    chains: bool = False
    hidden: bool = False
    remembered: bool = False
    """Its turn is in the session already: a batch that is tried again must not add it twice."""
    turn: bytes | None = None
    waits: bool = False
    """Somebody waits for the answer on a connection."""
    lost_at: int = 0
    """When that connection was lost; 0: it was not."""
    used_at: int = 0
    pinned: bool = False

    def size(self) -> int:
        """Bytes that it keeps."""
        return sum(len(record.data) for record in self.records) + len(self.turn or b"")

    def row(self) -> Row:
        return Row(
            owner=self.owner,
            run=self.opening.run,
            dialect=self.opening.dialect,
            model=self.opening.model,
            status=self.status,
            ended=self.ended,
            created_at=self.opening.at,
            updated_at=self.updated_at,
            session=self.resolved.session or "",
            conversation=self.resolved.conversation,
            previous=self.resolved.previous,
            key=self.opening.asked.key,
            metadata=self.metadata,
            last_seq=len(self.records) - 1,
        )


class MemoryStore:
    """Journal and Catalog over dicts. `clock` gives seconds for leases; it need not be the wall's. Turns for sessions
    go to `sessions` where one is given: a session outlives runs that are not stored."""

    def __init__(self, clock: Callable[[], float], lease_s: float = 15.0, sessions: Catalog | None = None) -> None:
        self._clock = clock
        self._elsewhere = sessions
        self._lease_s = lease_s
        self._runs: dict[str, _Run] = {}
        self._tombs: dict[Gone, int] = {}
        """Runs that retention took, and when."""
        self.upkeep: Upkeep = MemoryUpkeep(self._runs, self._tombs, self._delete)
        self._keys: dict[tuple[str, str], admission.KeyFound] = {}
        self._conversations: dict[tuple[str, str], Talk] = {}
        self.conversations = MemoryConversations(self._conversations, self._step_back, self._delete)
        self._sessions: dict[tuple[str, str], list[bytes]] = {}
        self._signals: dict[str, list[Signal]] = {}
        self._grants: set[tuple[str, str, str]] = set()
        self.deliveries = MemoryDeliveries(self._runs)
        self.peers: Peers = Alone()

    # Journal

    async def open(self, opening: Opening) -> Opened | Attached:
        """See Journal.open."""
        asked = opening.asked
        decision = admission.decide(asked, self._found(asked, opening.at))
        if isinstance(decision, admission.Attach):
            if decision.again:
                self.deliveries.take(self._runs[decision.run])
            return Attached(decision.run, decision.again)
        resolved = decision.resolved
        attempt = 1 if opening.holder else 0
        data = opening.accept(resolved)
        records = opening.first_records(data, attempt)
        status = "running" if attempt else "queued"
        run = _Run(asked.owner, opening, resolved, status, opening.at, opening.metadata, records)
        run.waits = bool(asked.credential)
        if opening.holder:
            run.attempt, run.holder, run.parked = 1, opening.holder, False
            run.lease_until = self._clock() + self._lease_s
        self._runs[opening.run] = run
        if asked.key is not None:
            self._keys[asked.owner, asked.key] = admission.KeyFound(opening.run, asked.fingerprint)
        if resolved.conversation:
            self._take_conversation(opening, resolved.conversation)
        if opening.ended:
            self._mark(run, opening.ended)
        return Opened(opening.run, resolved, list(records))

    def _take_conversation(self, opening: Opening, conversation: str) -> None:
        asked = opening.asked
        found = self._conversations.get((asked.owner, conversation))
        if found is None:
            found = Talk(conversation, opening.at, asked.conversation)
            if asked.conversation_use == "make":
                found.metadata = opening.metadata
            for name in (conversation, asked.conversation or conversation):
                self._conversations[asked.owner, name] = found
        found.active = opening.run

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append."""
        for part in slices:
            mark, run = part.mark, self._writable(part)
            if mark and mark.session and run and self._elsewhere and not run.remembered:
                await self._elsewhere.remember(run.owner, mark.session, mark.at, mark.turn)
                run.remembered = True
        return [self._append(part) for part in slices]

    def _writable(self, part: Slice) -> _Run | None:
        run = self._runs.get(part.run)
        if run is None or run.ended or run.hidden or run.attempt != part.attempt or run.holder is None:
            return None
        first, last = (part.records[0].seq, part.records[-1].seq) if part.records else (len(run.records), 0)
        whole = not part.records or last - first + 1 == len(part.records)
        return run if first == len(run.records) and whole else None

    def _append(self, part: Slice) -> Verdict:
        run = self._writable(part)
        if run is None:
            return Verdict.FENCED
        run.records.extend(part.records)
        if part.mark:
            self._mark(run, part.mark)
        return Verdict.WRITTEN

    def _mark(self, run: _Run, mark: Mark) -> None:
        run.status, run.updated_at, run.used_at = mark.status, mark.at, mark.at
        if mark.parked:
            run.parked, run.holder = True, None
        if not mark.ended:
            return
        run.ended, run.chains, run.holder = True, mark.chains, None
        run.turn = mark.turn or None
        if mark.void:
            run.waits, run.lost_at = False, 0
        self._signals.pop(run.opening.run, None)
        conversation = self._conversations.get((run.owner, run.resolved.conversation or ""))
        if conversation and conversation.active == run.opening.run:
            conversation.active = None
            if mark.chains:
                conversation.latest = run.opening.run
        if mark.session and self._elsewhere is None:
            self._sessions.setdefault((run.owner, mark.session), []).append(mark.turn)

    async def claim(self, run: str, holder: str, first: Callable[[int, bool], bytes], at: int) -> Claim | None:
        """See Journal.claim."""
        found = self._runs.get(run)
        if found is None or found.ended or found.hidden or self._held(found):
            return None
        attempt = found.attempt + 1
        record = Record(len(found.records), attempt, at, first(attempt, found.parked))
        found.records.append(record)
        found.attempt, found.updated_at = attempt, at
        found.holder, found.parked, found.status = holder, False, "running"
        found.lease_until = self._clock() + self._lease_s
        return Claim(found.owner, run, found.attempt, record)

    def _held(self, run: _Run) -> bool:
        return run.holder is not None and run.lease_until > self._clock()

    async def beat(self, holder: str) -> None:
        """See Journal.beat."""
        until = self._clock() + self._lease_s
        for run in self._runs.values():
            if run.holder == holder and self._held(run):
                run.lease_until = until

    async def read(self, owner: str, run: str, after: int) -> list[Record]:
        """See Journal.read."""
        found = self._runs.get(run)
        if found is None or found.hidden or found.owner != owner:
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
        found = self._runs.get(signal.run)
        if found is None or found.owner != owner or found.ended or found.hidden:
            return False
        waiting = self._signals.setdefault(signal.run, [])
        if all((old.kind, old.key) != (signal.kind, signal.key) for old in waiting):
            waiting.append(signal)
        return True

    async def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        return self._delete(owner, run)

    def _delete(self, owner: str, run: str) -> bool:
        found = self._runs.get(run)
        if found is None or found.owner != owner or found.hidden:
            return False
        found.hidden, found.records, found.holder = True, [], None
        self._signals.pop(run, None)
        if found.opening.asked.key is not None:
            self._keys.pop((owner, found.opening.asked.key), None)
        conversation = self._conversations.get((owner, found.resolved.conversation or ""))
        if conversation and conversation.active == run:
            conversation.active = None
        if conversation and conversation.latest == run:
            conversation.latest = self._visible_ancestor(found.resolved.previous)
        if not found.chains:
            del self._runs[run]
        return True

    def _visible_ancestor(self, run: str | None) -> str | None:
        while run is not None and (run not in self._runs or self._runs[run].hidden):
            run = self._runs[run].resolved.previous if run in self._runs else None
        return run

    def _step_back(self, owner: str, run: str) -> tuple[Link, str | None] | None:
        found = self._runs.get(run)
        if found is None or found.owner != owner:
            return None
        return Link(run, found.opening.dialect, found.hidden), found.resolved.previous

    # Catalog

    async def find(self, owner: str, run: str) -> Row | None:
        """See Catalog.find."""
        found = self._runs.get(run)
        return found.row() if found and found.owner == owner and not found.hidden else None

    async def rows(self, query: Query) -> list[Row]:
        """See Catalog.rows."""
        runs = [run for run in self._runs.values() if run.owner == query.owner]
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

    def _found(self, asked: admission.Asked, at: int = 0) -> admission.Found:
        conversation = self._conversations.get((asked.owner, asked.conversation or ""))
        return admission.Found(
            key=self._keys.get((asked.owner, asked.key)) if asked.key is not None else None,
            previous=self._previous(asked),
            conversation=conversation.found() if conversation else None,
            session_turns=len(self._sessions.get((asked.owner, asked.session or ""), [])),
            lost=self.deliveries.find(asked, at),
        )

    def _previous(self, asked: admission.Asked) -> admission.RunFound | None:
        found = self._runs.get(asked.previous or "")
        if (asked.owner, asked.previous) in self._tombs:
            return admission.RunFound(False, "", expired=True)
        if found is None or found.owner != asked.owner or found.hidden:
            return None
        return admission.RunFound(found.chains, found.resolved.session or "")

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        """See Catalog.turns."""
        if resolved.session_turns is not None:
            kept = self._sessions.get((owner, resolved.session or ""), [])[: resolved.session_turns]
            if len(kept) < resolved.session_turns:
                raise Damaged("an earlier turn of this session is gone from the store")
            return kept
        turns: list[bytes] = []
        talk = self._conversations.get((owner, resolved.conversation or ""))
        edits = talk.edits if talk else {}
        run = resolved.previous
        while run is not None:
            found = self._runs.get(run)
            if found is None or found.owner != owner or found.turn is None:
                raise Damaged(f"an earlier turn ({run}) of this chain is gone")
            turns.append(edits[run][1] if run in edits else found.turn)
            run = found.resolved.previous
        turns.reverse()
        return turns

    async def remember(self, owner: str, session: str, at: int, turn: bytes) -> None:
        """See Catalog.remember."""
        self._sessions.setdefault((owner, session), []).append(turn)

    async def claimable(self, limit: int) -> list[tuple[str, str]]:
        """See Catalog.claimable."""
        free = [(r.owner, name) for name, r in self._runs.items() if not (r.ended or r.hidden or self._held(r))]
        return free[:limit]

    async def annotate(self, owner: str, run: str, metadata: bytes) -> bool:
        """See Catalog.annotate."""
        found = self._runs.get(run)
        if found is None or found.owner != owner or found.hidden:
            return False
        found.metadata = metadata
        return True

    async def signals(self, run: str) -> list[Signal]:
        """See Pending.signals."""
        return list(self._signals.get(run, []))

    async def grant(self, owner: str, session: str, tool: str) -> None:
        """See Pending.grant."""
        self._grants.add((owner, session, tool))

    async def granted(self, owner: str, session: str, tool: str) -> bool:
        """See Pending.granted."""
        return (owner, session, tool) in self._grants or (owner, "", tool) in self._grants


def _matches(row: Row, query: Query) -> bool:
    return (
        (query.dialect is None or row.dialect == query.dialect)
        and row.dialect != query.but
        and (not query.statuses or row.status in query.statuses)
        and (query.key is None or row.key == query.key)
    )
