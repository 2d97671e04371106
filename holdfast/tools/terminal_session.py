"""What a shell remembers from one command of a session to the next: folder and exported environment. Owns: the words
by which a shell tells them at its end, what of that is believed, and the file in which it is kept. Refuses to know:
how commands are run.

Theory of operation. The telling is done by the shell itself, in its exit trap, into a file that the server lent to
this one call and holds open; what a command prints plays no part. A command may write into that file too: it can
say nothing that it could not have done by cd and export, for the folder must be in the workspace, names must be
names, and all of it must be small. What is remembered is put before the next command by env(1) after permission was
given, so a PATH or LD_PRELOAD from here never reaches the launcher. A command that is killed tells nothing, and what
was remembered before stays."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.tools.base import Place, ToolRefused
from holdfast.tools.workspace import inside

ENVIRON_BYTES = 65_536
TOLD_BYTES = ENVIRON_BYTES + 4096
MOST_NAMES = 512
MOST_SESSIONS = 1000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_OWN = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
_HOLDFAST = "HOLDFAST_"


class Shell(Struct, frozen=True):
    """The state of a session's shell, as far as it differs from a fresh one. `folder` is relative to the workspace."""

    folder: str = "."
    environ: dict[str, str] = {}
    unset: list[str] = []

    def environ_over(self, base: dict[str, str]) -> dict[str, str]:
        """The environment that the next command begins with."""
        kept = {name: value for name, value in base.items() if name not in self.unset}
        return kept | self.environ

    def folder_in(self, workspace: Path) -> Path:
        """The folder in which the next command begins; the workspace where that is gone, or leads out of it."""
        try:
            folder = inside(workspace, f"./{self.folder}")
        except ToolRefused:
            return workspace
        return folder if folder.is_dir() else workspace


def telling(command: str, path: str) -> str:
    """The command, in a shell that tells its state at the end. On the command's own line, so that the line numbers in
    the shell's complaints are right; what does not parse tells nothing."""
    tell = f"""{{ printf '%s\\0' "$(pwd -P)"; /usr/bin/env -0; }} >|{shlex.quote(path)} 2>/dev/null"""
    return f"trap {shlex.quote(tell)} EXIT; {command}"


def heard(told: bytes, before: Shell, base: dict[str, str], workspace: Path) -> tuple[Shell, str]:
    """The state after a command that told this, and a note for the model where it is not what the command left."""
    first, end, rest = told.partition(b"\0")
    if not end:
        return before, ""
    folder = _folder(first, workspace)
    note = "" if folder is not None else f"[outside of the workspace: the next command starts in {before.folder}]"
    if not rest:
        return msgspec.structs.replace(before, folder=folder or before.folder), note
    environ = _environ(rest)
    if len(rest) > ENVIRON_BYTES or not rest.endswith(b"\0") or len(environ) > MOST_NAMES:
        note = f"{note}\n[the environment is too large to be kept: it stays as it was]".strip()
        return msgspec.structs.replace(before, folder=folder or before.folder), note
    changed = {name: value for name, value in environ.items() if base.get(name) != value}
    unset = [name for name in base if name not in environ and not name.startswith(_HOLDFAST)]
    return Shell(folder or before.folder, changed, unset), note


def _folder(told: bytes, workspace: Path) -> str | None:
    try:
        path = Path(told.decode())
        return str(inside(workspace, str(path)).relative_to(workspace)) if path.is_absolute() else None
    except (UnicodeDecodeError, ToolRefused):
        return None


def _environ(told: bytes) -> dict[str, str]:
    """The variables that are believed: with a proper name, valid text, and none of the shell's own or of ours."""
    environ = {}
    for pair in told.split(b"\0"):
        with suppress(UnicodeDecodeError):  # no text: a model could not have meant it
            name, equals, value = pair.decode().partition("=")
            if equals and _NAME.match(name) and name not in _OWN and not name.startswith(_HOLDFAST):
                environ[name] = value
    return environ


def recall(place: Place) -> Shell:
    """What is remembered of the session. Blocks."""
    path = _path(place)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Shell) if path else Shell()
    except (OSError, msgspec.DecodeError):
        return Shell()  # none yet, or damaged: a fresh shell is always right


def remember(place: Place, shell: Shell) -> None:
    """Keep it for the next command of the session. Blocks."""
    path = _path(place)
    if path is None:
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists():
        _make_room(path.parent)
    draft = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}.tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(shell))
    draft.rename(path)


def _path(place: Place) -> Path | None:
    """Where it is kept; None where nothing is."""
    if not place.session or not place.state.is_dir():
        return None
    digest = hashlib.sha256(place.session.encode("utf-8", "surrogatepass")).hexdigest()
    return place.state / "sessions" / f"{digest[:32]}.json"


def _make_room(folder: Path) -> None:
    """Sessions without number: the ones that were quiet for longest are forgotten."""
    files = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder))
    for _, path in files[: max(0, len(files) - MOST_SESSIONS + 1)]:
        with suppress(FileNotFoundError):  # another call forgot it meanwhile
            os.unlink(path)
