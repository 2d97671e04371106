"""The search through a workspace, as a program of its own: `python -I -S search.py '<request>'`, with one JSON object
on stdout. Owns: the walk, the matching and their bounds. It is a process because a regular expression can take for
ever without letting go of the interpreter: in a thread that would stop the whole server, a process is killed. It
limits its own memory and time too, so that it ends when the server that started it is gone. Refuses to know: the
server; it imports the standard library only, and follows no links."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

SKIPPED_FOLDERS = frozenset({".git", "node_modules", "__pycache__"})
MAX_RESULTS = 200
MAX_FILE_BYTES = 4 * 1_048_576
MAX_VISITED = 100_000
MAX_DEPTH = 64
LINE_CHARS = 300
MEMORY_BYTES = 512 * 1_048_576

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Request(NamedTuple):
    """What is looked for. `path` is the folder or file to look in, seen from `workspace`, a real path; `kind` is
    content or names."""

    workspace: str
    path: str
    pattern: str
    kind: str
    seconds: float


class Result:
    """What was found, and what was left out."""

    def __init__(self, error: str = "") -> None:
        self.found: list[str] = []
        self.too_big = 0
        self.folders = 0
        self.stopped = ""
        self.error = error


class File(NamedTuple):
    """A file met on the walk: its path in results, and how to open it."""

    shown: str
    name: str
    folder: int | None


def search(request: Request) -> Result:
    """All that matches, in the order of names, up to the first bound that is reached."""
    result = Result()
    try:
        matches = name_matcher(request.pattern) if request.kind == "names" else line_matcher(request.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return Result(error=f"the pattern is not a valid regular expression ({error})")
    deadline = time.monotonic() + request.seconds
    for visited, file in enumerate(walk(request.path, enter(request), result)):
        if visited >= MAX_VISITED:
            result.stopped = f"{MAX_VISITED} files were looked at"
        elif time.monotonic() > deadline:
            result.stopped = f"{request.seconds:g} s were over"
        else:
            result.found += matches(file, result)
        if len(result.found) >= MAX_RESULTS:
            result.found = result.found[:MAX_RESULTS]
            result.stopped = f"{MAX_RESULTS} results were found"
        if result.stopped:
            break
    return result


def enter(request: Request) -> str:
    """Make the folder to look in the working folder; the name of the file in it, where one file is meant."""
    os.chdir(request.workspace)
    *folders, last = request.path.split(os.sep)
    for part in folders:
        step(part)
    try:
        step(last)
    except NotADirectoryError:
        return last
    return ""


def step(part: str) -> None:
    fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.fchdir(fd)
    os.close(fd)


def walk(shown: str, name: str, result: Result) -> Iterator[File]:
    """Every file in the working folder, without following a link, folders opened one below the other."""
    if name:
        yield File(shown, name, None)
        return
    for path, folders, files, fd in os.fwalk(".", follow_symlinks=False):
        kept = [name for name in sorted(folders) if name not in SKIPPED_FOLDERS]
        if path.count(os.sep) >= MAX_DEPTH:
            kept = []
        result.folders += len(folders) - len(kept)
        folders[:] = kept
        for name in sorted(files):
            yield File(os.path.normpath(os.path.join(shown, path, name)), name, fd)


Matcher = Callable[[File, Result], list[str]]


def name_matcher(pattern: str) -> Matcher:
    """A glob against the path or the name; without its signs, a part of the path, in any case of letters."""
    if not any(sign in pattern for sign in "*?["):
        part = pattern.casefold()
        return lambda file, result: [file.shown] if part in file.shown.casefold() else []
    # fnmatch lets * cross folders, so **/ means just "at any depth", which is none too.
    globs = {pattern, pattern.removeprefix("**/")}

    def matches(file: File, result: Result) -> list[str]:
        names = (file.shown, os.path.basename(file.shown))
        hit = any(fnmatch.fnmatchcase(name, glob) for name in names for glob in globs)
        return [file.shown] if hit else []

    return matches


def line_matcher(pattern: str) -> Matcher:
    """A regular expression against each line of each file that is text and not too big."""
    expression = re.compile(pattern)

    def matches(file: File, result: Result) -> list[str]:
        found = []
        for number, line in enumerate(text_of(file, result).split("\n"), 1):
            if expression.search(line):
                found.append(f"{file.shown}:{number}: {line.strip()[:LINE_CHARS]}")
                if len(found) >= MAX_RESULTS:
                    break
        return found

    return matches


def text_of(file: File, result: Result) -> str:
    """The text of a file; none where it is binary, too big, no plain file, or cannot be opened."""
    data = bytes_of(file)
    if len(data) > MAX_FILE_BYTES:
        result.too_big += 1
        return ""
    return "" if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def bytes_of(file: File) -> bytes:
    """The bytes of a plain file, one more than the bound at most."""
    try:
        fd = os.open(file.name, _FILE, dir_fd=file.folder)
    except OSError:
        return b""  # a link, gone meanwhile, or not ours to read: as if it were not there
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        with open(fd, "rb", closefd=False) as source:
            return source.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)


def main() -> None:
    """Answer the one request in the arguments."""
    request = Request(**json.loads(sys.argv[1]))
    signal.alarm(int(request.seconds) + 5)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        result = search(request)
    except MemoryError:
        result = Result(error="the pattern needs too much memory")
    except OSError as error:
        result = Result(error=f"{request.path}: {error.strerror}")
    sys.stdout.buffer.write(json.dumps(vars(result), ensure_ascii=False).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
