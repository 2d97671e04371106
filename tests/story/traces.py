"""Where words are found after they should be gone (B6). Owns: the search through all files of a folder as raw bytes,
through every column of every row of a SQLite store, packed records unpacked, and the same on PostgreSQL. Refuses to
know: which words, and why they should be gone."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ninelives.core.errors import Damaged
from ninelives.journal.segments import unpack
from tests import pg

TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"


def in_files(folder: Path, words: Sequence[bytes], but: Iterable[str] = ()) -> list[str]:
    """The files below a folder in which a word is found, in the content or the name. `but`: names of files that a tool
    was asked to write."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.name in but or not path.is_file():
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # it went while we looked
            continue
        where = str(path.relative_to(folder))
        found += [f"{word.decode(errors='replace')} in {where}" for word in words if word in data + where.encode()]
    return found


def in_rows(database: Path, words: Sequence[bytes]) -> list[str]:
    """The tables and columns of a SQLite store in which a word is found, packed or plain."""
    found = []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        for table, _ in db.execute(TABLES).fetchall():
            rows = db.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            found += _found(table, names, rows.fetchall(), words)
    return found


def in_postgres(url: str, words: Sequence[bytes]) -> list[str]:
    """The same in a PostgreSQL database: in each table of ours."""

    async def look() -> list[str]:
        server, found = pg.server(), []
        tables = await server.run(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables:
            rows = await server.run(url, f"SELECT * FROM {table}")
            found += _found(table, list(rows[0].keys()) if rows else [], [tuple(row) for row in rows], words)
        return found

    return asyncio.run(look())


def _found(table: str, names: list[str], rows: Iterable[tuple[Any, ...]], words: Sequence[bytes]) -> list[str]:
    return [
        f"{word.decode()} in {table}.{name}"
        for row in rows
        for name, value in zip(names, row, strict=True)
        for word in words
        if word in _plain(value)
    ]


def _plain(value: Any) -> bytes:
    """A value as bytes, with what is packed in it."""
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return value + zlib.decompress(value)
    except zlib.error:
        return value


def blobs(database: Path, run: str) -> list[bytes]:
    """The segments of a run as they are on disk: packed, so that a search for words does not see them. They must be
    what our own code packed."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        of_run = "SELECT s.crc, s.data FROM segments s JOIN runs r ON r.n = s.run WHERE r.id = ? ORDER BY s.first_seq"
        rows = db.execute(of_run, (run,)).fetchall()
    for crc, data in rows:
        try:
            assert unpack(data, crc, run)
        except Damaged as error:
            raise AssertionError(str(error)) from error
    return [data for _, data in rows]
