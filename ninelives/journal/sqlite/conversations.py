"""Conversations and sessions in SQLite. Owns: the statements that find, list, search, annotate, edit, create and delete
them. Each method is one transaction. Refuses to know: threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from ninelives.core.admission import ConversationFound, editable
from ninelives.core.sessions import (
    SessionTurn,
    counts_of,
    decoded_turn,
    new_entry,
    own_entry,
    previews,
    searchable,
    turn_of_stored,
)
from ninelives.core.spec import is_one_chat
from ninelives.journal import queries
from ninelives.journal.sqlite.database import SqliteDatabase
from ninelives.journal.sqlite.rows import DELETED, SESSIONS, hide, run_row
from ninelives.journal.sqlite.rows import SQL as ROWS
from ninelives.journal.values import (
    ConversationLink,
    ConversationRow,
    Gone,
    NewSession,
    Removal,
    RunRow,
    SessionHit,
    SessionQuery,
    SessionRow,
    StoredTurn,
)

SQL = queries.load("sqlite", "conversations")
LIST_AT_ONCE = 32
"""Turns that are listed in one transaction. Each takes about 0.1 ms of the writer."""
_ADD_TEXTS = {
    # Every insert makes the index of words flush what the last one gave it: few big ones are cheaper.
    1 << k: SESSIONS["add_text"] + ", (?, ?, ?, ?, ?, ?)" * ((1 << k) - 1)
    for k in range(LIST_AT_ONCE.bit_length())
}
Text = tuple[str, str, str, str, str, str]
"""A row of session_texts: owner, entry, run, both marks, text."""


class SqliteConversations:
    """See journal.base.Conversations."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def find(self, owner: str, named: str) -> ConversationRow | None:
        """See Conversations.find."""
        return await self._database.query(lambda db: _find(db, owner, named))

    async def page(self, owner: str, limit: int, after: str | None, ascending: bool) -> Sequence[ConversationRow]:
        """See Conversations.page."""
        name = "page_up" if ascending else "page_down"
        return [_row(row) for row in await self._database.select(SQL[name], (owner, after, limit))]

    async def annotate(self, owner: str, named: str, metadata: bytes) -> bool:
        """See Conversations.annotate."""
        return bool(await self._database.execute(SQL["annotate"], (owner, named, metadata)))

    async def line(self, owner: str, named: str) -> list[ConversationLink]:
        """See Conversations.line."""
        return await self._database.query(lambda db: _line(db, owner, named))

    async def remove(self, owner: str, named: str, removal: Removal) -> bool:
        """See Conversations.remove."""
        return await self._database.write(lambda db: _remove(db, owner, named, removal))

    async def forget(self, owner: str, named: str, own: str, at: int) -> str:
        """See Conversations.forget."""

        def forget(db: apsw.Connection) -> tuple[str, list[str]]:
            conversation = _editable(db, owner, named).id
            runs = [link.run for link in _line(db, owner, conversation) if link.dialect == own and not link.deleted]
            db.execute(SQL["forget"], (owner, conversation))
            db.execute(SQL["forget_edits"], (owner, conversation))
            for run in reversed(runs):  # newest first: each then finds its ancestor in one step
                hide(db, self._database.fences, owner, run, at, DELETED)
            return conversation, runs

        def forgotten(done: tuple[str, list[str]]) -> str:
            conversation, runs = done
            for run in runs:
                self._database.tails.drop(run)
            return conversation

        return await self._database.write(forget, forgotten)


def _row(row: Sequence[Any]) -> ConversationRow:
    conversation, name, created_at, metadata, latest, active = row
    return ConversationRow(conversation, name, created_at, bytes(metadata), latest, active)


def _find(db: apsw.Connection, owner: str, named: str) -> ConversationRow | None:
    row = db.execute(SQL["find"], (owner, named)).fetchone()
    return _row(row) if row else None


def _editable(db: apsw.Connection, owner: str, named: str) -> ConversationFound:
    row = _find(db, owner, named)
    return editable(named, ConversationFound(row.id, row.latest, row.active) if row else None)


def _line(db: apsw.Connection, owner: str, named: str) -> list[ConversationLink]:
    rows: list[Any] = db.execute(SQL["line"], (owner, named)).fetchall()
    return [ConversationLink(run, dialect, bool(hidden), _removed(removed)) for run, dialect, hidden, removed in rows]


def _removed(stored: bytes | None) -> frozenset[str]:
    return frozenset() if stored is None else msgspec.json.decode(stored, type=frozenset[str])


def _remove(db: apsw.Connection, owner: str, named: str, removal: Removal) -> bool:
    conversation = _editable(db, owner, named).id
    link = next((link for link in _line(db, owner, conversation) if link.run == removal.run), None)
    if link is None or link.deleted or removal.item in link.removed:
        return False
    removed = link.removed | {removal.item}
    stored = msgspec.json.encode(sorted(removed))
    turn = removal.turn(removed)
    db.execute(SQL["edit"], (owner, conversation, removal.run, stored, turn))
    _edit_text(db, owner, conversation, removal.run, turn)
    db.execute(SESSIONS["edit_preview"], (owner, conversation, *previews(removal.turn(link.removed), turn)))
    return True


def _edit_text(db: apsw.Connection, owner: str, conversation: str, run: str, turn: bytes) -> None:
    """A search finds no removed item."""
    if db.execute(SESSIONS["has_text"], (owner, conversation, run)).fetchone():
        db.execute(SESSIONS["forget_text"], (owner, conversation, run))
        _add_texts(db, [(owner, conversation, run, "", "", searchable(decoded_turn(turn)))])


class SqliteSessions:
    """See journal.base.Sessions."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def unlisted(self, owner: str | None, limit: int, *, begun: bool) -> list[Gone]:
        """See Sessions.unlisted."""
        return await self._database.select(SESSIONS["unlisted"], (owner, limit, int(begun)))

    async def unlisted_turns(self, owner: str | None, limit: int) -> list[SessionTurn]:
        """See Sessions.unlisted_turns."""
        rows = await self._database.select(SESSIONS["unlisted_turns"], (owner, limit))
        return [turn_of_stored(*row) for row in rows]

    async def list_turns(self, turns: Sequence[SessionTurn]) -> None:
        """See Sessions.list_turns. In short transactions, so that the log of running runs gets in between."""
        for start in range(0, len(turns), LIST_AT_ONCE):
            part = turns[start : start + LIST_AT_ONCE]
            await self._database.write(lambda db, part=part: _Listing(db, part).write(part))  # type: ignore[misc]

    async def page(self, query: SessionQuery) -> list[SessionHit]:
        """See Sessions.page."""
        values = (query.owner, query.source, query.after, query.limit, query.offset)
        if query.words:
            match = " ".join(f'"{word}"*' for word in query.words)
            rows = await self._database.select(SESSIONS["search"], (*values, match))
        else:
            rows = await self._database.select(SESSIONS["page"], values)
        return [SessionHit(_session(row[:14]), row[14]) for row in rows]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        rows = await self._database.select(SESSIONS["find"], (owner, session))
        return _session(rows[0]) if rows else None

    async def runs(self, owner: str, session: str) -> list[RunRow]:
        """See Sessions.runs."""
        return [run_row(row) for row in await self._database.select(SESSIONS["runs"], (owner, session))]

    async def turns(self, owner: str, session: str) -> list[StoredTurn]:
        """See Sessions.turns."""
        return [StoredTurn(*row) for row in await self._database.select(SESSIONS["turns"], (owner, session))]

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
        values = (owner, session, title, end_reason, model)

        def write(db: apsw.Connection) -> None:
            if db.execute(SESSIONS["change"], values).fetchall() and title is not None:
                db.execute(SESSIONS["forget_text"], (owner, session, ""))
                if title:
                    _add_texts(db, [(owner, session, "", "", "", title)])

        await self._database.write(write)

    async def make(self, new: NewSession) -> bool:
        """See Sessions.make."""
        return await self._database.write(lambda db: _make(db, new))

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""

        def forget(db: apsw.Connection) -> None:
            for statement in (*FORGET_SESSION, ROWS["forget_grants"]):
                db.execute(statement, (owner, session))

        await self._database.write(forget)
        self._database.scrub_soon()


FORGET_SESSION = (
    ROWS["forget_turns"],
    *(SESSIONS[name] for name in ("forget_texts", "forget_entry", "list_again")),
)
"""What deletes a session but not its permissions: each statement takes its owner and its id."""


def _session(row: Sequence[Any]) -> SessionRow:
    session, key, made, *rest = row
    return SessionRow(session, key, bool(made), *rest)


class _Listing:
    """Turns that are listed in one transaction. Rows are gathered and written by few statements, which cost a third of
    many. What is gathered is written before it is looked for."""

    def __init__(self, db: apsw.Connection, turns: Sequence[SessionTurn]) -> None:
        self._db = db
        named = msgspec.json.encode([(turn.owner, turn.run) for turn in turns]).decode()
        rows: list[Any] = db.execute(SESSIONS["runs_to_list"], (named,)).fetchall()
        self._found = {(owner, run): (listed, entry) for owner, run, listed, entry in rows}
        self._sessions: dict[Gone, list[tuple[Any, ...]]] = {}
        """By owner and id of a session: what its turns add to it."""
        self._runs: list[tuple[Any, ...]] = []
        self._texts: list[Text] = []

    def write(self, turns: Sequence[SessionTurn]) -> None:
        """List them."""
        for turn in turns:
            self._add(turn)
        self._flush()

    def _add(self, turn: SessionTurn) -> None:
        listed, known = self._found.get((turn.owner, turn.run)) or (0 if self._is_stored(turn) else 2, "")
        if listed >= 1 + turn.ended:
            return
        entry = known or own_entry(turn) or self._find_entry(turn)
        self._sessions.setdefault((turn.owner, entry), []).append(_counted(turn, entry))
        size = len(turn.text.encode()) if turn.ended and not turn.named else 0
        self._runs.append((turn.owner, turn.run, entry, 1 + turn.ended, size))
        if text := _text_of(turn, entry):
            self._texts.append(text)
        if turn.ended and turn.named:
            self._db.execute(SESSIONS["list_stored_turn"], (turn.owner, entry, turn.run))

    def _is_stored(self, turn: SessionTurn) -> bool:
        """Is it a turn whose run is gone, and that must be listed?"""
        values = (turn.owner, turn.session, turn.run, turn.at)
        return turn.named and self._db.execute(SESSIONS["turn_to_list"], values).fetchone() is not None

    def _find_entry(self, turn: SessionTurn) -> str:
        """The listed session of a run that is not listed yet."""
        if turn.previous is not None and (found := self._entry("entry_of_run", turn.owner, turn.previous)):
            return found
        if is_one_chat(turn.session):
            return turn.session
        for query, mark in zip(("entry_by_all", "entry_by_user"), turn.before, strict=True):
            if mark and (found := self._entry(query, turn.owner, mark)):
                return found
        name = (turn.owner, turn.session)
        taken = name in self._sessions or self._db.execute(SESSIONS["is_listed"], name).fetchone() is not None
        return new_entry(turn, taken=taken)

    def _entry(self, query: str, owner: str, value: str) -> str:
        self._flush()
        row: Any = self._db.execute(SESSIONS[query], (owner, value)).fetchone()
        return row[0] if row else ""

    def _flush(self) -> None:
        self._db.executemany(SESSIONS["add_to_session"], [row for rows in self._sessions.values() for row in rows])
        self._db.executemany(SESSIONS["list_run"], self._runs)
        _add_texts(self._db, self._texts)
        self._sessions.clear()
        self._runs.clear()


def _counted(turn: SessionTurn, entry: str) -> tuple[Any, ...]:
    """What a turn adds to its session, as add_to_session takes it."""
    shown = (turn.preview, turn.source, turn.model, *counts_of(turn), turn.created_at, turn.at)
    return (turn.owner, entry, turn.session, *shown)


def _text_of(turn: SessionTurn, entry: str) -> Text | None:
    """What a search finds of a turn that has ended."""
    shown = turn.ended and turn.counted and (turn.text or any(turn.after))
    return (turn.owner, entry, turn.run, *turn.after, turn.text) if shown else None


def _add_texts(db: apsw.Connection, texts: list[Text]) -> None:
    """Add texts to the search, and empty the list."""
    while texts:
        count = 1 << min(len(texts).bit_length(), LIST_AT_ONCE.bit_length()) - 1
        db.execute(_ADD_TEXTS[count], [value for text in texts[:count] for value in text])
        del texts[:count]


def _make(db: apsw.Connection, new: NewSession) -> bool:
    name = (new.owner, new.session)
    if db.execute(SESSIONS["has_turns"], name).fetchone():
        return False
    fields = (new.title, new.source, new.model, new.end_reason, new.input_tokens, new.output_tokens, new.at)
    if not db.execute(SESSIONS["make"], (*name, *fields)).fetchall():
        return False
    texts: list[Text] = [(*name, "", "", "", new.title)] if new.title else []
    for n, turn in enumerate(new.turns, 1):
        db.execute(SESSIONS["make_turn"], (*name, n, turn.at, turn.run, turn.turn))
        shown = turn_of_stored(*name, turn.run or f"#{n}", turn.at, turn.turn)
        db.execute(SESSIONS["add_to_session"], _counted(shown, new.session))
        if text := _text_of(shown, new.session):
            texts.append(text)
    _add_texts(db, texts)
    return True
