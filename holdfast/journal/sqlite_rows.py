"""What the SQLite writer thread does inside a transaction. Owns: the statements of open, append, claim, signal and
delete, and the fences. Refuses to know: threads, loops, tails in memory.

Theory of operation. A fence (attempt, last seq, checksum, holder) is kept per open run in a dict that only the
writer thread touches, loaded at start under the data directory's lock; rows get attempt and last_seq only at claim,
park and end, because a per-run UPDATE in each flush cost three times as much. Changes to fences go to an overlay
that becomes true only after COMMIT: a rolled back batch leaves no trace in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apsw
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import admission
from holdfast.core.errors import Damaged
from holdfast.core.spec import Resolved
from holdfast.journal import queries
from holdfast.journal.base import (
    Attached,
    Claim,
    Mark,
    Opened,
    Opening,
    Record,
    Row,
    Signal,
    Slice,
    Verdict,
)
from holdfast.journal.segments import link, origin

SQL = queries.load("sqlite.sql")
_VALUES = "(?,?,?,?,?,?)"
_INSERT = {
    # The one statement that is built: few big statements are what makes the log fast (powers of two, so few exist).
    1 << k: "INSERT INTO entries(run,seq,attempt,at,crc,data) VALUES " + ",".join([_VALUES] * (1 << k))
    for k in range(13)
}


class Fence(Struct, frozen=True):
    """What the writer knows of an open run."""

    owner: str
    n: int
    attempt: int
    seq: int
    crc: int
    parked: bool
    holder: str | None = None
    lease_until: float = 0.0
    conversation: str | None = None


class Written(Struct, frozen=True):
    """Where new records went: the rowid of the first."""

    verdicts: list[Verdict]
    first_id: int


class Fences:
    """The dict of fences with its overlay."""

    def __init__(self) -> None:
        self.settled: dict[str, Fence] = {}
        self._staged: dict[str, Fence | None] = {}
        self._staged_id = 0
        self.last_id = 0
        """The last row of the log that is committed."""

    def wrote(self, first_id: int, count: int) -> int:
        """This transaction wrote rows of the log; the first of them."""
        if count:
            self._staged_id = first_id + count - 1
        return first_id

    def get(self, run: str) -> Fence | None:
        """The fence as this transaction sees it."""
        return self._staged[run] if run in self._staged else self.settled.get(run)

    def put(self, run: str, fence: Fence | None) -> None:
        """Change it for this transaction; None: the run is over."""
        self._staged[run] = fence

    def commit(self) -> None:
        """The transaction happened."""
        for run, fence in self._staged.items():
            if fence is None:
                self.settled.pop(run, None)
            else:
                self.settled[run] = fence
        self._staged.clear()
        self.last_id = max(self.last_id, self._staged_id)

    def rollback(self) -> None:
        """It did not."""
        self._staged.clear()
        self._staged_id = self.last_id


def _one(db: apsw.Connection, query: str, *values: apsw.SQLiteValue) -> tuple[apsw.SQLiteValue, ...] | None:
    return db.execute(SQL[query], values).fetchone()


def found(db: apsw.Connection, asked: admission.Asked, at: int = 0) -> admission.Found:
    """What the store holds for a question that is asked at a time (0: one that takes nobody's place)."""
    key = _one(db, "key", asked.owner, asked.key) if asked.key is not None else None
    previous = _one(db, "previous", asked.owner, asked.previous) if asked.previous else None
    talk = _one(db, "conversation", asked.owner, asked.conversation) if asked.conversation else None
    turns = _one(db, "session_length", asked.owner, asked.session) if asked.session else None
    return admission.Found(
        key=admission.KeyFound(*key) if key else None,  # type: ignore[arg-type]
        previous=admission.RunFound(bool(previous[0]), str(previous[1]), expired=previous[2] == EVICTED)
        if previous
        else None,
        conversation=admission.ConversationFound(*talk) if talk else None,  # type: ignore[arg-type]
        session_turns=int(turns[0]) if turns else 0,  # type: ignore[arg-type]
        lost=_lost(db, asked, at),
    )


def _lost(db: apsw.Connection, asked: admission.Asked, at: int) -> str | None:
    if asked.again is None or not at:
        return None
    again, since = asked.again, max(1, at - asked.again.within_ms)
    credential = asked.credential if again.same_credential else None
    row = _one(db, "lost_run", asked.owner, asked.fingerprint, since, credential, again.session)
    return str(row[0]) if row else None


def open_run(
    db: apsw.Connection, fences: Fences, opening: Opening, lease_until: float
) -> tuple[Opened, int, int] | Attached:
    """Journal.open, inside the transaction: the run, its number and the rowid of its first record."""
    asked = opening.asked
    facts = found(db, asked, opening.at)
    decision = admission.decide(asked, facts)
    if isinstance(decision, admission.Attach):
        if decision.again:
            db.execute(SQL["wait_again"], (asked.owner, decision.run))
        return Attached(decision.run, decision.again)
    resolved = decision.resolved
    data = opening.accept(resolved)
    attempt = 1 if opening.holder else 0
    records = opening.first_records(data, attempt)
    n = _insert_run(db, opening, resolved, len(records) - 1)
    if asked.key is not None:
        db.execute(SQL["insert_key"], (asked.owner, asked.key, asked.fingerprint, opening.run))
    if resolved.conversation and facts.conversation:
        db.execute(SQL["take_conversation"], (asked.owner, resolved.conversation, opening.run))
    elif resolved.conversation:
        metadata = opening.metadata if asked.conversation_use == "make" else b"{}"
        made = (asked.owner, resolved.conversation, asked.conversation, opening.run, opening.at, metadata)
        db.execute(SQL["insert_conversation"], made)
    values: list[apsw.SQLiteValue] = []
    crc = _chain(n, origin(opening.run), records, values)
    fence = Fence(asked.owner, n, attempt, len(records) - 1, crc, not attempt, opening.holder, lease_until)
    fence = replace(fence, conversation=resolved.conversation)
    fences.put(opening.run, _after_mark(fence, opening.ended))
    if opening.ended:
        _mark(db, opening.run, fence, opening.ended)
    return Opened(opening.run, resolved, records), n, _insert(db, fences, values)


def _insert_run(db: apsw.Connection, opening: Opening, resolved: Resolved, last_seq: int) -> int:
    held = opening.holder is not None
    rows: list[Any] = db.execute(
        SQL["insert_run"],
        (
            opening.asked.owner,
            opening.run,
            opening.dialect,
            opening.model,
            "running" if held else "queued",
            int(held),
            int(not held),
            last_seq,
            origin(opening.run),
            opening.at,
            opening.at,
            resolved.session or "",
            resolved.conversation,
            resolved.previous,
            opening.asked.key,
            opening.metadata,
            opening.asked.fingerprint,
            opening.asked.credential,
            int(bool(opening.asked.credential)),
        ),
    ).fetchall()
    return int(rows[0][0])


def _chain(n: int, crc: int, records: Sequence[Record], values: list[apsw.SQLiteValue]) -> int:
    """Add a row of six values for each record; the checksum after the last."""
    for record in records:
        crc = link(crc, record)
        values += (n, record.seq, record.attempt, record.at, crc, record.data)
    return crc


def _insert(db: apsw.Connection, fences: Fences, values: list[apsw.SQLiteValue]) -> int:
    """Insert rows of six values each; the rowid of the first."""
    rows, start, first = len(values) // 6, 0, 0
    while start < rows:
        count = min(1 << ((rows - start).bit_length() - 1), 4096)
        db.execute(_INSERT[count], values[start * 6 : (start + count) * 6])
        if not start:
            first = db.last_insert_rowid() - count + 1
        start += count
    return fences.wrote(first, rows)


def append(db: apsw.Connection, fences: Fences, slices: Sequence[Slice]) -> Written:
    """Journal.append, inside the transaction."""
    verdicts: list[Verdict] = []
    values: list[apsw.SQLiteValue] = []
    marks: list[tuple[Slice, Fence, Mark]] = []
    is_written, is_fenced = Verdict.WRITTEN, Verdict.FENCED  # an enumeration is slow to ask
    for part in slices:
        fence = fences.get(part.run)
        if (
            fence is None
            or fence.holder is None
            or fence.attempt != part.attempt
            or (part.records and part.records[0].seq != fence.seq + 1)
            or (part.records and part.records[-1].seq != fence.seq + len(part.records))
        ):
            verdicts.append(is_fenced)
            continue
        crc = _chain(fence.n, fence.crc, part.records, values)
        fence = replace(fence, seq=fence.seq + len(part.records), crc=crc)
        fences.put(part.run, _after_mark(fence, part.mark))
        verdicts.append(is_written)
        if part.mark:
            marks.append((part, fence, part.mark))
    first = _insert(db, fences, values)
    for part, fence, mark in marks:
        _mark(db, part.run, fence, mark)
    return Written(verdicts, first)


def _after_mark(fence: Fence, mark: Mark | None) -> Fence | None:
    """The fence as the next slice must find it, be it in the same append."""
    if mark is not None and mark.ended:
        return None
    return replace(fence, holder=None, parked=True) if mark is not None and mark.parked else fence


def _mark(db: apsw.Connection, run: str, fence: Fence, mark: Mark) -> None:
    turn = mark.turn or None
    db.execute(
        SQL["mark_run"],
        (fence.n, mark.status, int(mark.parked), int(mark.ended), int(mark.chains), fence.seq, mark.at, turn),
    )
    if not mark.ended:
        return
    db.execute(SQL["drop_signals"], (run,))
    if mark.void:
        db.execute(SQL["answered"], (fence.owner, run))
    if fence.conversation:
        db.execute(SQL["free_conversation"], (fence.owner, fence.conversation, run, int(mark.chains)))
    if mark.session:
        db.execute(SQL["add_turn"], (fence.owner, mark.session, mark.at, run, mark.turn))


def claim(
    db: apsw.Connection,
    fences: Fences,
    taken: tuple[str, str, int],
    lease: tuple[float, float],
    first: Callable[[int, bool], bytes],
) -> tuple[Claim, Written] | None:
    """Journal.claim, inside the transaction. `taken` is (run, holder, at), `lease` (now, until)."""
    run, holder, at = taken
    now, until = lease
    fence = fences.get(run)
    if fence is None or (fence.holder is not None and fence.lease_until > now):
        return None
    attempt = fence.attempt + 1
    record = Record(fence.seq + 1, attempt, at, first(attempt, fence.parked))
    values: list[apsw.SQLiteValue] = []
    crc = _chain(fence.n, fence.crc, [record], values)
    fence = replace(fence, attempt=attempt, seq=record.seq, crc=crc, parked=False, holder=holder, lease_until=until)
    fences.put(run, fence)
    db.execute(SQL["claim_run"], (fence.n, attempt, record.seq, at))
    return Claim(fence.owner, run, attempt, record), Written([], _insert(db, fences, values))


def signal(db: apsw.Connection, fences: Fences, owner: str, wish: Signal) -> bool:
    """Journal.signal, inside the transaction."""
    fence = fences.get(wish.run)
    if fence is None or fence.owner != owner:
        return False
    db.execute(SQL["insert_signal"], (owner, wish.run, wish.kind, wish.key, wish.payload))
    return True


DELETED, EVICTED = 1, 2


def hide(db: apsw.Connection, fences: Fences, named: tuple[str, str], at: int, how: int) -> bool:
    """Journal.delete and Upkeep.evict, inside the transaction: a run (owner, id) goes, its references with it."""
    owner, run = named
    row = _one(db, "run_for_delete", owner, run)
    if row is None:
        return False
    n, conversation, previous, key = row
    fences.put(run, None)
    db.execute(SQL["hide_run"], (n, at, how))
    db.execute(SQL["delete_segments"], (n,))
    db.execute(SQL["drop_signals"], (run,))
    if key is not None:
        db.execute(SQL["delete_key"], (owner, key))
    if conversation is not None:
        ancestor = _visible_ancestor(db, owner, previous)
        db.execute(SQL["move_latest"], (owner, conversation, run, ancestor))
    return True


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
        found = db.execute(SQL["session"], (owner, resolved.session, resolved.session_turns))
        kept = [turn for (turn,) in found if isinstance(turn, bytes)]
        if len(kept) < resolved.session_turns:
            raise Damaged("an earlier turn of this session is gone from the store")
        return kept
    if resolved.previous is None:
        return []
    line: list[Any] = db.execute(SQL["chain"], (owner, resolved.previous, resolved.conversation)).fetchall()
    if not line or line[0][1] is not None or any(turn is None for _, _, turn in line):
        raise Damaged("an earlier turn of this chain is gone from the store")
    return [bytes(turn) for _, _, turn in line]


def rows_of(db: apsw.Connection, query: str, values: tuple[apsw.SQLiteValue, ...]) -> Iterator[Row]:
    """Rows of the catalog."""
    found: Any = db.execute(SQL[query], values)
    for owner, run, dialect, model, status, ended, created, updated, session, conv, prev, key, meta, last in found:
        yield Row(
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
        )
