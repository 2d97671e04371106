"""The canary: no key in what servers of the tests printed, logged or stored. Owns: finding data directories and logs in
the folders of tests, reading packed records, and the shapes of keys. Refuses to know: which test made them."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

KEYS = re.compile(rb"[a-z]{3,}-key-0123456789abcdef|nl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}|sk-upstream-[A-Za-z0-9-]{8,}")
"""The keys of servers in tests, keys that servers made, and keys of upstreams."""
HINTS = (b"-key-0123456789abcdef", b"nl_", b"sk-upstream-")
DATABASES = ("ninelives.db", "holdfast.db")
LOGS = ("*.err", "*.out", "*.log")
MOST_BYTES = 64 * 1024 * 1024


def leaks(folder: Path) -> list[str]:
    """Where a key is, in the data directories and logs below a folder."""
    found = []
    for name, data in _texts(folder):
        if any(hint in data for hint in HINTS) and (key := KEYS.search(data)):
            found.append(f"{name}: {key[0][:20].decode()}... after {data[max(0, key.start() - 40) : key.start()]!r}")
    return found


def _texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    homes = {path.parent for name in DATABASES for path in folder.rglob(name)}
    files = {path for pattern in LOGS for path in folder.rglob(pattern)}
    files |= {path for home in homes for path in home.rglob("*") if path.name != "key" and path.suffix != ".toml"}
    for path in sorted(files):
        try:
            if path.is_file() and not path.is_symlink() and path.stat().st_size < MOST_BYTES:
                yield str(path), path.read_bytes()
        except OSError:
            continue
    for home in sorted(homes):
        for name in DATABASES:
            if (home / name).exists():
                yield f"{home / name}, unpacked", b"\n".join(_records(home / name))


def _records(database: Path) -> Iterator[bytes]:
    """The packed records. A database that a test has broken has none."""
    try:
        db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            for (blob,) in db.execute("SELECT data FROM segments"):
                yield zlib.decompress(blob)
        finally:
            db.close()
    except (sqlite3.Error, zlib.error, TypeError):
        return
