"""The rows of runs beside the log. Owns: hiding a run with its references, and the turns of a chain. Refuses to know:
connections, and what becomes of a call whose answer was lost."""

from __future__ import annotations

from typing import Any

from ninelives.core.errors import Damaged
from ninelives.core.spec import Resolved
from ninelives.journal import queries
from ninelives.journal.postgres.connections import Connection
from ninelives.journal.values import turns_of_session


def _expanded(found: dict[str, str]) -> dict[str, str]:
    """The statements, with the parts that several of them share in place of {name}."""
    for name in ("lost", "unclaimed"):
        found = {other: sql.replace(f"{{{name}}}", found[name]) for other, sql in found.items()}
    return found


SQL = _expanded(queries.load("postgres", "store"))
SESSIONS = queries.load("postgres", "sessions")
DELETED, EVICTED = 1, 2


async def hide_run(connection: Connection, owner: str, run: str, at: int, how: int) -> bool:
    """Hide a run and remove its references, inside a transaction (Journal.delete, Upkeep.evict)."""
    found = await connection.fetchrow(SQL["conversation_of"], owner, run)
    if found is None:
        return False
    conversation = found["conversation"]
    if conversation is not None:
        await connection.execute(SQL["lock_conversation"], owner, conversation)
    row = await connection.fetchrow(SQL["run_for_delete"], owner, run)
    if row is None:
        return False
    await connection.execute(SQL["hide_run"], run, at, how)
    await connection.execute(SQL["delete_log"], owner, run)
    await connection.execute(SQL["drop_signals"], run)
    if row["idem"] is not None:
        await connection.execute(SQL["delete_key"], owner, row["idem"])
    if conversation is not None:
        ancestor = await _visible_ancestor(connection, owner, row["previous"])
        await connection.execute(SQL["move_latest"], owner, conversation, run, ancestor)
    await unlist(connection, owner, run, row["entry"])
    return True


async def unlist(connection: Connection, owner: str, run: str, entry: str) -> None:
    """A run goes: what its session lists of it goes too, and the session with its last run."""
    if not entry:
        return
    await connection.execute(SESSIONS["unlist_text"], owner, entry, run)
    if await connection.fetch(SESSIONS["drop_empty"], owner, entry):
        await connection.execute(SESSIONS["forget_texts"], owner, entry)


async def _visible_ancestor(connection: Connection, owner: str, run: str | None) -> str | None:
    while run is not None:
        row = await connection.fetchrow(SQL["ancestor"], owner, run)
        if row is None:
            return None
        if not row["hidden"]:
            return run
        run = row["previous"]
    return None


async def turns_before(connection: Connection, owner: str, resolved: Resolved) -> list[bytes]:
    """See Catalog.turns."""
    if resolved.session_turns is not None:
        rows = await connection.fetch(SQL["session"], owner, resolved.session, resolved.session_turns)
        return turns_of_session(resolved, [(row["n"], row["turn"]) for row in rows])
    chain: list[Any] = await connection.fetch(SQL["chain"], owner, resolved.previous, resolved.conversation)
    if not chain or chain[0]["previous"] is not None or any(row["turn"] is None for row in chain):
        raise Damaged("an earlier turn of this chain is missing from the store")
    return [row["turn"] for row in chain]
