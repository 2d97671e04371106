"""Packed records, and the checksum chain. Owns: the format of a segment, and the chain: the checksum of a record covers
the one before it. So no record can be changed, lost or swapped unnoticed. A segment is compressed. For each record it
holds a line of numbers, which includes the length, and the data, which may be any bytes. Refuses to know: where
segments are stored."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

import msgspec

from ninelives.core.errors import Damaged
from ninelives.core.rope import turn
from ninelives.journal.values import Record

SEGMENT_BYTES = 256 * 1024
SHORT_BYTES = 2048
PACKED = 8
"""About how much a segment is compressed."""
_STORED = struct.Struct("<3sHH")
_LINE = msgspec.json.Decoder(tuple[int, int, int, int, int])


def origin(run: str) -> int:
    """The checksum before the first record. It depends on the run, so that no log can pass for that of another run."""
    return zlib.crc32(run.encode())


def link(crc: int, record: Record) -> int:
    """The checksum after `record`, given the one before it. Seq, attempt and time are mixed into the start value."""
    return zlib.crc32(record.data, (crc + record.seq * 31 + record.attempt * 1_000_003 + record.at) & 0xFFFFFFFF)


def pack(records: Iterable[Record], crc: int) -> tuple[bytes, int]:
    """Pack records into one blob. Returns the blob and the checksum after the last record."""
    parts: list[bytes] = []
    for record in records:
        seq, attempt, at, data = record.seq, record.attempt, record.at, record.data
        crc = zlib.crc32(data, (crc + seq * 31 + attempt * 1_000_003 + at) & 0xFFFFFFFF)  # link, inlined
        parts += (b"%d %d %d %d %d\n" % (seq, attempt, at, crc, len(data)), data)
    data = b"".join(parts)
    if len(data) > SHORT_BYTES:
        return zlib.compress(data, 1), crc
    # The same format, not compressed: one stored block. To save a kilobyte took 4 % of the instructions of a small
    # chat, and to let zlib make the block half a percent.
    head = _STORED.pack(b"\x78\x01\x01", len(data), len(data) ^ 0xFFFF)
    return b"".join((head, data, zlib.adler32(data).to_bytes(4, "big"))), crc


def unpack(blob: bytes, crc: int, run: str) -> list[Record]:
    """The records in a blob. `crc` is the checksum before the first. Raises Damaged if a checksum is wrong.

    A replay spends most of its time here. One flat loop, with `link` inlined and each line parsed as a JSON list, takes
    1.7 us per record. A generator with map(int) and calls of `link` took 2.6 us."""
    records: list[Record] = []
    add, crc32, numbers = records.append, zlib.crc32, _LINE.decode
    place = 0
    try:
        with turn(len(blob) * PACKED):
            packed = zlib.decompress(blob)
        line, end = packed.index, len(packed)
        with turn(end):
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
