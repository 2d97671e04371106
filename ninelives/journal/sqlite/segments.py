"""The SQL side of segments. Owns: finding the segment of a position, packing records, storing segments, and trimming
the hot table. Refuses to know: threads, and when any of this is done."""

from __future__ import annotations

from typing import Any

import apsw
from msgspec import Struct

from ninelives.core.errors import Damaged
from ninelives.core.rope import turn
from ninelives.journal.segments import SEGMENT_BYTES, pack, unpack
from ninelives.journal.sqlite.rows import SQL
from ninelives.journal.values import Record


class Segment(Struct, frozen=True):
    """Packed records of one run, with the checksums before the first and after the last."""

    first: int
    last: int
    crc_before: int
    crc_after: int
    blob: bytes


def read_segment(db: apsw.Connection, owner: str, run: str, after: int) -> list[Record]:
    """The records after `after` of the segment that holds the next one. Raises Damaged if that segment is missing."""
    rows: list[tuple[Any, ...]] = db.execute(SQL["segment"], (owner, run, after)).fetchall()
    if not rows or after >= rows[0][0]:
        return []
    sealed, crc, blob = rows[0]
    page = [record for record in unpack(blob, crc, run) if record.seq > after] if blob is not None else []
    if not page or page[0].seq != after + 1:
        raise Damaged(f"run {run}: entry {after + 1} is missing, though the run is sealed up to entry {sealed}")
    return page


def pack_all(records: list[Record], crc: int) -> list[Segment]:
    """Pack records into segments of about SEGMENT_BYTES. `crc` is the checksum before the first record."""
    segments: list[Segment] = []
    start = size = 0
    if records and sum([len(record.data) for record in records]) < SEGMENT_BYTES:  # nearly all runs
        blob, after = pack(records, crc)
        return [Segment(records[0].seq, records[-1].seq, crc, after, blob)]
    for place, record in enumerate(records):
        size += len(record.data)
        if size >= SEGMENT_BYTES or place == len(records) - 1:
            with turn(size):
                blob, after = pack(records[start : place + 1], crc)
            segments.append(Segment(records[start].seq, record.seq, crc, after, blob))
            start, size, crc = place + 1, 0, after
    return segments


def store_segments(db: apsw.Connection, packed: list[tuple[int, list[Segment]]]) -> None:
    """Write the segments of runs, each given by its number, and note in their rows how far they are sealed."""
    rows = [(n, each.first, each.last, each.crc_before, each.blob) for n, segments in packed for each in segments]
    db.executemany(SQL["insert_segment"], rows)
    ends = [(n, segments[-1], sum(len(each.blob) for each in segments)) for n, segments in packed]
    db.executemany(SQL["seal_run"], [(n, end.last, end.crc_after, size) for n, end, size in ends])
