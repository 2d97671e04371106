"""Packed records, and the checksum chain. Owns: the form of a segment (a line of numbers and the data of each record,
compressed; the length is told, so that data may be any bytes) and the rule
that each record's checksum contains the one before it, so that nothing can be changed, lost or swapped unnoticed.
Refuses to know: where segments are kept."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from holdfast.core.errors import Damaged
from holdfast.journal.base import Record

SEGMENT_BYTES = 256 * 1024


def origin(run: str) -> int:
    """The checksum before the first record: another for each run, so that no run's log passes for that of another."""
    return zlib.crc32(run.encode())


def link(crc: int, record: Record) -> int:
    """The checksum after `record`, given the one before it. Number, attempt and time are mixed into the start."""
    return zlib.crc32(record.data, (crc + record.seq * 31 + record.attempt * 1_000_003 + record.at) & 0xFFFFFFFF)


def pack(records: Iterable[Record], crc: int) -> tuple[bytes, int]:
    """Records as one blob, and the checksum after the last."""
    parts: list[bytes] = []
    for record in records:
        crc = link(crc, record)
        head = b"%d %d %d %d %d\n" % (record.seq, record.attempt, record.at, crc, len(record.data))
        parts += (head, record.data)
    return zlib.compress(b"".join(parts), 1), crc


def unpack(blob: bytes, crc: int, run: str) -> list[Record]:
    """The records in a blob; Damaged where the chain does not hold. `crc` is the checksum before the first."""
    try:
        records = []
        for record, written in _walk(zlib.decompress(blob)):
            crc = link(crc, record)
            if crc != written:
                raise Damaged(f"run {run}: the checksum of entry {record.seq} does not hold")
            records.append(record)
    except (zlib.error, ValueError) as error:
        raise Damaged(f"run {run}: a segment cannot be unpacked ({error})") from error
    return records


def _walk(packed: bytes) -> Iterator[tuple[Record, int]]:
    """The records of a segment with the checksums that were written with them."""
    place = 0
    while place < len(packed):
        head_end = packed.index(b"\n", place) + 1
        seq, attempt, at, crc, size = map(int, packed[place:head_end].split())
        if size < 0:
            raise ValueError(f"a record of {size} bytes")
        place = head_end + size
        yield Record(seq, attempt, at, packed[head_end:place]), crc
