"""What a list of sessions shows of a run. Owns: SessionTurn (the part of a run that its session lists and that a
search finds), the marks by which a chat that resends its history is recognised, the words of a search, snippets, and a
session as Markdown. Refuses to know: where sessions are stored, and who asks."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
from msgspec import Struct

from ninelives.core.history import output_messages, text_of
from ninelives.core.spec import Message, is_one_chat
from ninelives.core.state import RunState

FRONT_END_SESSION = "owui-"
"""How the name of a session begins that Open WebUI's chat id names."""
TEXT_BYTES = 64 * 1024
"""How much of a turn a search looks through."""
PREVIEW_CHARS = 120
_SPEAKERS: dict[object, str] = {role: f"\0\0{role}\0" for role in ("user", "assistant")}
HASH_CHARS = 64 * 1024
"""How much is hashed at once."""
MARKS = (">>>", "<<<")
"""What stands around a hit in a snippet."""
AROUND = 80
"""How many characters a snippet shows before and after its first hit."""
_WORD = re.compile(r"[^\W_]+")
_BACKTICKS = re.compile(r"`+")
_messages = msgspec.json.Decoder(list[Message])


class SessionTurn(Struct, frozen=True, kw_only=True):
    """What one run, or one stored turn, adds to the list of sessions."""

    owner: str
    run: str
    at: int
    """When it ended; until then, when it began."""
    session: str
    """The session id of the run."""
    created_at: int
    ended: bool = True
    named: bool = False
    """The caller named the session."""
    counted: bool = True
    """False: its session counts and shows what was said already, as one that was imported does."""
    conversation: str | None = None
    previous: str | None = None
    source: str = ""
    model: str = ""
    preview: str = ""
    text: str = ""
    messages: int = 0
    """New messages: what was said before is not counted."""
    earlier: int = 0
    """Messages that the request itself gave as its history."""
    input_tokens: int = 0
    output_tokens: int = 0
    before: tuple[str, str] = ("", "")
    """Marks of what the request gave as its history: all of it, and what its user said (see `marks_of`)."""
    after: tuple[str, str] = ("", "")
    """The same at the end of the turn. The next request of this chat has them as `before`."""


def turn_of(state: RunState) -> SessionTurn:
    """What a run shows in its session now."""
    facts = state.facts
    spec, resolved = facts.accepted.spec, facts.accepted.resolved
    session = resolved.session or ""
    history, ended = spec.history, state.ended
    said = [*spec.input, *output_messages(facts.messages, facts.results)] if ended else list(spec.input)
    before = after = ("", "")
    if not is_one_chat(session) and not resolved.remember and resolved.previous is None:
        before, *later = marks_after(session, history, *([said] if ended else []))
        after = later[0] if later else after
    return SessionTurn(
        owner=facts.accepted.owner,
        run=facts.run,
        at=facts.updated_at if ended else facts.created_at,
        session=session,
        created_at=facts.created_at,
        ended=ended,
        named=resolved.remember,
        conversation=resolved.conversation,
        previous=resolved.previous,
        source="open-webui" if session.startswith(FRONT_END_SESSION) else spec.dialect,
        model=spec.model,
        preview=preview_of(chain(history, spec.input)),
        text=searchable(said),
        messages=len(said),
        earlier=len(history),
        input_tokens=facts.usage.input_tokens,
        output_tokens=facts.usage.output_tokens,
        before=before,
        after=after,
    )


def turn_of_stored(owner: str, session: str, run: str | None, at: int, turn: bytes) -> SessionTurn:
    """What a stored turn of a named session shows, where its run is gone or never was here."""
    said = decoded_turn(turn)
    return SessionTurn(
        owner=owner,
        run=run or "",
        at=at,
        session=session,
        created_at=at,
        named=True,
        preview=preview_of(said),
        text=searchable(said),
        messages=len(said),
    )


def decoded_turn(turn: bytes) -> list[Message]:
    """The messages of a stored turn; none where it is not a list of messages."""
    try:
        return _messages.decode(turn)
    except msgspec.DecodeError:
        return []


def preview_of(messages: Iterable[Message]) -> str:
    """The first words of the user, on one line."""
    said = (text_of(message.get("content")) for message in messages if message.get("role") == "user")
    first = next((text for text in said if text and not text.isspace()), "")
    line = " ".join(storable(first[: 8 * PREVIEW_CHARS]).split())
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 1] + "…"


def previews(before: bytes, after: bytes) -> tuple[str, str]:
    """The preview of a turn before an item of it was removed, and after."""
    return preview_of(decoded_turn(before)), preview_of(decoded_turn(after))


def searchable(messages: Iterable[Message]) -> str:
    """What user and assistant said, a paragraph each, up to TEXT_BYTES."""
    said: list[str] = []
    room = TEXT_BYTES
    for message in messages:
        part = text_of(message.get("content"))[:TEXT_BYTES] if message.get("role") in ("user", "assistant") else ""
        if part and not part.isspace():
            said.append(part)
            room -= len(part)
            if room <= 0:
                break
    return storable("\n\n".join(said)).encode()[:TEXT_BYTES].decode("utf-8", "ignore")


def storable(text: str) -> str:
    """The text without what a database cannot store: NUL characters and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def marks_of(session: str, messages: Iterable[Message]) -> tuple[str, str]:
    """Two marks of a chat so far: of all that user and assistant said, and of the user's words alone. The second one
    is for clients that change the answers that they send back. Empty where nothing was said."""
    return marks_after(session, messages)[0]


def marks_after(session: str, *parts: Iterable[Message]) -> list[tuple[str, str]]:
    """The marks of a chat after each of its parts, in one pass."""
    everybody, user = _Mark("all", session), _Mark("user", session)
    marks: list[tuple[str, str]] = []
    for messages in parts:
        said = [(message.get("role"), text_of(message.get("content")).strip()) for message in messages]
        if said:  # most chats begin without a history
            everybody.add([(_SPEAKERS[role], text) for role, text in said if text and role in ("user", "assistant")])
            user.add([("\0\0", text) for role, text in said if text and role == "user"])
        marks.append((everybody.value(), user.value()))
    return marks


class _Mark:
    """A hash of what was said."""

    def __init__(self, kind: str, session: str) -> None:
        self._hash = hashlib.blake2b(f"{kind}\0\0{session}".encode("utf-8", "replace"), digest_size=16)
        self._empty = True

    def add(self, said: Sequence[tuple[str, str]]) -> None:
        """What was said next, each text with what stands before it. A long text is not copied as a whole."""
        self._empty = self._empty and not said
        parts: list[str] = []
        size = 0
        for pair in said:
            size += len(pair[1])
            if size <= HASH_CHARS:
                parts += pair
                continue
            self._update("".join(parts))
            before, text = pair
            self._update(before)
            for start in range(0, len(text), HASH_CHARS):
                self._update(text[start : start + HASH_CHARS])
            parts, size = [], 0
        self._update("".join(parts))

    def _update(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "replace"))

    def value(self) -> str:
        return "" if self._empty else self._hash.hexdigest()


def words_of(text: str) -> list[str]:
    """The words of a text as a search compares them: lower case, without accents."""
    return _WORD.findall(_plain(text))


def _plain(text: str) -> str:
    """Each character as one plain character, so that places in the result are places in the text."""
    if text.isascii():
        return text.lower()
    return "".join(map(_plain_character, text))


def _plain_character(char: str) -> str:
    if char.isascii():
        return char.lower()
    return (unicodedata.normalize("NFKD", char)[:1] or char).lower()[:1] or char


def has_words(text: str, wanted: Sequence[str]) -> bool:
    """Whether each wanted word begins a word of the text."""
    words = words_of(text)
    return all(any(word.startswith(each) for word in words) for each in wanted)


def snippet(text: str, wanted: tuple[str, ...]) -> str:
    """A piece of the text around the first hit, on one line, with MARKS around each hit."""
    plain = _plain(text)
    first = next((m.start() for m in _WORD.finditer(plain) if m.group().startswith(wanted)), 0)
    start, end = max(0, first - AROUND), min(len(text), first + 2 * AROUND)
    shown, place = ["…" if start else ""], start
    for hit in _WORD.finditer(plain, first, end + 1):
        begin, stop = hit.span()
        if stop <= end and hit.group().startswith(wanted):
            shown += [text[place:begin], MARKS[0], text[begin:stop], MARKS[1]]
            place = stop
    shown += [text[place:end], "…" if end < len(text) else ""]
    return " ".join("".join(shown).split())


def own_entry(turn: SessionTurn) -> str | None:
    """The listed session that a turn names by itself. None: the store must look for it (Sessions.list_turns)."""
    return turn.session if turn.named else turn.conversation


def new_entry(turn: SessionTurn, *, taken: bool) -> str:
    """The id of the session of a new chat. `taken`: another chat that begins alike has the derived id."""
    if not turn.session:
        return f"run-{turn.run}"
    return f"{turn.session}.{turn.run[:12]}" if taken else turn.session


def as_markdown(title: str, messages: Iterable[Message]) -> str:
    """What was said, to read. Calls of tools are named; their outputs are quoted as code."""
    parts = [f"# {' '.join(title.split())}"]
    for message in messages:
        role, text = str(message.get("role", "")), text_of(message.get("content"))
        if role == "tool":
            parts.append(f"**Output of {message.get('tool_name') or 'a tool'}**\n\n{_fenced(text)}")
            continue
        if text.strip():
            parts.append(f"## {role.capitalize()}\n\n{text.strip()}")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            parts.append(f"**Call of {call['function']['name']}**\n\n{_fenced(call['function']['arguments'])}")
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    """The text as a block of code, whatever backticks it has itself."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def counts_of(turn: SessionTurn) -> tuple[int, int, int, int, int]:
    """What a turn adds: turns, new messages, messages before them, tokens in and out. Nothing before its end."""
    if not turn.ended or not turn.counted:
        return (0, 0, 0, 0, 0)
    return (1, turn.messages, turn.earlier, turn.input_tokens, turn.output_tokens)
