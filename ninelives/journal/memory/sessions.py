"""Listed sessions in memory. Owns: listing, searching (by a plain scan), creating and deleting them. Refuses to know:
disks, and how a run adds a turn to one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ninelives.core.sessions import SessionTurn, has_words, new_entry, own_entry, turn_of_stored
from ninelives.core.spec import is_one_chat
from ninelives.journal.memory.tables import MemoryRun, MemorySession, MemoryTables, MemoryText, MemoryTurn
from ninelives.journal.values import Gone, NewSession, RunRow, SessionHit, SessionQuery, SessionRow, StoredTurn


class MemorySessions:
    """See journal.base.Sessions."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables
        self._entries = tables.entries

    async def unlisted(self, owner: str | None, limit: int, *, begun: bool) -> list[Gone]:
        """See Sessions.unlisted."""
        runs = [(name, run) for name, run in self._tables.runs.items() if owner in (None, run.owner)]
        return [(run.owner, name) for name, run in runs if _is_unlisted(run, begun)][:limit]

    async def unlisted_turns(self, owner: str | None, limit: int) -> list[SessionTurn]:
        """See Sessions.unlisted_turns."""
        found = [
            turn_of_stored(whose, session, turn.run, turn.at, turn.turn)
            for (whose, session), turns in self._tables.sessions.items()
            for turn in turns
            if owner in (None, whose) and not turn.listed and self._tables.visible(whose, turn.run or "") is None
        ]
        return found[:limit]

    async def list_turns(self, turns: Sequence[SessionTurn]) -> None:
        """See Sessions.list_turns."""
        for turn in turns:
            self._list_turn(turn)

    def _list_turn(self, turn: SessionTurn) -> None:
        run = self._tables.visible(turn.owner, turn.run)
        stored = self._unlisted_turn(turn)
        if (run is None and stored is None) or (run is not None and run.listed >= 1 + turn.ended):
            return
        entry = (run.entry if run is not None else "") or self._entry_of(turn)
        self._add(entry, turn)
        if run is not None:
            run.entry, run.listed = entry, 1 + turn.ended
            run.text_bytes = len(turn.text.encode()) if turn.ended and not turn.named else 0
        if stored is not None and turn.ended:
            stored.listed = True

    def _unlisted_turn(self, turn: SessionTurn) -> MemoryTurn | None:
        turns = self._tables.sessions.get((turn.owner, turn.session), [])
        return next((each for each in turns if (each.run or "") == turn.run and not each.listed), None)

    def _add(self, entry: str, turn: SessionTurn) -> None:
        """Count a turn and make its text searchable, once it has ended."""
        found = self._entries.get((turn.owner, entry))
        if found is None:
            shown = ("", "", "", "", "", 0, 0, 0, 0)
            blank = SessionRow(entry, turn.session, False, *shown, turn.created_at, turn.at)
            found = self._entries[turn.owner, entry] = MemorySession(blank, [])
        row = found.row
        row = replace(
            row,
            preview=row.preview or turn.preview,
            source=row.source or turn.source,
            model=turn.model or row.model,
            created_at=min(row.created_at, turn.created_at),
            updated_at=max(row.updated_at, turn.at),
        )
        if turn.ended and turn.counted:
            row = replace(
                row,
                turns=row.turns + 1,
                messages=row.messages + turn.messages + (0 if row.turns else turn.earlier),
                input_tokens=row.input_tokens + turn.input_tokens,
                output_tokens=row.output_tokens + turn.output_tokens,
            )
            found.texts.append(MemoryText(turn.run, turn.text, turn.after))
        found.row = row

    def _entry_of(self, turn: SessionTurn) -> str:
        """The listed session of a run that is not listed yet."""
        if own := own_entry(turn):
            return own
        before = self._tables.runs.get(turn.previous or "")
        if before is not None and before.owner == turn.owner and before.entry:
            return before.entry
        if is_one_chat(turn.session):
            return turn.session
        for which in (0, 1):
            for (owner, entry), found in reversed(self._entries.items()):
                ends = [text.marks[which] for text in found.texts]
                if owner == turn.owner and turn.before[which] and turn.before[which] in ends:
                    return entry
        return new_entry(turn, taken=(turn.owner, turn.session) in self._entries)

    async def page(self, query: SessionQuery) -> list[SessionHit]:
        """See Sessions.page."""
        own = [found for (owner, _), found in self._entries.items() if owner == query.owner]
        own = [found for found in own if query.source in (None, found.row.source)]
        own.sort(key=lambda found: (found.row.updated_at, found.row.session), reverse=True)
        if query.after is not None:
            last = self._entries.get((query.owner, query.after))
            end = (last.row.updated_at, query.after) if last else (-1, "")
            own = [found for found in own if (found.row.updated_at, found.row.session) < end]
        hits = [SessionHit(found.row, text) for found in own if (text := _hit(found, query.words)) is not None]
        return hits[query.offset : query.offset + query.limit]

    async def find(self, owner: str, session: str) -> SessionRow | None:
        """See Sessions.find."""
        found = self._entries.get((owner, session))
        return found.row if found else None

    async def runs(self, owner: str, session: str) -> list[RunRow]:
        """See Sessions.runs."""
        return [run.row() for run in self._tables.runs_in(owner, session)] if session else []

    async def turns(self, owner: str, session: str) -> list[StoredTurn]:
        """See Sessions.turns."""
        return [StoredTurn(each.at, each.run, each.turn) for each in self._tables.sessions.get((owner, session), [])]

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
        found = self._entries.get((owner, session))
        if found is None:
            return
        if model is not None:
            found.row = replace(found.row, model=model)
        if end_reason is not None:
            found.row = replace(found.row, end_reason=end_reason)
        if title is not None:
            found.row = replace(found.row, title=title)
            found.texts = [each for each in found.texts if each.run] + ([MemoryText("", title)] if title else [])

    async def make(self, new: NewSession) -> bool:
        """See Sessions.make."""
        name = (new.owner, new.session)
        if name in self._entries or self._tables.sessions.get(name):
            return False
        shown = (new.title, "", new.source, new.model, new.end_reason, 0, 0, new.input_tokens, new.output_tokens)
        row = SessionRow(new.session, new.session, True, *shown, new.at, new.at)
        self._entries[name] = MemorySession(row, [MemoryText("", new.title)] if new.title else [])
        self._tables.sessions[name] = [MemoryTurn(turn.at, turn.run, turn.turn, True) for turn in new.turns]
        for n, turn in enumerate(new.turns, 1):
            self._add(new.session, turn_of_stored(*name, turn.run or f"#{n}", turn.at, turn.turn))
        return True

    async def forget(self, owner: str, session: str) -> None:
        """See Sessions.forget."""
        self._tables.drop_session(owner, session)
        for key in [
            key for key, grant in self._tables.grants.items() if (grant.owner, grant.session) == (owner, session)
        ]:
            del self._tables.grants[key]


def _is_unlisted(run: MemoryRun, begun: bool) -> bool:
    if run.hidden or run.kept not in ("stored", "hours"):
        return False
    return run.listed < 2 if run.ended else begun and run.listed == 0


def _hit(found: MemorySession, words: Sequence[str]) -> str | None:
    """The newest text with these words; None if there is none."""
    if not words:
        return ""
    return next((each.text for each in reversed(found.texts) if has_words(each.text, words)), None)
