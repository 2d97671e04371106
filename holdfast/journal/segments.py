"""Packed records, and the checksum chain. Owns: the form of a segment (a line of numbers and the data of each record,
compressed; the length is told, so that data may be any bytes) and the rule
that each record's checksum contains the one before it, so that nothing can be changed, lost or swapped unnoticed.
Refuses to know: where segments are kept."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from holdfast.core.errors import Damaged
from holdfast.journal.base import Record

SEGMENT_BYTES = 256 * 1024
SHORT_BYTES = 2048
_LINE = msgspec.json.Decoder(tuple[int, int, int, int, int])


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
    return _compressed(b"".join(parts)), crc


def _compressed(data: bytes) -> bytes:
    """A short run needs no table of 256 KB, which to clear took three times as long as to pack it."""
    if len(data) > SHORT_BYTES:
        return zlib.compress(data, 1)
    small = zlib.compressobj(1, zlib.DEFLATED, 12, 5)
    return small.compress(data) + small.flush()


def unpack(blob: bytes, crc: int, run: str) -> list[Record]:
    """The records in a blob; Damaged where the chain does not hold. `crc` is the checksum before the first.

    A replay spends most of its time here: one flat loop with `link` written out and each line read as a JSON list,
    1.7 us a record. A generator of records, their lines by map(int) and their checksums by calls took 2.6."""
    records: list[Record] = []
    add, crc32, numbers = records.append, zlib.crc32, _LINE.decode
    place = 0
    try:
        packed = zlib.decompress(blob)
        line, end = packed.index, len(packed)
        while place < end:
            begin = line(b"\n", place)
            seq, attempt, at, written, size = numbers(b"[%b]" % packed[place:begin].replace(b" ", b","))
            if size < 0:
                raise ValueError(f"a record of {size} bytes")
            begin += 1
            place = begin + size
            data = packed[begin:place]
            crc = crc32(data, (crc + seq * 31 + attempt * 1_000_003 + at) & 0xFFFFFFFF)
            if crc != written:
                raise Damaged(f"run {run}: the checksum of entry {seq} does not hold")
            add(Record(seq, attempt, at, data))
    except (zlib.error, ValueError, msgspec.MsgspecError) as error:
        raise Damaged(f"run {run}: a segment cannot be unpacked ({error})") from error
    return records
