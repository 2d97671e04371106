"""Answers as the journal has them. Owns: reading the runs of a store beside the server that writes it, and rendering
them with the projections and bodies of the package. Refuses to know: HTTP, clients and kills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from ninelives.core.events import Entry, Terminal
from ninelives.core.rope import BigFrame
from ninelives.core.state import apply, start
from ninelives.dialects import DIALECTS
from ninelives.dialects.chat import body as chat_body
from ninelives.dialects.responses import body as responses_body
from ninelives.engine.replay import entries_of
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.postgres.connections import Connections, Wiring
from ninelives.journal.postgres.listener import Followed
from ninelives.journal.postgres.log import PostgresLog
from ninelives.journal.sqlite.load import database_in
from ninelives.journal.sqlite.maintenance import SQL, hot_of, records_of
from ninelives.journal.values import Record

BODIES: dict[str, Callable[[Any], Any]] = {"chat": chat_body.body, "responses": responses_body.body}
Runs = dict[str, list[Entry]]


def runs_in_sqlite(data: Path, wanted: set[str]) -> Runs:
    """The entries of runs, in one snapshot of the store of a data directory. A server may be writing it."""
    db = apsw.Connection(str(database_in(data)), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.set_busy_timeout(10_000)
        db.execute("BEGIN")
        hot = hot_of(db)
        found: Any = db.execute(SQL["runs"])
        rows = [row for row in found if row[0] in wanted]
        return {
            run: entries_of(run, records_of(db, run, n, sealed, sealed_crc, hot.get(n, [])))
            for run, n, _, sealed, sealed_crc, _ in rows
        }
    finally:
        db.close()


def runs_in_postgres(url: str, wanted: set[str]) -> Runs:
    """The same for a store in PostgreSQL."""
    return asyncio.run(_in_postgres(url, wanted))


async def _in_postgres(url: str, wanted: set[str]) -> Runs:
    connections = await Connections.create(url, Wiring(), "judge")
    try:
        log = PostgresLog(connections, "judge", Followed(LocalNotifier()))
        owners = await connections.fetch("SELECT owner, id FROM runs WHERE id = ANY($1)", list(wanted))
        runs: Runs = {}
        for owner, run in owners:
            records: list[Record] = []
            while page := await log.read(owner, run, records[-1].seq if records else -1):
                records += page
            runs[run] = entries_of(run, records)
        return runs
    finally:
        await connections.close()


def stream_of(dialect: str, entries: list[Entry]) -> bytes:
    """The stream of a run that has ended, as its projection renders it from the first entry on."""
    assert isinstance(entries[-1].event, Terminal), f"the journal of {entries[0].run} has no end"
    projection = DIALECTS[dialect].projection()
    view, frames = projection.view0(-1), []
    for entry in entries:
        view, more = projection.step(view, entry)
        frames += [frame.encode() if isinstance(frame, BigFrame) else frame for frame in more]
    return b"".join(frames)


def body_of(dialect: str, entries: list[Entry]) -> bytes:
    """The answer without a stream."""
    state = start(entries[0])
    for entry in entries[1:]:
        state = apply(state, entry)
    return msgspec.json.encode(BODIES[dialect](state))
