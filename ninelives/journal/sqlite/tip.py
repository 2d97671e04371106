"""How far the log was written, kept beside the database. Owns: one small mapped file with the number of the last
committed row. Refuses to know: SQL.

SQLite ends its write-ahead log at the first frame whose checksum is wrong, without an error: a damaged log looks like a
shorter one. A store that ends before its tip has lost entries, and reports it (P14). The tip is written after each
commit, to memory that the kernel keeps when the process is killed. A power loss may take the last commits of a store
with durability "normal", so the tip also names the boot."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path

_FORM = struct.Struct("<8sIQ36s")
_SIZE = 64
_MAGIC = b"holdfast"  # the file format still begins with these eight bytes, as version 0.1.0 wrote them
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """This boot of the machine; empty if the system does not provide it."""
    try:
        return _BOOT.read_bytes().strip()[:36]
    except OSError:
        return b""


class TipFile:
    """The tip of one database. `last` is the last row that was committed. `same_boot` says whether it was written since
    the machine started."""

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
            return 0, b""  # never written, or torn by a power loss: it proves nothing
        return last, boot.rstrip(b"\0")

    def write(self, last: int) -> None:
        """Note that row `last` is committed."""
        self.last = last
        crc = zlib.crc32(struct.pack("<Q36s", last, self._boot))
        _FORM.pack_into(self._map, 0, _MAGIC, crc, last, self._boot)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()
