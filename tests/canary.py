"""The canary: no key in what servers of the tests answered, printed, logged or stored. Owns: the shapes of keys; the
search in the replies of apps of this process, in logs, in data directories and in databases. Refuses to know: which
test made them."""

from __future__ import annotations

import os
import re
import sqlite3
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from ninelives.http.edge.gate import Gate

KEYS = re.compile(rb"[a-z]{3,}-key-0123456789abcdef|nl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}|sk-upstream-[A-Za-z0-9-]{8,}")
"""The keys of servers in tests, keys that servers made, and keys of upstreams."""
HINTS = (b"-key-0123456789abcdef", b"nl_", b"sk-upstream-")
LONGEST = 80
"""Bytes of a key: so many of one message are searched again with the next."""
SHORTEST = 16
"""A shorter credential may be a word of the reply."""
DATABASES = ("ninelives.db", "holdfast.db")
LOGS = (".err", ".out", ".log")
MOST_BYTES = 64 * 1024 * 1024


def key_in(data: bytes, *more: bytes) -> str:
    """A key that is in the data, in short and with what stands before it; empty where there is none. `more`: other
    keys."""
    if any(hint in data for hint in HINTS) and (found := KEYS.search(data)):
        place, key = found.start(), found[0]
    else:
        key = next((each for each in more if each in data), b"")
        place = data.find(key)
    return f"{key[:20].decode('latin-1')}... after {data[max(0, place - 40) : place]!r}" if key else ""


class Replies:
    """Searches every reply of every app of this process, whoever drives it."""

    def __init__(self) -> None:
        self._leaks: list[str] = []

    def watch(self) -> None:
        """Stand before the gate, the outermost layer of each app."""
        answer = Gate.__call__

        async def watched(gate: Gate, scope: Any, receive: Any, send: Any) -> None:
            await answer(gate, scope, receive, self._searched(scope, send))

        Gate.__call__ = watched  # type: ignore[method-assign]

    def taken(self) -> list[str]:
        """The replies with a key since the last call."""
        found, self._leaks = self._leaks, []
        return found

    def _searched(self, scope: Any, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        if scope["type"] == "lifespan" or shows_a_new_key(scope.get("method", ""), scope["path"]):
            return send
        name, sent, tail = f"{scope['type']} {scope['path']}", _credentials(scope["headers"]), b""

        def searched(message: Any) -> Awaitable[None]:
            nonlocal tail
            data = tail + _shown(message)
            if found := key_in(data, *sent):
                self._leaks.append(f"the reply to {name}: {found}")
            tail = b"" if found else data[-LONGEST:]
            return send(message)

        return searched


REPLIES = Replies()
"""Those of this process."""


def shows_a_new_key(method: str, path: str) -> bool:
    """Is a reply the one that shows a new key, once?"""
    return method == "POST" and "/api/keys" in path


def _credentials(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    words = [value.split()[-1] for name, value in headers if name in (b"authorization", b"x-api-key") and value.strip()]
    return [word for word in words if len(word) >= SHORTEST]


def _shown(message: Any) -> bytes:
    """What a message shows. The bodies of two messages are one text."""
    if headers := message.get("headers"):
        return b" ".join(part for header in headers for part in header) + b" "
    text = message.get("text") or message.get("reason")
    return text.encode() if text else message.get("body") or message.get("bytes") or b""


def leaks(folder: Path) -> list[str]:
    """Where a key is, in the data directories and logs below a folder."""
    return [f"{name}: {found}" for name, data in _texts(folder) if (found := key_in(data))]


def _texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    homes: list[str] = []
    for where, below, names in os.walk(folder):
        if any(name in DATABASES for name in names):
            homes.append(f"{where}/")
        kept = f"{where}/".startswith(tuple(homes))
        for name in names:
            if (kept and name != "key" and not name.endswith(".toml")) or name.endswith(LOGS):
                yield from _file(Path(where, name))
        below.sort()
    for home in homes:
        for name in DATABASES:
            if Path(home, name).exists():
                yield f"{home}{name}, unpacked", b"\n".join(values_of(Path(home, name)))


def _file(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_file() and not path.is_symlink() and path.stat().st_size < MOST_BYTES:
            yield str(path), path.read_bytes()
    except OSError:
        return


def values_of(database: Path) -> Iterator[bytes]:
    """All values of all tables, the packed records unpacked: a value that goes over several pages is not whole in the
    file. A database that a test has broken has none."""
    try:
        db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        db.text_factory = bytes
        try:
            for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                for row in db.execute(f'SELECT * FROM "{table.decode()}"'):
                    yield from (value for value in row if isinstance(value, bytes))
            for (blob,) in db.execute("SELECT data FROM segments"):
                yield zlib.decompress(blob)
        finally:
            db.close()
    except (sqlite3.Error, zlib.error, TypeError):
        return


SEARCH = """
SET bytea_output = 'escape';
DO $canary$ DECLARE its regclass; hit text; BEGIN
  FOR its IN SELECT oid FROM pg_class WHERE relkind = 'r' AND oid >= 16384 AND relpersistence = 'p' LOOP
    EXECUTE format('SELECT substring(t::text FROM %L) FROM %s t WHERE t::text ~ %L LIMIT 1', '{keys}', its, '{keys}')
      INTO hit;
    IF hit IS NOT NULL THEN RAISE EXCEPTION 'a key is in the table %: %...', its, left(hit, 20); END IF;
  END LOOP;
END $canary$;
RESET bytea_output;
""".replace("{keys}", KEYS.pattern.decode())
"""Fails where a row of a PostgreSQL database has a key. Bytes are read as text: `escape` leaves letters as they are."""
