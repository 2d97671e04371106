"""The newest records of runs, in memory. Owns: which records of a run are still in the hot table, so that readers of a
live run need no index there; which rows of the hot table are still needed; which runs to seal next. It is a cache of
the hot table, rebuilt at each start. Refuses to know: SQL and threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from msgspec import Struct

from ninelives.journal.segments import SEGMENT_BYTES, SHORT_BYTES, origin
from ninelives.journal.values import PAGE_BYTES, Opening, Record, Slice, Verdict

SPILL_BYTES = 1024 * 1024
"""A tail longer than this is packed into segments while its run goes on (docs/architecture.md, R11)."""
QUEUED_BYTES = 64 * 1024
"""The same for a run that waits for a slot: nobody reads it meanwhile, and many may wait."""
SEAL_RUNS = 64
JOINABLE = 1024
"""From so many on, what can be joined is looked through for what no longer can."""
BUSY_ROWS, MANY_RUNS, ROUNDS = 500, 256, 12


class Written(Struct, frozen=True):
    """The result of an append. `first_id` is the row of the first new record; `opened` has the numbers of new runs;
    `sealed` the runs that were packed whole, with their end."""

    verdicts: list[Verdict]
    first_id: int
    opened: dict[str, int]
    sealed: Set[str]


class JoinableRuns:
    """Which requests may join a run whose connection was lost (Asked.match), as far as a process that has the store to
    itself must know. Used on the event loop only."""

    def __init__(self) -> None:
        self.until: dict[tuple[str, str], int] = {}
        """Until when, by owner and match. Some that were joined meanwhile are there too."""
        self._most = JOINABLE

    def add(self, found: Iterable[tuple[str, str, int]], now: int) -> None:
        """(owner, match, until when) of runs that were lost."""
        for owner, match, until in found:
            self.until[owner, match] = max(until, self.until.get((owner, match), 0))
        if len(self.until) > self._most:
            self.until = {match: until for match, until in self.until.items() if until >= now}
            self._most = JOINABLE + 2 * len(self.until)


class SealDelay:
    """Postpones sealing while the store is busy. Packing a run of some hundred records takes a core for one or two
    milliseconds, and live streams wait that long. Sealing a moment later loses nothing."""

    def __init__(self) -> None:
        self._rows = self._waited = 0

    def is_over(self, rows: int, runs: int) -> bool:
        """Call once per round, with the rows written so far and the number of runs to seal. False while many rows are
        written, for a limited number of rounds and of runs."""
        busy, self._rows = rows - self._rows > BUSY_ROWS, rows
        self._waited = self._waited + 1 if busy and runs < MANY_RUNS and self._waited < ROUNDS else 0
        return not self._waited


class Tail(Struct):
    """The records of one run that are not in a segment yet."""

    owner: str
    n: int
    records: list[Record]
    crc: int
    """The checksum before the first record."""
    first_id: int
    """No row of this run below this id is needed."""
    size: int = 0
    ended: bool = False
    brief: bool = False
    """Kept until its delivery: not sealed at its end, because it is forgotten soon after."""
    opened_id: int = 0
    """No row of this run is below this id."""
    packed: bool = False
    """Some of its records were packed, and are perhaps on their way into a segment."""

    @property
    def must_be_sealed(self) -> bool:
        """The run has ended and is kept."""
        return self.ended and not self.brief

    def add(self, records: list[Record], first_id: int) -> None:
        """Add committed records, the first at row `first_id` or later."""
        if not self.records:
            self.first_id = first_id
        self.records += records
        for record in records:
            self.size += len(record.data)

    def page(self, after: int) -> list[Record] | None:
        """Records after `after`; None if some of them are in segments."""
        if not self.records:
            return None
        start = after + 1 - self.records[0].seq
        if start < 0:
            return None
        page, size = [], 0
        for record in self.records[start : start + 4096]:
            page.append(record)
            size += len(record.data)
            if size > PAGE_BYTES:
                break
        return page

    def drop_first(self, count: int, crc: int, first_id: int) -> None:
        """Remove the first `count` records: they are in segments now."""
        dropped, self.records = self.records[:count], self.records[count:]
        self.size = self.size - sum([len(record.data) for record in dropped]) if self.records else 0
        self.crc = crc
        self.first_id = first_id


def _new_tail(opening: Opening, n: int, first_id: int) -> Tail:
    brief = opening.asked.kept == "delivery"
    return Tail(opening.asked.owner, n, [], origin(opening.run), first_id, brief=brief, opened_id=first_id)


class Tails:
    """The tails of all runs that have records in the hot table. Used on the event loop only."""

    def __init__(self) -> None:
        self.by_run: dict[str, Tail] = {}
        self.end_id = 1
        """The row after the last committed one."""
        self.to_seal: list[str] = []

    def load(self, tails: dict[str, Tail], end_id: int) -> None:
        """Take over what a start found in the hot table."""
        self.by_run.update(tails)
        self.end_id = end_id
        self.to_seal = [run for run, tail in tails.items() if tail.size > SPILL_BYTES or tail.must_be_sealed]

    def add_opened(self, opening: Opening, records: list[Record], n: int, first_id: int) -> None:
        """A run was opened as number `n`; its first record is at row `first_id`."""
        tail = self.by_run[opening.run] = _new_tail(opening, n, first_id)
        tail.ended = opening.ended is not None
        tail.add(records, first_id)
        waits = opening.holder is None and tail.size > QUEUED_BYTES
        if tail.must_be_sealed or waits or tail.size > SPILL_BYTES:
            self.to_seal.append(opening.run)
        self.end_id = max(self.end_id, first_id + len(records))

    def short_ends(self, slices: Sequence[Slice]) -> dict[str, list[Record]]:
        """The runs that end with one of `slices`, each with all its records, if packing them costs less than rows."""
        whole: dict[str, list[Record]] = {}
        for part in slices:
            if part.mark is None or not part.mark.ended:
                continue
            tail = self.by_run.get(part.run)
            if tail is None or tail.packed or tail.brief or not tail.records or tail.records[0].seq:
                continue
            if tail.size + sum([len(record.data) for record in part.records]) <= SHORT_BYTES:
                whole[part.run] = tail.records + part.records
        return whole

    def add_appended(self, slices: Sequence[Slice], written: Written) -> list[Verdict]:
        """Slices were appended. Returns their verdicts."""
        place, fenced = written.first_id, Verdict.FENCED
        for part, verdict in zip(slices, written.verdicts, strict=True):
            if verdict is fenced:
                continue
            if part.run in written.sealed:
                self.by_run.pop(part.run, None)
                continue
            if part.opening is not None:
                self.by_run[part.run] = _new_tail(part.opening, written.opened[part.run], place)
            tail = self.by_run[part.run]
            tail.add(part.records, place)
            place += len(part.records)
            if part.mark or tail.size > SPILL_BYTES:
                tail.ended = bool(part.mark and part.mark.ended)
                if not (tail.ended and tail.brief):
                    self.to_seal.append(part.run)
        self.end_id = max(self.end_id, place)
        return written.verdicts

    def add_claimed(self, run: str, record: Record, row_id: int) -> None:
        """A claim wrote its record at row `row_id`."""
        self.by_run[run].add([record], row_id)
        self.end_id = max(self.end_id, row_id + 1)

    def drop(self, run: str) -> None:
        """A deleted, expired or forgotten run has no tail, and one that was packed with its end needs none."""
        self.by_run.pop(run, None)

    def opened_from(self, runs: Iterable[str]) -> int:
        """No row of these runs is below this one."""
        return min((self.by_run[run].opened_id if run in self.by_run else 0 for run in runs), default=0)

    def needed_from(self) -> int:
        """The lowest row that some tail still needs."""
        return min((tail.first_id for tail in self.by_run.values() if tail.records), default=self.end_id)

    def oldest(self) -> str:
        """The run that needs the lowest row. At least one tail must hold records."""
        return min((tail.first_id, run) for run, tail in self.by_run.items() if tail.records)[1]

    def last_to_pack(self, runs: list[str]) -> list[str]:
        """The last of `runs` that are packed in one go: SEAL_RUNS of them, or about one segment."""
        size = count = 0
        for run in reversed(runs[-SEAL_RUNS:]):
            size += self.by_run[run].size if run in self.by_run else 0
            if count and size > SEGMENT_BYTES:
                break
            count += 1
        return runs[-count:]
