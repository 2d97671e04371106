"""The patch tool: replaces exact pieces of a text file. Owns: how a piece is found, the text if it is missing or there
more than once, and the rule that a call makes all its edits or none. Refuses to know: how a path is kept inside the
workspace (workspace.py), and how a file is written in one step (files.py).

A second run of the same patch fails, or changes another place. So its effect is `write`: after a crash it is never
repeated. A model that repeats it is told that the replacement is there already."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from ninelives.tools.arguments import schema_of
from ninelives.tools.base import FunctionTool, Output, Place, Threads, Tool, ToolRefused
from ninelives.tools.builtin.files import PATH, in_thread
from ninelives.tools.workspace import inside, open_file, put_file

MAX_BYTES = 4 * 1_048_576
MAX_EDITS = 50
SHOWN_LINES = 20
SHOWN_CHARS = 200
SHOWN_PLACES = 10
NEAR_S = 0.3
"""How long to look for the nearest lines."""
NEAR_ENOUGH = 0.5
COMPARED_CHARS = 200


class _Edit(Struct, forbid_unknown_fields=True):
    search: Annotated[str, Meta(description="Exact text of the file, with its whitespace; fits one place only.")]
    replace: str
    all: Annotated[bool, Meta(description="Replace every place.")] = False


class _Patch(Struct, forbid_unknown_fields=True):
    path: Annotated[str, PATH]
    search: str = ""
    replace: str | None = None
    edits: Annotated[list[_Edit], Meta(max_length=MAX_EDITS, description="Several edits, made in order.")] = []

    def all_edits(self) -> list[_Edit]:
        """The edits, whichever of the two forms was used."""
        if self.edits and not self.search and self.replace is None:
            return self.edits
        if self.edits or not self.search or self.replace is None:
            raise ToolRefused("Give either search and replace, or edits. Nothing was changed.")
        return [_Edit(self.search, self.replace)]


def patch_tool(threads: Threads) -> Tool:
    """The tool. Blocking work runs in `threads`."""
    schema = schema_of(_Patch)
    schema["properties"]["replace"] = {"type": "string"}  # type: ignore[index]  # a model should not send null
    return FunctionTool(
        name="patch",
        local="workspace",
        grows=True,
        description="Change a text file by search and replace: all edits are made, or none.",
        schema=schema,
        fn=in_thread(threads, _Patch, _patch),
        effect="write",
        label="Changing a file",
        emoji="🩹",
    )


def _patch(asked: _Patch, place: Place) -> Output:
    edits = asked.all_edits()
    path = inside(place.workspace, asked.path)
    with open_file(place.workspace, path) as file:
        seen = os.fstat(file.fileno())
        data = file.read(MAX_BYTES + 1)
    text = _text(asked.path, data)
    made: list[_Places] = []
    for number, edit in enumerate(edits, 1):
        try:
            text, places = _edited(text, edit)
        except ToolRefused as refusal:
            which = f"Edit {number} of {len(edits)}: " if len(edits) > 1 else ""
            raise ToolRefused(f"{which}{refusal} Nothing was changed in {asked.path}.") from refusal
        made.append(places)
    put_file(place, path, text.encode(), seen)
    count = sum(each.count for each in made)
    where = "; ".join(map(str, made))
    return Output(f"{count} replacement{'s' if count > 1 else ''} made in {asked.path}, {where}.")


def _text(path: str, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise ToolRefused(f"{path} has more than {MAX_BYTES} bytes: use the terminal to change it.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolRefused(f"{path} is not UTF-8 text and is not changed here.") from error


def _edited(text: str, edit: _Edit) -> tuple[str, _Places]:
    """The text after an edit, and where it was made."""
    if not edit.search:
        raise ToolRefused("search is empty.")
    if edit.search == edit.replace:
        raise ToolRefused("search and replace are the same.")
    search, replace = edit.search, edit.replace
    if 0 < text.count("\n") == text.count("\r\n"):
        search, replace = _with_crlf(search), _with_crlf(replace)
    places = _places(text, search)
    if not places.count:
        raise ToolRefused(_not_found(text, search, replace))
    if places.count > 1 and not edit.all:
        advice = "Add lines around it until it fits one, or set all in edits."
        raise ToolRefused(f"search fits {places.count} places, {places}. {advice}")
    if len(text) + places.count * (len(replace) - len(search)) > MAX_BYTES:
        raise ToolRefused(f"The file would have more than {MAX_BYTES} bytes.")
    return text.replace(search, replace), places


def _with_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


class _Places(Struct, frozen=True):
    """How often a piece occurs, and the lines at which the first occurrences begin."""

    count: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        more = f" and {self.count - len(self.lines)} more" if self.count > len(self.lines) else ""
        return f"at line{'s' if self.count > 1 else ''} {', '.join(map(str, self.lines))}{more}"


def _places(text: str, piece: str) -> _Places:
    lines: list[int] = []
    line, counted, at = 1, 0, text.find(piece)
    while at >= 0 and len(lines) < SHOWN_PLACES:
        line += text.count("\n", counted, at)
        lines.append(line)
        counted, at = at, text.find(piece, at + len(piece))
    return _Places(text.count(piece), tuple(lines))


def _not_found(text: str, search: str, replace: str) -> str:
    """Why the piece was not found, as far as the text shows it."""
    if replace.strip() and (places := _places(text, replace)).count:
        return f"search was not found, but replace is there already ({places}): it may have been made before."
    lines_there, lines_wanted = text.splitlines(), search.strip("\r\n").splitlines() or [search]
    if (at := _same_but_for_whitespace(lines_there, lines_wanted)) is not None:
        words = "search was not found; these lines differ from it in whitespace only:"
        return f"{words}\n{_numbered(lines_there, at, at + len(lines_wanted))}\n"
    if (at := _nearest(lines_there, lines_wanted)) is not None:
        words = "search was not found; the nearest lines are:"
        return f"{words}\n{_numbered(lines_there, at - 1, at + len(lines_wanted) + 1)}\n"
    return f"search was not found, nor anything like it, in {len(lines_there)} lines."


def _same_but_for_whitespace(there: Sequence[str], wanted: Sequence[str]) -> int | None:
    plain, piece = ["".join(line.split()) for line in there], ["".join(line.split()) for line in wanted]
    if not any(piece):
        return None
    size = len(piece)
    return next((at for at in range(len(plain) - size + 1) if plain[at : at + size] == piece), None)


def _nearest(there: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The line at which the piece would begin, judged by the line that is most similar to its longest line."""
    anchor = max(range(len(wanted)), key=lambda at: len(wanted[at].strip()))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[anchor].strip()[:COMPARED_CHARS])
    best, best_at = NEAR_ENOUGH, None
    deadline = time.monotonic() + NEAR_S
    for at, line in enumerate(there):
        if time.monotonic() > deadline:
            break
        matcher.set_seq1(line.strip()[:COMPARED_CHARS])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, best_at = ratio, at
    return None if best_at is None else max(best_at - anchor, 0)


def _numbered(lines: Sequence[str], first: int, last: int) -> str:
    first = max(first, 0)
    shown = lines[first : min(last, first + SHOWN_LINES)]
    return "\n".join(f"{number}\t{line[:SHOWN_CHARS]}" for number, line in enumerate(shown, first + 1))
