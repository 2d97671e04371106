"""How far the log was written, kept beside the database. Owns: one small mapped file with the number of the last row
that was committed. SQLite ends its write-ahead log at the first frame whose checksum does not hold, without a word: a
damaged log looks like a shorter one. A store that ends before its mark has lost entries, and says so. The mark is
written after each commit, in memory that the kernel keeps when the process is killed; a machine that lost its power
may have lost the last commits too (durability normal), so the mark also names the boot. Refuses to know: SQL."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

_FORM = struct.Struct("<8sIQ36s")
_SIZE = 64
_MAGIC = b"holdfast"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """This boot of the machine; empty where the system does not say."""
    try:
        return _BOOT.read_bytes().strip()[:36]
    except OSError:
        return b""


class Watermark:
    """The mark of one database. `last` is the row of the last process, `same_boot` whether it can be relied on."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size < _SIZE:
                os.ftruncate(fd, _SIZE)
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._boot = boot_id()
        self.last, boot = self._read()
        self.same_boot = bool(boot) and boot == self._boot

    def _read(self) -> tuple[int, bytes]:
        magic, crc, last, boot = _FORM.unpack_from(self._map)
        if magic != _MAGIC or crc != zlib.crc32(struct.pack("<Q36s", last, boot)):
            return 0, b""  # never written, or torn by a lost machine: it says nothing
        return last, boot.rstrip(b"\0")

    def note(self, last: int) -> None:
        """The row `last` is committed."""
        self.last = last
        crc = zlib.crc32(struct.pack("<Q36s", last, self._boot))
        _FORM.pack_into(self._map, 0, _MAGIC, crc, last, self._boot)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
