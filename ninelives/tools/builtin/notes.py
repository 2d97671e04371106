"""The notes of an agent: the todo list of a session and the memory of an owner. Owns: both tools, their files in the
state folder, their bounds, and the rule that a call repeated after a crash changes nothing twice. Refuses to know: who
decides whose memory it is (Place.memory_scope), and what the notes mean.

Theory of operation. Each list is a small JSON file, replaced in one step under a lock on a file beside it. So two
sessions of one owner, or two servers on one disk, never lose each other's notes. The memory file also keeps the answers
to its last calls by call id: a repeated call gets the same answer and changes nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ninelives.tools.arguments import schema_of
from ninelives.tools.base import FunctionTool, Output, Place, Reach, Threads, Tool, ToolRefused
from ninelives.tools.builtin.files import in_thread

MAX_ITEMS = 100
ITEM_CHARS = 500
MAX_LISTS = 1000
"""Todo lists kept per owner. The oldest are deleted first."""
MAX_NOTES = 200
NOTE_CHARS = 2_000
MEMORY_CHARS = 64_000
REMEMBERED_CALLS = 64
LOCK_S = 5.0

_SIGNS = {"pending": " ", "in_progress": ">", "done": "x", "cancelled": "-"}

S = TypeVar("S", bound=Struct)


class Item(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=ITEM_CHARS)]
    status: Literal["pending", "in_progress", "done", "cancelled"]
    id: str = ""


class _Todo(Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item] | None, Meta(description="The whole new list; left out: show it.")] = None


class _Todos(Struct):
    items: list[Item] = []


class _Memory(Struct, forbid_unknown_fields=True):
    action: Literal["add", "replace", "remove", "list", "search"]
    text: Annotated[str, Meta(description="The note, or the words to search for.")] = ""
    id: Annotated[str, Meta(description="Which note to replace or remove.")] = ""


class Note(Struct):
    id: str
    text: str


class _RecordedAnswer(Struct):
    call_id: str
    text: str


class _Notes(Struct):
    """A memory file."""

    notes: list[Note] = []
    made: int = 0
    """How many notes were ever made, so that ids are not reused."""
    answers: list[_RecordedAnswer] = []


def note_tools(threads: Threads) -> list[Tool]:
    """Both tools. Blocking work runs in `threads`."""
    schema = schema_of(_Todo)
    fields: dict[str, dict[str, object]] = schema["properties"]  # type: ignore[assignment]
    fields["items"] = {**fields["items"].pop("anyOf")[0], **fields["items"]}  # type: ignore[index]  # a model should not send null
    return [
        FunctionTool(
            name="todo",
            local="workspace",
            description="Show or replace the todo list of this conversation. Use it for work of several steps.",
            schema=schema,
            fn=in_thread(threads, _Todo, _todo, "todo"),
            effect="idempotent",
            approval="none",
            label="Keeping the todo list",
            emoji="✅",
        ),
        FunctionTool(
            name="memory",
            local="memory",
            description="Notes that outlast this conversation: facts and wishes of the user worth knowing next time.",
            schema=schema_of(_Memory),
            fn=in_thread(threads, _Memory, _memory, "memory"),
            effect="idempotent",
            approval="write",
            reach=lambda arguments: Reach("none" if arguments.get("action") in ("list", "search") else "write"),
            label="Using the memory",
            emoji="🧠",
        ),
    ]


def _todo(asked: _Todo, place: Place) -> Output:
    path = _file(place, "todo", place.session)
    if asked.items is None:
        return Output(_todo_text(_load(path, _Todos).items))
    if len(asked.items) > MAX_ITEMS:
        raise ToolRefused(f"A todo list has at most {MAX_ITEMS} items. Join some of them.")
    with _locked(path):
        _save(path, _Todos(asked.items))
        _forget_oldest(path.parent)
    return Output(_todo_text(asked.items))


def _todo_text(items: list[Item]) -> str:
    lines = [f"{item.id or number}. [{_SIGNS[item.status]}] {item.text}" for number, item in enumerate(items, 1)]
    return "\n".join(lines) or "[the todo list is empty]"


def _forget_oldest(folder: Path) -> None:
    lists = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in lists[:-MAX_LISTS]:
        path.unlink(missing_ok=True)


def _memory(asked: _Memory, place: Place) -> Output:
    path = _file(place, "memory", place.memory_scope)
    if asked.action == "list":
        return Output(_notes_text(_load(path, _Notes).notes))
    if asked.action == "search":
        return Output(_notes_text(_matching(_load(path, _Notes).notes, asked.text)))
    change = {"add": _add, "replace": _replace, "remove": _remove}[asked.action]
    with _locked(path):
        return _once(path, place.call_id, lambda kept: change(kept, asked))


def _once(path: Path, call_id: str, change: Callable[[_Notes], str]) -> Output:
    """Make a change, unless this call has made it before."""
    kept = _load(path, _Notes)
    for answer in kept.answers:
        if answer.call_id == call_id:
            return Output(answer.text)
    text = change(kept)
    kept.answers = [*kept.answers, _RecordedAnswer(call_id, text)][-REMEMBERED_CALLS:]
    _save(path, kept)
    return Output(text)


def _add(kept: _Notes, asked: _Memory) -> str:
    text = _checked_text(asked.text)
    if same := next((note for note in kept.notes if note.text == text), None):
        return f"Note {same.id} says that already."
    kept.made += 1
    kept.notes.append(Note(f"m{kept.made}", text))
    _check_room(kept)
    return f"Noted as m{kept.made}."


def _replace(kept: _Notes, asked: _Memory) -> str:
    note = _by_id(kept, asked.id)
    note.text = _checked_text(asked.text)
    _check_room(kept)
    return f"Note {note.id} is replaced."


def _remove(kept: _Notes, asked: _Memory) -> str:
    note = _by_id(kept, asked.id)
    kept.notes.remove(note)
    return f"Note {note.id} is removed: {note.text[:100]}"


def _by_id(kept: _Notes, wanted: str) -> Note:
    found = next((note for note in kept.notes if note.id == wanted), None)
    if found is None:
        known = ", ".join(note.id for note in kept.notes) or "none"
        raise ToolRefused(f"There is no note {wanted[:64]!r}. Notes: {known}.")
    return found


def _checked_text(text: str) -> str:
    text = text.strip()
    if not text or len(text) > NOTE_CHARS:
        raise ToolRefused(f"The text of a note has from 1 to {NOTE_CHARS} characters.")
    return text


def _check_room(kept: _Notes) -> None:
    chars = sum(len(note.text) for note in kept.notes)
    if len(kept.notes) > MAX_NOTES or chars > MEMORY_CHARS:
        raise ToolRefused(
            f"The memory is full ({MAX_NOTES} notes, {MEMORY_CHARS} characters). Remove or join notes first."
        )


def _matching(notes: list[Note], text: str) -> list[Note]:
    """Notes with any of the words. Those with most of them come first."""
    words = set(text.casefold().split())
    if not words:
        raise ToolRefused("Give the words to search for as text.")
    hits = [(sum(word in note.text.casefold() for word in words), note) for note in notes]
    return [note for count, note in sorted(hits, key=lambda hit: -hit[0]) if count]


def _notes_text(notes: list[Note]) -> str:
    return "\n".join(f"{note.id}: {note.text}" for note in notes) or "[no notes]"


def _file(place: Place, kind: str, name: str) -> Path:
    """The file of a list. Clients choose the names of sessions and scopes, so the file is named by hash."""
    folder = place.state / kind
    folder.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256(f"{place.owner}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()
    return folder / f"{digest[:32]}.json"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the lists in this folder against other writers."""
    fd = os.open(path.parent / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_S
        while not _lock(fd):
            if time.monotonic() > deadline:
                raise ToolRefused("The notes are in use by another call. Try again.")
            time.sleep(0.005)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _load(path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return kind()
    except msgspec.DecodeError as error:
        aside = path.with_suffix(f".broken-{time.time_ns()}")
        path.rename(aside)
        raise ToolRefused(f"The notes could not be read and were set aside as {aside.name} ({error}).") from error


def _save(path: Path, value: Struct) -> None:
    draft = path.with_suffix(".tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(value))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
