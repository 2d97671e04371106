"""The statements inside a transaction. Owns: the SQL of open, append, claim, signal, delete, forget and of callers who
wait. Refuses to know: threads, the event loop, tails in memory.

Theory of operation. Each statement keeps the fence of its run (fences.py) in step with the row. Rows get attempt and
last_seq only at claim, park and end, because an UPDATE per run in each flush cost three times as much."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import apsw
import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from ninelives.core import admission
from ninelives.core.errors import Damaged
from ninelives.core.spec import Resolved
from ninelives.journal import queries
from ninelives.journal.accounts.base import AuditEntry
from ninelives.journal.segments import origin, pack
from ninelives.journal.sqlite.fences import Fence, Fences
from ninelives.journal.sqlite.tails import Written
from ninelives.journal.values import (
    Attached,
    Claim,
    FirstRecord,
    Gone,
    Mark,
    Opened,
    Opening,
    Record,
    RunRow,
    Signal,
    Slice,
    Verdict,
    turns_of_session,
)

SQL = queries.load("sqlite", "store")
SESSIONS = queries.load("sqlite", "sessions")
ACCOUNTS = queries.load("sqlite", "accounts")
Marked = tuple[str, Fence, Fence | None, Mark]
"""A run with its fence before and after a mark."""
Sealed = tuple[int | None, int | None, int]
"""How far a mark seals its run, the checksum there, and the bytes of the segment."""
_OPEN: Sealed = (None, None, 0)
_VALUES = "(?,?,?,?,?,?,?)"
_WIDTH = 7
_NO_RECORD: tuple[apsw.SQLiteValue, ...] = ("", 0, 0, 0, 0, 0, b"")
"""A row of the hot table that belongs to no run, as those of forgotten runs."""
_INSERT = {
    # The only statement that is built. Few big inserts make the log fast; powers of two keep the set small.
    1 << k: "INSERT INTO entries(owner,run,seq,attempt,at,crc,data) VALUES " + ",".join([_VALUES] * (1 << k))
    for k in range(13)
}


def _one(db: apsw.Connection, query: str, *values: apsw.SQLiteValue) -> tuple[apsw.SQLiteValue, ...] | None:
    return db.execute(SQL[query], values).fetchone()


def found(db: apsw.Connection, asked: admission.Asked, at: int = 0) -> admission.Found:
    """What the store knows that decides a request. `at` is its time; 0 means that it cannot take over a lost run."""
    key = _one(db, "key", asked.owner, asked.key) if asked.key is not None else None
    previous = _one(db, "previous", asked.owner, asked.previous) if asked.previous else None
    conversation = _one(db, "conversation", asked.owner, asked.conversation) if asked.conversation else None
    active = _one(db, "session_active", asked.owner, asked.session) if asked.alone and asked.session else None
    turns = _one(db, "session_length", asked.owner, asked.session) if asked.session else None
    return admission.Found(
        key=admission.KeyFound(*key) if key else None,  # type: ignore[arg-type]
        previous=admission.RunFound(bool(previous[0]), str(previous[1]), expired=previous[2] == EVICTED)
        if previous
        else None,
        conversation=admission.ConversationFound(*conversation) if conversation else None,  # type: ignore[arg-type]
        session_turns=int(turns[0]) if turns else 0,  # type: ignore[arg-type]
        session_active=active[1] if active else None,  # type: ignore[arg-type]
        lost=_lost(db, asked, at),
    )


def _lost(db: apsw.Connection, asked: admission.Asked, at: int) -> str | None:
    if not asked.match or asked.key is not None or not at:
        return None
    rows: list[Any] = db.execute(SQL["lost_run"], (asked.owner, asked.match, at)).fetchall()
    return max(rows)[1] if rows else None


def open_run(db: apsw.Connection, fences: Fences, opening: Opening) -> tuple[Opened, int, int] | Attached:
    """Journal.open, inside the transaction. Returns the run, its number and the row of its first record."""
    asked = opening.asked
    facts = found(db, asked, opening.now or opening.at)
    decision = admission.decide(asked, facts)
    if isinstance(decision, admission.Attach):
        if decision.again:
            _wait_again(db, fences, asked, decision.run)
        return Attached(decision.run, decision.again)
    resolved = decision.resolved
    records = opening.first_records(opening.accept(resolved))
    if asked.key is not None:
        db.execute(SQL["insert_key"], (asked.owner, asked.key, asked.fingerprint, opening.run))
    taken = _take_conversation(db, opening, resolved, facts) if asked.kept == "stored" else None
    row, fence = _new_run(fences, opening, resolved, len(records) - 1)
    db.execute(SQL["insert_run"], row)
    n = fence.n
    values: list[apsw.SQLiteValue] = []
    fence = replace(fence, seq=len(records) - 1, crc=_chain(fence, records, values), conversation=taken)
    after = fence.after_mark(opening.ended) if opening.ended else fence
    fences.staged[opening.run] = after
    if opening.ended:
        _mark(db, [(opening.run, fence, after, opening.ended.filled())], {})
    return Opened(opening.run, resolved, records), n, _insert(db, fences, values)


def _wait_again(db: apsw.Connection, fences: Fences, asked: admission.Asked, run: str) -> None:
    """A retried request takes over a lost run."""
    db.execute(SQL["wait_again"], (asked.owner, run, asked.credential))
    if fence := fences.get(run):
        fences.staged[run] = fence.after_join()


def _take_conversation(db: apsw.Connection, opening: Opening, resolved: Resolved, facts: admission.Found) -> str | None:
    """The run becomes the active run of its conversation, which is created if there is none. Returns its id."""
    asked, conversation = opening.asked, resolved.conversation
    if conversation and facts.conversation:
        db.execute(SQL["take_conversation"], (asked.owner, conversation, opening.run))
    elif conversation:
        metadata = opening.metadata if asked.conversation_use == "make" else b"{}"
        made = (asked.owner, conversation, asked.conversation, opening.run, opening.at, metadata)
        db.execute(SQL["insert_conversation"], made)
    return conversation


def _new_run(
    fences: Fences, opening: Opening, resolved: Resolved, last_seq: int
) -> tuple[tuple[apsw.SQLiteValue, ...], Fence]:
    """The row of a new run, and its fence before the first record."""
    fences.last_n += 1
    held, asked, n = opening.holder is not None, opening.asked, fences.last_n
    crc = origin(opening.run)
    row = (
        n,
        asked.owner,
        opening.run,
        opening.dialect,
        opening.model,
        "running" if held else "queued",
        int(held),
        int(not held),
        last_seq,
        crc,
        opening.at,
        opening.at,
        resolved.session or "",
        resolved.conversation,
        resolved.previous,
        asked.key,
        opening.metadata,
        asked.match,
        asked.credential,
        int(bool(asked.credential)),
        asked.kept,
        asked.resend_ms,
    )
    fence = Fence(
        owner=asked.owner,
        n=n,
        attempt=int(held),
        seq=-1,
        crc=crc,
        parked=not held,
        holder=opening.holder,
        kept=asked.kept,
        resend_ms=asked.resend_ms,
        waits=bool(asked.credential),
    )
    return row, fence


def _chain(fence: Fence, records: Sequence[Record], values: list[apsw.SQLiteValue]) -> int:
    """Add a row of _WIDTH values for each record to `values`. Returns the checksum after the last."""
    owner, n, crc = fence.owner, fence.n, fence.crc
    for record in records:
        seq, attempt, at, data = record.seq, record.attempt, record.at, record.data
        crc = crc32(data, (crc + seq * 31 + attempt * 1_000_003 + at) & 0xFFFFFFFF)  # journal.segments.link, inlined
        values += (owner, n, seq, attempt, at, crc, data)
    return crc


def _insert(db: apsw.Connection, fences: Fences, values: list[apsw.SQLiteValue]) -> int:
    """Insert rows of _WIDTH values each. Returns the id of the first row."""
    rows, start, first = len(values) // _WIDTH, 0, 0
    while start < rows:
        count = min(1 << ((rows - start).bit_length() - 1), 4096)
        db.execute(_INSERT[count], values[start * _WIDTH : (start + count) * _WIDTH])
        if not start:
            first = db.last_insert_rowid() - count + 1
        start += count
    if rows:
        fences.staged_id = first + rows - 1
    return first


class _Appending(Struct):
    """Slices that are appended in one transaction. Rows are gathered and written by few statements, because APSW looks
    each one up, and it may evict another one from the cache."""

    fences: Fences
    whole: Mapping[str, list[Record]]
    """All records of the runs that are packed with their end (Tails.short_ends)."""
    opened: dict[str, int] = {}
    sealed: dict[str, Sealed] = {}
    runs: list[tuple[apsw.SQLiteValue, ...]] = []
    values: list[apsw.SQLiteValue] = []
    segments: list[tuple[apsw.SQLiteValue, ...]] = []
    marks: list[Marked] = []
    audit: list[AuditEntry] = []

    def add(self, part: Slice) -> bool:
        """Add a slice. False: it is fenced."""
        run, records, mark, opening, fences = part.run, part.records, part.mark, part.opening, self.fences
        if opening is None or opening.foregone is None:
            fence = fences.get(run)
        else:
            row, fence = _new_run(fences, opening, opening.foregone, len(records) - 1)
            self.runs.append(row)
            self.opened[run] = fence.n
        if (
            fence is None
            or fence.holder is None
            or fence.attempt != part.attempt
            or (records and records[0].seq != fence.seq + 1)
            or (records and records[-1].seq != fence.seq + len(records))
        ):
            return False
        last, whole = fence.seq + len(records), self.whole.get(run)
        if whole and mark and mark.ended and len(whole) == last + 1:  # no other slice of the run is in this append
            before = origin(run)
            blob, crc = pack(whole, before)
            self.segments.append((fence.owner, fence.n, 0, last, before, blob))
            self.sealed[run] = (last, crc, len(blob))
        else:
            crc = _chain(fence, records, self.values)
        fence = replace(fence, seq=last, crc=crc)
        after: Fence | None = fence
        if mark:  # the next slice must find it, even in the same append
            after = fence.after_mark(mark)
            self.marks.append((run, fence, after, mark.filled()))
        fences.staged[run] = after
        self.audit += part.audit
        return True


def append(db: apsw.Connection, fences: Fences, slices: Sequence[Slice], whole: Mapping[str, list[Record]]) -> Written:
    """Journal.append, inside the transaction."""
    is_written, is_fenced = Verdict.WRITTEN, Verdict.FENCED  # looking up enum members is slow
    new = _Appending(fences, whole)
    verdicts = [is_written if new.add(part) else is_fenced for part in slices]
    if new.runs:
        db.executemany(SQL["insert_run"], new.runs)
    if new.segments:
        db.executemany(SQL["insert_whole"], new.segments)
        if not new.values:  # each commit must move the tip: a log that was cut before this one is found by it
            new.values += _NO_RECORD
    first = _insert(db, fences, new.values)
    if new.marks:
        _mark(db, new.marks, new.sealed)
    if new.audit:
        db.executemany(ACCOUNTS["add_audit"], [astuple(entry) for entry in new.audit])
    return Written(verdicts, first, new.opened, new.sealed.keys())


def _mark(db: apsw.Connection, marks: Sequence[Marked], sealed: Mapping[str, Sealed]) -> None:
    """Write marks, and what else changes with the end of a run."""
    rows: list[tuple[apsw.SQLiteValue, ...]] = []
    for run, fence, after, mark in marks:
        turn = mark.turn or None if fence.kept == "stored" else None  # nothing follows other runs
        wake_at, asks = (after.wake_at, after.asks) if after else (0, "")
        flags = int(mark.parked), int(mark.ended), int(mark.chains)
        rows.append((fence.n, mark.status, *flags, fence.seq, mark.at, turn, wake_at, asks, *sealed.get(run, _OPEN)))
    db.executemany(SQL["mark_run"], rows)
    for run, fence, _, mark in marks:
        if not mark.ended:
            continue
        if fence.signals:
            db.execute(SQL["end_signals"], (run,))
        if mark.void:
            db.execute(SQL["void"], (fence.n, mark.at))
        if fence.conversation:
            db.execute(SQL["free_conversation"], (fence.owner, fence.conversation, run, int(mark.chains)))
        if mark.session:
            db.execute(SQL["add_turn"], (fence.owner, mark.session, mark.at, run, mark.session_turn))


def claim(
    db: apsw.Connection, fences: Fences, run: str, holder: str, first: FirstRecord, at: int
) -> tuple[Claim, int] | None:
    """Journal.claim, inside the transaction. Returns the claim and the row of its record."""
    fence = fences.get(run)
    if fence is None or fence.holder is not None:
        return None
    attempt, overdue = fence.attempt + 1, fence.is_overdue(at)
    record = Record(fence.seq + 1, attempt, at, first(attempt, fence.parked, 0))
    values: list[apsw.SQLiteValue] = []
    crc = _chain(fence, [record], values)
    fence = replace(fence, attempt=attempt, seq=record.seq, crc=crc, parked=False, holder=holder, wake_at=0, asks="")
    fences.staged[run] = fence
    db.execute(SQL["claim_run"], (fence.n, attempt, record.seq, at))
    return Claim(fence.owner, run, attempt, record, overdue), _insert(db, fences, values)


def signal(db: apsw.Connection, fences: Fences, owner: str, signal: Signal) -> bool:
    """Journal.signal, inside the transaction."""
    fence = fences.get(signal.run)
    if fence is None or fence.owner != owner:
        return False
    db.execute(SQL["insert_signal"], (owner, signal.run, signal.kind, signal.key, signal.payload))
    fences.staged[signal.run] = replace(fence, signals=fence.signals | {(signal.kind, signal.key)})
    return True


def answered(db: apsw.Connection, fences: Fences, told: Sequence[Gone], at: int) -> None:
    """Deliveries.answered, inside the transaction."""
    db.executemany(SQL["answered"], [(*each, at) for each in told])
    for owner, run in told:
        fence = fences.get(run)
        if fence is not None and fence.owner == owner and fence.waits:
            fences.staged[run] = replace(fence, waits=False, lost_at=0, left=False)


def lose(db: apsw.Connection, fences: Fences, owner: str, run: str, at: int, *, left: bool) -> list[Any]:
    """Deliveries.lost, inside the transaction. Returns what can be joined now: owner, match, until when."""
    joinable = db.execute(SQL["lose"], (owner, run, at)).fetchall()
    fence = fences.get(run)
    if fence is not None and fence.owner == owner and fence.waits:
        after = fence.after_loss(at, left=left)
        fences.staged[run] = after
        if after.wake_at != fence.wake_at:
            db.execute(SQL["sleep"], (fence.n, after.wake_at))
    return joinable


def strand(db: apsw.Connection, fences: Fences, at: int, besides: Collection[Gone]) -> None:
    """Deliveries.strand, inside the transaction."""
    for owner, run in fences.stranded:
        fence, waits = fences.get(run), (owner, run) in besides
        if not waits:
            db.execute(SQL["strand"], (owner, run, at))
        if fence is not None:
            fences.staged[run] = fence.after_join() if waits else replace(fence, lost_at=at)


def forget(db: apsw.Connection, fences: Fences, gone: Sequence[Gone], since: int) -> list[str]:
    """Journal.forget, inside the transaction. No run of `gone` has a record below row `since`. Returns the runs that
    were forgotten."""
    numbers: list[int] = []
    forgotten: list[str] = []
    for owner, run in gone:
        row: Any = _one(db, "run_to_forget", owner, run)
        if row is None:
            continue
        n, key, entry = row
        numbers.append(n)
        forgotten.append(run)
        for statement, values in (("delete_run", (n,)), ("delete_segments", (owner, n)), ("drop_signals", (run,))):
            db.execute(SQL[statement], values)
        if key is not None:
            db.execute(SQL["delete_key"], (owner, key))
        unlist(db, owner, run, entry)
    if numbers:
        db.execute(SQL["forget_records"], (msgspec.json.encode(numbers).decode(), since))
    return forgotten


DELETED, EVICTED = 1, 2


def hide(db: apsw.Connection, fences: Fences, owner: str, run: str, at: int, how: int) -> bool:
    """Journal.delete and Upkeep.evict, inside the transaction. The run goes, and references to it with it."""
    row = _one(db, "run_for_delete", owner, run)
    if row is None:
        return False
    n, conversation, previous, key, entry = row
    fences.staged[run] = None
    db.execute(SQL["hide_run"], (n, at, how))
    db.execute(SQL["delete_segments"], (owner, n))
    db.execute(SQL["drop_signals"], (run,))
    if key is not None:
        db.execute(SQL["delete_key"], (owner, key))
    if conversation is not None:
        ancestor = _visible_ancestor(db, owner, previous)
        db.execute(SQL["move_latest"], (owner, conversation, run, ancestor))
    unlist(db, owner, run, str(entry))
    return True


def unlist(db: apsw.Connection, owner: str, run: str, entry: str) -> None:
    """A run goes: what its session lists of it goes too, and the session with its last run."""
    if not entry:
        return
    db.execute(SESSIONS["unlist_text"], (owner, entry, run))
    if db.execute(SESSIONS["drop_empty"], (owner, entry)).fetchall():
        db.execute(SESSIONS["forget_texts"], (owner, entry))


def _visible_ancestor(db: apsw.Connection, owner: str, run: apsw.SQLiteValue) -> apsw.SQLiteValue:
    while run is not None:
        row = _one(db, "ancestor", owner, run)
        if row is None:
            return None
        previous, hidden = row
        if not hidden:
            return run
        run = previous
    return None


def turns(db: apsw.Connection, owner: str, resolved: Resolved) -> list[bytes]:
    """Catalog.turns."""
    if resolved.session_turns is not None:
        rows: list[Any] = db.execute(SQL["session"], (owner, resolved.session, resolved.session_turns)).fetchall()
        return turns_of_session(resolved, rows)
    if resolved.previous is None:
        return []
    line: list[Any] = db.execute(SQL["chain"], (owner, resolved.previous, resolved.conversation)).fetchall()
    if not line or line[0][1] is not None or any(turn is None for _, _, turn in line):
        raise Damaged("an earlier turn of this chain is gone from the store")
    return [bytes(turn) for _, _, turn in line]


def rows_of(db: apsw.Connection, query: str, values: tuple[apsw.SQLiteValue, ...]) -> Iterator[RunRow]:
    """Rows of the catalog."""
    yield from map(run_row, db.execute(SQL[query], values))


def run_row(row: Sequence[Any]) -> RunRow:
    """A row of the catalog."""
    owner, run, dialect, model, status, ended, created, updated, session, conv, prev, key, meta, last, kept = row
    return RunRow(
        owner=owner,
        run=run,
        dialect=dialect,
        model=model,
        status=status,
        ended=bool(ended),
        created_at=created,
        updated_at=updated,
        session=session,
        conversation=conv,
        previous=prev,
        key=key,
        metadata=bytes(meta),
        last_seq=last,
        kept=kept,
    )
