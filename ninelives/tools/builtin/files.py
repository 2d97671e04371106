"""The file tools: read_file, write_file and search_files, all within one workspace. Owns: their arguments, bounds and
texts. Refuses to know: how a path is kept inside (workspace.py), how a search works (search.py), and in which thread
it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, BinaryIO, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ninelives.tools.arguments import as_struct, schema_of
from ninelives.tools.base import FunctionTool, Output, Place, Threads, Tool, ToolRefused, Work
from ninelives.tools.builtin import search
from ninelives.tools.sandbox.child import Collected, spawn
from ninelives.tools.workspace import inside, open_file, put_file

S = TypeVar("S", bound=Struct)
READ_BYTES = 262_144
"""The most bytes that one read_file shows."""
LINE_BYTES = 4_000
SCAN_BYTES = 64 * 1_048_576
"""How far into a file read_file looks for a line."""
SEARCH_S = 10.0
PATTERN_CHARS = 2_000
ANSWER_BYTES = 2 * 1_048_576

# Isolated, and without site packages: loading them takes as long as the search.
_PYTHON = (sys.executable, "-I", "-S", "-W", "ignore", "-X", "utf8")

PATH = Meta(description="Path in the workspace.")


class _Read(Struct, forbid_unknown_fields=True):
    path: Annotated[str, PATH]
    offset: Annotated[int, Meta(ge=1, description="First line, from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, description="Number of lines; 2000 if left out.")] = 2000


class _Write(Struct, forbid_unknown_fields=True):
    path: Annotated[str, PATH]
    content: str


class _Search(Struct, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="content: Python regex; names: glob or part of the path.")]
    path: Annotated[str, Meta(description="Folder or file to search; the workspace if left out.")] = "."
    kind: Literal["content", "names"] = "content"


def ripgrep() -> str:
    """The path of ripgrep, if it is installed for all users; else empty."""
    return shutil.which("rg", path="/usr/local/bin:/usr/bin:/bin") or ""


def file_tools(threads: Threads, rg: str | None = None) -> list[Tool]:
    """The three tools. Blocking work runs in `threads`. `rg` is the path of ripgrep; empty means without it."""
    rg = ripgrep() if rg is None else rg

    async def search_files(arguments: dict[str, object], place: Place) -> Output:
        asked = as_struct(_Search, arguments)
        try:
            return await _search(threads, asked, place, rg)
        except OSError as error:
            return Output(f"{asked.path}: {error.strerror or error}", is_error=True)

    return [
        FunctionTool(
            name="read_file",
            local="workspace",
            description="Read a text file. Gives numbered lines.",
            schema=schema_of(_Read),
            fn=in_thread(threads, _Read, _read),
            effect="read",
            label="Reading a file",
            emoji="📄",
        ),
        FunctionTool(
            name="write_file",
            local="workspace",
            grows=True,
            description="Write a whole text file, replacing what was there. Missing folders are made.",
            schema=schema_of(_Write),
            fn=in_thread(threads, _Write, _write),
            effect="idempotent",
            label="Writing a file",
            emoji="📝",
        ),
        FunctionTool(
            name="search_files",
            local="workspace",
            description="Search the lines of files (file:line: text) or the names of files.",
            schema=schema_of(_Search),
            fn=search_files,
            effect="read",
            label="Searching files",
            emoji="🔍",
        ),
    ]


def in_thread(threads: Threads, struct: type[S], work: Callable[[S, Place], Output], what: str = "") -> Work:
    """The function of a tool whose work blocks: `work` is called in a thread, with the arguments as a Struct. The model
    can read an OSError. It names the path that was asked for, or else `what`."""

    async def call(arguments: dict[str, object], place: Place) -> Output:
        asked = as_struct(struct, arguments)
        try:
            return await threads.run(work, asked, place)
        except OSError as error:
            return Output(f"{getattr(asked, 'path', what)}: {error.strerror or error}", is_error=True)

    return call


def _read(asked: _Read, place: Place) -> Output:
    with open_file(place.workspace, inside(place.workspace, asked.path)) as file:
        size = os.fstat(file.fileno()).st_size
        if b"\0" in file.read(8192):
            return Output(f"{asked.path} is a binary file of {size} bytes and is not shown.", is_error=True)
        file.seek(0)
        return Output(_shown(file, asked, min(READ_BYTES, place.output_bytes) - 200))


def _shown(file: BinaryIO, asked: _Read, room: int) -> str:
    """The requested lines, as far as there is room, and where to read on."""
    shown: list[str] = []
    number = 0
    for number, line in _lines(file):
        if number < asked.offset:
            continue
        text = f"{number}\t{line}\n"
        room -= len(text.encode())
        if len(shown) == asked.limit or (shown and room < 0):
            return "".join(shown) + f"[more follows: read on with offset {number}]"
        shown.append(text)
    if file.read(1):
        return "".join(shown) + f"[not read further than {SCAN_BYTES} bytes: use the terminal for what follows]"
    if not shown:
        return f"[the file has {number} lines]" if number else "[the file is empty]"
    return "".join(shown)


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Number and text of each line up to SCAN_BYTES. A line that is too long is cut."""
    number, begins, scanned = 0, True, 0
    while scanned < SCAN_BYTES and (piece := file.readline(LINE_BYTES)):
        scanned += len(piece)
        ends = piece.endswith(b"\n")
        if begins:
            number += 1
            cut = " [line cut]" if not ends and len(piece) == LINE_BYTES else ""
            yield number, piece.decode("utf-8", "replace").rstrip("\r\n") + cut
        begins = ends


def _write(asked: _Write, place: Place) -> Output:
    path = inside(place.workspace, asked.path)
    if asked.path.endswith("/") or path == inside(place.workspace, "."):
        raise ToolRefused(f"{asked.path!r} names a folder. Give the path of a file.")
    data = asked.content.encode("utf-8", "replace")
    put_file(place, path, data)
    return Output(f"{len(data)} bytes written to {asked.path}")


async def _search(threads: Threads, asked: _Search, place: Place, rg: str) -> Output:
    if not asked.pattern or len(asked.pattern) > PATTERN_CHARS or "\0" in asked.pattern:
        raise ToolRefused(f"The pattern must have from 1 to {PATTERN_CHARS} characters and no NUL.")
    seconds = min(SEARCH_S, place.timeout_s * 0.8)
    home = await threads.run(inside, place.workspace, ".")
    top = await threads.run(inside, place.workspace, asked.path)
    request = search.Request(str(home), str(top.relative_to(home)), asked.pattern, asked.kind, seconds, rg)
    argv = (*_PYTHON, search.__file__, msgspec.json.encode(request._asdict()).decode())
    child = spawn(argv, {}, home, subprocess.DEVNULL)
    return _result(await child.collect(ANSWER_BYTES, seconds * 1.1), seconds)


class _Found(Struct):
    """The answer of search.py."""

    found: list[str]
    too_big: int
    folders: int
    stopped: str
    error: str


def _result(collected: Collected, seconds: float) -> Output:
    if collected.code != 0 or collected.total > ANSWER_BYTES:
        last = collected.kept[-200:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = f"took longer than {seconds:g} s" if collected.code is None else f"failed ({last})"
        return Output(f"The search {why}. Use a simpler pattern or search less.", is_error=True)
    result = msgspec.json.decode(collected.kept, type=_Found)
    if result.error:
        return Output(f"The search was not made: {result.error}.", is_error=True)
    notes = []
    if result.stopped:
        notes.append(f"[stopped: {result.stopped}; there may be more]")
    if result.too_big:
        notes.append(f"[{result.too_big} files of more than {search.MAX_FILE_BYTES} bytes were not searched]")
    if result.folders:
        notes.append(f"[{result.folders} folders were left out, such as .git and node_modules]")
    return Output("\n".join([*(result.found or ["[nothing found]"]), *notes]))
