"""The SQL side of segments. Owns: finding the segment of a place, packing a run's records, storing them, and taking
rows out of the hot table in slices. Refuses to know: threads, and when any of this is done."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.core.errors import Damaged
from holdfast.journal.base import Record
from holdfast.journal.segments import SEGMENT_BYTES, pack, unpack
from holdfast.journal.sqlite_rows import SQL


def read_segment(db: apsw.Connection, owner: str, run: str, after: int) -> list[Record]:
    """The records of the segment in which the place after `after` lies; Damaged where there must be one and is not."""
    rows: list[tuple[Any, ...]] = db.execute(SQL["segment"], (owner, run, after)).fetchall()
    if not rows or after >= rows[0][0]:
        return []
    sealed, crc, blob = rows[0]
    page = [record for record in unpack(blob, crc, run) if record.seq > after] if blob is not None else []
    if not page or page[0].seq != after + 1:
        raise Damaged(f"run {run}: entry {after + 1} is gone, though {sealed} entries follow the first")
    return page


Segment = tuple[int, int, int, int, bytes]
"""First seq, last seq, checksum before, checksum after, blob."""


def pack_all(records: list[Record], crc: int) -> list[Segment]:
    """Slices of about SEGMENT_BYTES."""
    segments: list[Segment] = []
    start = size = 0
    for place, record in enumerate(records):
        size += len(record.data)
        if size >= SEGMENT_BYTES or place == len(records) - 1:
            blob, after = pack(records[start : place + 1], crc)
            segments.append((records[start].seq, record.seq, crc, after, blob))
            start, size, crc = place + 1, 0, after
    return segments


Tailed = tuple[int, list[Record], int]
"""A run's number, its records, and the checksum before them."""


def store_all(db: apsw.Connection, runs: list[Tailed], packed: list[list[Segment]]) -> None:
    """What was packed of each run is written."""
    for (n, _, _), segments in zip(runs, packed, strict=True):
        if segments:
            store_segments(db, n, segments)


def store_segments(db: apsw.Connection, n: int, segments: list[Segment]) -> None:
    """Segments of a run are written; its row knows how far it is packed."""
    for first, last, before, _after, blob in segments:
        db.execute(SQL["insert_segment"], (n, first, last, before, blob))
    db.execute(SQL["seal_run"], (n, segments[-1][1], segments[-1][3], sum(len(blob) for *_, blob in segments)))


def trim_slice(db: apsw.Connection, floor: int) -> int:
    """Rows below `floor` leave the hot table, at most 2,000 at a time; how many did."""
    db.execute(SQL["trim"], (floor,))
    return db.changes()
