"""What a memory store holds. Owns: runs, keys, conversations, sessions, signals and permissions in plain dicts, and the
deletion of a run with its references. Refuses to know: claims, callers and admission."""

from __future__ import annotations

from msgspec import Struct

from ninelives.core.admission import ConversationFound, KeyFound
from ninelives.core.spec import Kept, Resolved
from ninelives.journal.values import (
    ROW_BYTES,
    ConversationRow,
    Gone,
    Grant,
    Opening,
    Record,
    RunRow,
    SessionRow,
    Signal,
)


class MemoryRun(Struct):
    """One run and its log."""

    owner: str
    opening: Opening
    resolved: Resolved
    status: str
    updated_at: int
    metadata: bytes
    records: list[Record]
    attempt: int = 0
    holder: str | None = None
    lease_until: float = 0.0
    parked: bool = True
    ended: bool = False
    chains: bool = False
    hidden: bool = False
    turn: bytes | None = None
    wake_at: int = 0
    """See Mark.wake_at."""
    asks: str = ""
    """See Mark.asks."""
    credential: str = ""
    """The API key of the caller who waits, or who waited last."""
    waits: bool = False
    """A caller waits for the answer on a connection."""
    lost_at: int = 0
    """When that connection was lost; 0 if it was not."""
    left: bool = False
    """With `lost_at`: a living process saw the caller leave."""
    delivered: int = 0
    """When the answer was delivered; 0 if it was not."""
    used_at: int = 0
    pinned: bool = False
    entry: str = ""
    """Its listed session."""
    listed: int = 0
    """How far it is listed: 0 not yet, 1 when it began, 2 with its end."""
    text_bytes: int = 0
    """What a search keeps of it."""

    @property
    def kept(self) -> Kept:
        """What is kept of it."""
        return self.opening.asked.kept

    @property
    def window_end(self) -> int:
        """Until when the same request joins it: counted from the loss of its connection, or from its end."""
        return (self.lost_at or self.updated_at) + self.opening.asked.resend_ms

    def size(self) -> int:
        """Stored bytes."""
        return sum(len(record.data) for record in self.records) + len(self.turn or b"") + self.text_bytes

    def row(self) -> RunRow:
        """The run as the catalog lists it."""
        return RunRow(
            owner=self.owner,
            run=self.opening.run,
            dialect=self.opening.dialect,
            model=self.opening.model,
            status=self.status,
            ended=self.ended,
            created_at=self.opening.at,
            updated_at=self.updated_at,
            session=self.resolved.session or "",
            conversation=self.resolved.conversation,
            previous=self.resolved.previous,
            key=self.opening.asked.key,
            metadata=self.metadata,
            last_seq=len(self.records) - 1,
            kept=self.kept,
        )


class MemoryConversation(Struct):
    """One conversation. The dict holds it under its id, and under its name if it has one."""

    id: str
    created_at: int
    name: str | None = None
    metadata: bytes = b"{}"
    latest: str | None = None
    active: str | None = None
    edits: dict[str, tuple[frozenset[str], bytes]] = {}
    """By run: its removed items, and its turn without them."""

    def size(self) -> int:
        """Stored bytes."""
        edits = sum(len(turn) for _, turn in self.edits.values())
        return ROW_BYTES + len(self.metadata) + edits

    def found(self) -> ConversationFound:
        """The conversation as admission sees it."""
        return ConversationFound(self.id, self.latest, self.active)

    def row(self) -> ConversationRow:
        """The conversation as the API lists it."""
        return ConversationRow(self.id, self.name, self.created_at, self.metadata, self.latest, self.active)


class MemoryTurn(Struct):
    """A turn of a named session."""

    at: int
    run: str | None
    turn: bytes
    listed: bool = False


class MemoryText(Struct):
    """What a search finds of one turn, or of a title (then `run` is empty)."""

    run: str
    text: str
    marks: tuple[str, str] = ("", "")


class MemorySession(Struct):
    """A listed session."""

    row: SessionRow
    texts: list[MemoryText] = []

    def size(self) -> int:
        """Stored bytes of its texts."""
        return sum(len(each.text.encode()) for each in self.texts)


class MemoryTables:
    """The content of one memory store."""

    def __init__(self) -> None:
        self.runs: dict[str, MemoryRun] = {}
        self.expired: dict[Gone, tuple[int, bool]] = {}
        """Runs that retention evicted: when, and whether they were stored ones."""
        self.keys: dict[tuple[str, str], KeyFound] = {}
        self.conversations: dict[tuple[str, str], MemoryConversation] = {}
        self.sessions: dict[tuple[str, str], list[MemoryTurn]] = {}
        self.entries: dict[tuple[str, str], MemorySession] = {}
        self.signals: dict[str, list[Signal]] = {}
        self.grants: dict[tuple[str, str], Grant] = {}

    def visible(self, owner: str, run: str) -> MemoryRun | None:
        """A run of this owner that is not deleted."""
        found = self.runs.get(run)
        return found if found is not None and found.owner == owner and not found.hidden else None

    def active_in(self, owner: str, session: str | None) -> str | None:
        """The newest run of a session that has not ended."""
        for name, run in reversed(self.runs.items()):
            mine = run.owner == owner and session and run.resolved.session == session
            if mine and not run.ended and not run.hidden and run.kept in ("stored", "hours"):
                return name
        return None

    def delete(self, owner: str, run: str) -> bool:
        """See Journal.delete."""
        found = self.visible(owner, run)
        if found is None:
            return False
        found.hidden, found.records, found.holder, found.text_bytes = True, [], None, 0
        found.waits, found.lost_at, found.asks = False, 0, ""
        self.signals.pop(run, None)
        if found.opening.asked.key is not None:
            self.keys.pop((owner, found.opening.asked.key), None)
        conversation = self.conversations.get((owner, found.resolved.conversation or ""))
        if conversation and conversation.active == run:
            conversation.active = None
        if conversation and conversation.latest == run:
            conversation.latest = self._visible_ancestor(found.resolved.previous)
        if not found.chains:
            del self.runs[run]
        self._unlist(owner, run, found.entry)
        return True

    def _unlist(self, owner: str, run: str, entry: str) -> None:
        """A run goes: what its session lists of it goes too, and the session with its last run."""
        found = self.entries.get((owner, entry))
        if found is None:
            return
        turns = self.sessions.get((owner, entry), [])
        if all(turn.run != run for turn in turns):
            found.texts = [each for each in found.texts if each.run != run]
        if not turns and not found.row.made and not self.runs_in(owner, entry):
            del self.entries[owner, entry]

    def runs_in(self, owner: str, entry: str) -> list[MemoryRun]:
        """The runs of a listed session, oldest first."""
        return [run for run in self.runs.values() if run.entry == entry and run.owner == owner and not run.hidden]

    def drop_session(self, owner: str, session: str) -> None:
        """Delete a session with its turns. Its runs are listed again."""
        self.sessions.pop((owner, session), None)
        self.entries.pop((owner, session), None)
        for run in self.runs_in(owner, session):
            run.entry, run.listed = "", 0

    def drop_conversation(self, owner: str, conversation: str) -> None:
        """Delete a conversation under its id and its name. Its runs stay."""
        found = self.conversations[owner, conversation]
        for key in [key for key, other in self.conversations.items() if other is found]:
            del self.conversations[key]

    def forget(self, owner: str, run: str) -> None:
        """See Journal.forget."""
        found = self.runs.get(run)
        if found is None or found.owner != owner or not found.ended or found.kept == "stored":
            return
        del self.runs[run]
        self.signals.pop(run, None)
        if found.opening.asked.key is not None:
            self.keys.pop((owner, found.opening.asked.key), None)
        self._unlist(owner, run, found.entry)

    def _visible_ancestor(self, run: str | None) -> str | None:
        while run is not None and (run not in self.runs or self.runs[run].hidden):
            run = self.runs[run].resolved.previous if run in self.runs else None
        return run
