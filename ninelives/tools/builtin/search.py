"""The search through a workspace, as a program: `python -I -S search.py '<request>'` prints one JSON object. Owns: the
walk, the matching and their bounds. It is a process because a regular expression can run for ever without releasing
the interpreter. In a thread that would stop the whole server, but a process can be killed. It also limits its own
memory and time, so that it ends if the server is gone. Refuses to know: the server. It imports the standard library
only, and follows no links.

If ripgrep is installed it does the matching, because it is many times faster. Walk, order, bounds and answer stay the
same. But ripgrep opens files by path, and a path can become a link to elsewhere in between. So it is used only if
Landlock closes everything but the workspace and the system's programs to this process. A pattern that ripgrep does not
support (look-around) is matched here."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import re
import resource
import signal
import stat
import subprocess
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
BATCH_FILES = 1_000
BATCH_CHARS = 100_000

LANDLOCK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "sandbox", "landlock.py")
SYSTEM = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"]
RIPGREP = (
    "--no-config --no-messages --color=never --no-heading --with-filename --line-number --null --no-mmap --threads=1"
)

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Request(NamedTuple):
    """A search. `path` is the folder or file to search, relative to `workspace`, a real path. `kind` is content or
    names. `rg` is the path of ripgrep, or empty."""

    workspace: str
    path: str
    pattern: str
    kind: str
    seconds: float
    rg: str = ""


class Result:
    """What was found, and what was skipped."""

    def __init__(self, error: str = "") -> None:
        self.found: list[str] = []
        self.too_big = 0
        self.folders = 0
        self.stopped = ""
        self.error = error

    def add(self, lines: list[str]) -> None:
        """Add results. The search stops when there are enough."""
        self.found += lines
        if self.full:
            del self.found[MAX_RESULTS:]
            self.stopped = f"{MAX_RESULTS} results were found"

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return len(self.found) >= MAX_RESULTS


class File(NamedTuple):
    """A file of the walk: its path in results, its path from the working folder, and how to open it."""

    shown: str
    path: str
    name: str
    folder: int | None


def search(request: Request) -> Result:
    """All matches in the order of names, up to the first bound that is reached."""
    try:
        matches = name_matcher(request.pattern) if request.kind == "names" else line_matcher(request.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return Result(error=f"the pattern is not a valid regular expression ({error})")
    deadline = time.monotonic() + request.seconds
    name = enter(request)
    if request.rg and request.kind == "content" and closed_in(request.workspace):
        result = Result()
        if match_with_ripgrep(request, walked(request, name, result, deadline), result):
            return result
    result = Result()
    for file in walked(request, name, result, deadline):
        result.add(matches(file, result))
    return result


def walked(request: Request, name: str, result: Result, deadline: float) -> Iterator[File]:
    """The files to search, until a bound is reached."""
    for visited, file in enumerate(walk(request.path, name, result)):
        if result.full:
            return
        if visited >= MAX_VISITED:
            result.stopped = f"{MAX_VISITED} files were looked at"
            return
        if time.monotonic() > deadline:
            result.stopped = f"{request.seconds:g} s were over"
            return
        yield file


def closed_in(workspace: str) -> bool:
    """Close everything but the workspace and the system's programs to this process. False if that is not possible."""
    spec = importlib.util.spec_from_file_location("landlock", LANDLOCK)
    if spec is None or spec.loader is None:
        return False
    landlock = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(landlock)
        landlock.restrict(landlock.Plan(read=[workspace, *SYSTEM], write=[]))
    except OSError:
        return False
    return True


def match_with_ripgrep(request: Request, files: Iterator[File], result: Result) -> bool:
    """Let ripgrep search the files in batches. False if it does not support the pattern."""
    batch: dict[str, str] = {}
    chars = 0
    for file in files:
        if is_searched(file, result):
            batch[file.path] = file.shown
            chars += len(file.path)
        if len(batch) >= BATCH_FILES or chars >= BATCH_CHARS:
            if not ripgrep(request, batch, result):
                return False
            batch, chars = {}, 0
    return not batch or result.full or ripgrep(request, batch, result)


def is_searched(file: File, result: Result) -> bool:
    """Whether it is a plain file, not too big, with a name that ripgrep can print on one line."""
    try:
        found = os.stat(file.name, dir_fd=file.folder, follow_symlinks=False)
    except OSError:
        return False  # gone meanwhile
    if not stat.S_ISREG(found.st_mode) or "\n" in file.path:
        return False
    result.too_big += found.st_size > MAX_FILE_BYTES
    return found.st_size <= MAX_FILE_BYTES


def ripgrep(request: Request, files: dict[str, str], result: Result) -> bool:
    """Search one batch, a dict of path and path in results. False if ripgrep does not support the pattern."""
    argv = [request.rg, *RIPGREP.split(), f"--max-count={MAX_RESULTS}", "-e", request.pattern, "--", *files]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            path, found, match = line.rstrip(b"\n").partition(b"\0")
            number, _, text = match.partition(b":")
            shown = files.get(os.fsdecode(path))
            if found and shown is not None:
                result.add([f"{shown}:{int(number)}: {text.decode('utf-8', 'replace').strip()[:LINE_CHARS]}"])
            if result.full:
                process.kill()
                return True
        complaint = process.stderr.read(1)
    return not (process.returncode == 2 and complaint)


def enter(request: Request) -> str:
    """Make the folder to search the working folder. The name of the file in it, if the search is for one file."""
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
        yield File(shown, name, name, None)
        return
    for path, folders, files, fd in os.fwalk(".", follow_symlinks=False):
        kept = [name for name in sorted(folders) if name not in SKIPPED_FOLDERS]
        if path.count(os.sep) >= MAX_DEPTH:
            kept = []
        result.folders += len(folders) - len(kept)
        folders[:] = kept
        for name in sorted(files):
            relative = os.path.normpath(os.path.join(path, name))
            yield File(os.path.normpath(os.path.join(shown, relative)), relative, name, fd)


Matcher = Callable[[File, Result], list[str]]


def name_matcher(pattern: str) -> Matcher:
    """A glob against the path or the name; without its signs, a part of the path, in any case of letters."""
    if not any(sign in pattern for sign in "*?["):
        part = pattern.casefold()
        return lambda file, result: [file.shown] if part in file.shown.casefold() else []
    # With fnmatch * also matches /, so **/ only means "at any depth", and that includes none.
    globs = {pattern, pattern.removeprefix("**/")}

    def matches(file: File, result: Result) -> list[str]:
        names = (file.shown, os.path.basename(file.shown))
        hit = any(fnmatch.fnmatchcase(name, glob) for name in names for glob in globs)
        return [file.shown] if hit else []

    return matches


def line_matcher(pattern: str) -> Matcher:
    """Matches a regular expression against each line of a text file that is not too big."""
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
    """The text of a file. Empty if it is binary, too big, not a plain file, or cannot be opened."""
    data = bytes_of(file)
    if len(data) > MAX_FILE_BYTES:
        result.too_big += 1
        return ""
    return "" if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def bytes_of(file: File) -> bytes:
    """The bytes of a plain file, at most one more than the bound."""
    try:
        fd = os.open(file.name, _FILE, dir_fd=file.folder)
    except OSError:
        return b""  # a link, gone meanwhile, or not readable: skip it
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        with open(fd, "rb", closefd=False) as source:
            return source.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)


def main() -> None:
    """Answer the request in the first argument."""
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
