"""The newest records of runs, in memory. Owns: which records of a run are still in the hot table, so that a reader
of a live run needs no index there, and from which rowid on the hot table is needed at all. A cache of the hot table,
rebuilt from it at start. Refuses to know: SQL."""

from __future__ import annotations

from msgspec import Struct

from holdfast.journal.base import PAGE_BYTES, Record
from holdfast.journal.segments import SEGMENT_BYTES

SPILL_BYTES = 1024 * 1024
"""A tail longer than this is packed into segments, while its run goes on."""


BUSY_ROWS, MANY_RUNS, ROUNDS = 500, 256, 12


class Patience:
    """How long packing waits. It takes a core a millisecond or two for each run of some hundred records, which is what
    live streams of others wait for; nothing is lost by doing it a moment later."""

    def __init__(self) -> None:
        self._rows = self._waited = 0

    def over(self, rows: int, runs: int) -> bool:
        """Asked once a round, with the rows that were ever written and the runs that wait: is it time? Not while many
        rows are written, but for so many rounds, or runs, only."""
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
    sealing: bool = False

    def add(self, records: list[Record], first_id: int) -> None:
        """New records were committed, the first at `first_id` or later."""
        if not self.records:
            self.first_id = first_id
        self.records += records
        for record in records:
            self.size += len(record.data)

    def page(self, after: int) -> list[Record] | None:
        """Records after `after`; None where some of them are in segments."""
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

    def forget(self, count: int, crc: int, first_id: int) -> None:
        """The first `count` records are in segments now."""
        self.size -= sum(len(record.data) for record in self.records[:count])
        del self.records[:count]
        self.crc = crc
        self.first_id = first_id


def needed_from(tails: dict[str, Tail], end: int) -> int:
    """The lowest rowid that some tail still needs."""
    return min((tail.first_id for tail in tails.values() if tail.records), default=end)


def oldest(tails: dict[str, Tail]) -> str:
    """The run that needs the lowest row; there must be one that needs any."""
    return min((tail.first_id, run) for run, tail in tails.items() if tail.records)[1]


def some_of(runs: list[str], tails: dict[str, Tail]) -> list[str]:
    """So many of the last of these as are packed in one go: 64, or what makes about one segment."""
    size = count = 0
    for run in reversed(runs[-64:]):
        size += tails[run].size if run in tails else 0
        if count and size > SEGMENT_BYTES:
            break
        count += 1
    return runs[-count:]
