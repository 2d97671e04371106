"""Packed records, and the checksum chain. Owns: the form of a segment (one line per record, compressed) and the rule
that each record's checksum contains the one before it, so that nothing can be changed, lost or swapped unnoticed.
Refuses to know: where segments are kept."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from holdfast.core.errors import Damaged
from holdfast.journal.base import Record

SEGMENT_BYTES = 256 * 1024


def link(crc: int, record: Record) -> int:
    """The checksum after `record`, given the one before it. Number, attempt and time are mixed into the start."""
    return zlib.crc32(record.data, (crc + record.seq * 31 + record.attempt * 1_000_003 + record.at) & 0xFFFFFFFF)


def pack(records: Iterable[Record], crc: int) -> tuple[bytes, int]:
    """Records as one blob, and the checksum after the last."""
    lines = []
    for record in records:
        crc = link(crc, record)
        lines.append(b"%d %d %d %d " % (record.seq, record.attempt, record.at, crc) + record.data)
    return zlib.compress(b"\n".join(lines), 1), crc


def unpack(blob: bytes, crc: int, run: str) -> list[Record]:
    """The records in a blob; Damaged where the chain does not hold. `crc` is the checksum before the first."""
    try:
        lines = zlib.decompress(blob).split(b"\n")
    except zlib.error as error:
        raise Damaged(f"run {run}: a segment cannot be unpacked ({error})") from error
    records = []
    for line in lines:
        seq, attempt, at, told, data = line.split(b" ", 4)
        record = Record(int(seq), int(attempt), int(at), data)
        crc = link(crc, record)
        if crc != int(told):
            raise Damaged(f"run {run}: the checksum of entry {record.seq} does not hold")
        records.append(record)
    return records
