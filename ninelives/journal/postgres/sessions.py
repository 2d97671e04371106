"""Listed sessions in PostgreSQL. Owns: listing, searching, reading, naming, creating and deleting them. Every query
names its owner. Refuses to know: how a run adds a turn to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ninelives.core.sessions import SessionTurn, counts_of, new_entry, own_entry, turn_of_stored
from ninelives.core.spec import is_one_chat
from ninelives.journal.postgres.connections import WORK_S, Connection, Connections
from ninelives.journal.postgres.rows import SESSIONS as SQL
from ninelives.journal.values import (
    Gone,
    NewSession,
    RunRow,
    SessionHit,
    SessionQuery,
    SessionRow,
    StoredTurn,
)

FORGET = ("forget_turns", "forget_texts", "forget_entry", "list_again", "forget_grants")


class PostgresSessions:
    """See Sessions."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def unlisted(self, owner: str | None, limit: int, *, begun: bool) -> list[Gone]:
        """See Sessions.unlisted."""
        rows = await self._connections.fetch_filtered(SQL["unlisted"], owner, limit, begun, limit_s=WORK_S)
        return [(row["owner"], row["id"]) for row in rows]

    async def unlisted_turns(self, owner: str | None, limit: int) -> list[SessionTurn]:
        """See Sessions.unlisted_turns."""
        rows = await self._connections.fetch_filtered(SQL["unlisted_turns"], owner, limit, limit_s=WORK_S)
        return [turn_of_stored(*row) for row in rows]

    async def list_turns(self, turns: Sequence[SessionTurn]) -> None:
        """See Sessions.list_turns. Each in a transaction of its own: other processes may list the same runs."""
        for turn in turns:
            await self._connections.transact(lambda connection, turn=turn: _list_turn(connection, turn))  # type: ignore[misc]

    async def page(self, query: SessionQuery) -> list[SessionHit]:
        """See Sessions.page."""
        values: list[Any] = [query.owner, query.source, query.after, query.limit, query.offset]
        if query.words:
            values.append(" & ".join(f"'{word}':*" for word in query.words))
        name = "search" if query.words else "page"
        rows = await self._connections.fetch_filtered(SQL[name], *values, limit_s=WORK_S)
        return [SessionHit(SessionRow(*tuple(row)[:14]), row["text"]) for row in rows]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        row = await self._connections.fetchrow(SQL["find"], owner, session)
        return SessionRow(*row) if row else None

    async def runs(self, owner: str, session: str) -> list[RunRow]:
        """See Sessions.runs."""
        return [RunRow(**row) for row in await self._connections.fetch(SQL["runs"], owner, session, limit_s=WORK_S)]

    async def turns(self, owner: str, session: str) -> list[StoredTurn]:
        """See Sessions.turns."""
        rows = await self._connections.fetch(SQL["turns"], owner, session, limit_s=WORK_S)
        return [StoredTurn(*row) for row in rows]

    async def change(
        self,
        owner: str,
        session: str,
        *,
        title: str | None = None,
        end_reason: str | None = None,
        model: str | None = None,
    ) -> None:
        """See Sessions.change."""

        async def work(connection: Connection) -> None:
            found = await connection.fetch(SQL["change"], owner, session, title, end_reason, model)
            if found and title is not None:
                await connection.execute(SQL["forget_text"], owner, session, "")
                if title:
                    await connection.execute(SQL["add_text"], owner, session, "", "", "", title)

        await self._connections.transact(work)

    async def make(self, new: NewSession) -> bool:
        """See Sessions.make."""
        return await self._connections.transact(lambda connection: _make(connection, new))

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""

        async def work(connection: Connection) -> None:
            for statement in FORGET:
                await connection.execute(SQL[statement], owner, session)

        await self._connections.transact(work)


async def _list_turn(connection: Connection, turn: SessionTurn) -> None:
    listed, entry = 0, ""
    found = await connection.fetchrow(SQL["run_to_list"], turn.owner, turn.run)
    if found is not None:
        listed, entry = found
    elif not await connection.fetch(SQL["turn_to_list"], turn.owner, turn.session, turn.run, turn.at):
        return
    if listed >= 1 + turn.ended:
        return
    entry = entry or await _entry_of(connection, turn)
    await _add_to_session(connection, entry, turn)
    size = len(turn.text.encode()) if turn.ended and not turn.named else 0
    await connection.execute(SQL["list_run"], turn.owner, turn.run, entry, 1 + turn.ended, size)
    if turn.ended:
        await connection.execute(SQL["list_stored_turn"], turn.owner, entry, turn.run)


async def _add_to_session(connection: Connection, entry: str, turn: SessionTurn) -> None:
    """Count a turn and make its text searchable, once it has ended."""
    shown = (turn.preview, turn.source, turn.model, *counts_of(turn), turn.created_at, turn.at)
    await connection.execute(SQL["add_to_session"], turn.owner, entry, turn.session, *shown)
    if turn.ended and turn.counted and (turn.text or any(turn.after)):
        await connection.execute(SQL["add_text"], turn.owner, entry, turn.run, *turn.after, turn.text)


async def _entry_of(connection: Connection, turn: SessionTurn) -> str:
    """The listed session of a run that is not listed yet."""
    if own := own_entry(turn):
        return own
    if turn.previous is not None:
        found: str | None = await connection.fetchval(SQL["entry_of_run"], turn.owner, turn.previous)
        if found:
            return found
    if is_one_chat(turn.session):
        return turn.session
    for query, mark in zip(("entry_by_all", "entry_by_user"), turn.before, strict=True):
        known: str | None = await connection.fetchval(SQL[query], turn.owner, mark) if mark else None
        if known:
            return known
    taken = await connection.fetchval(SQL["is_listed"], turn.owner, turn.session)
    return new_entry(turn, taken=taken is not None)


async def _make(connection: Connection, new: NewSession) -> bool:
    name = (new.owner, new.session)
    if await connection.fetch(SQL["has_turns"], *name):
        return False
    fields = (new.title, new.source, new.model, new.end_reason, new.input_tokens, new.output_tokens, new.at)
    if not await connection.fetch(SQL["make"], *name, *fields):
        return False
    if new.title:
        await connection.execute(SQL["add_text"], *name, "", "", "", new.title)
    for n, turn in enumerate(new.turns, 1):
        await connection.execute(SQL["make_turn"], *name, n, turn.at, turn.run, turn.turn)
        await _add_to_session(connection, new.session, turn_of_stored(*name, turn.run or f"#{n}", turn.at, turn.turn))
    return True
