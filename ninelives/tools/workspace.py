"""The folder in which an owner's tools work. Owns: its name on disk, the Place of each call, and the one way from a
name that a model wrote to a file inside it. A name is first resolved and checked (`inside`), then opened folder by
folder without following links: a link that was put there in between is an error and not a way out. What is written
goes to a new file, which then takes the name: whatever has the name already (a pipe, a link) is never opened. Refuses
to know: what is in the files."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from ninelives.core.spec import Kept
from ninelives.core.state import RunState
from ninelives.tools.base import HERE, Place, ToolRefused
from ninelives.tools.homes import Homes
from ninelives.tools.quota import Quotas, WorkspaceQuota

NOTE = ".{}.owner"
"""The name of the file beside a workspace that says who owns it."""
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would block the thread until somebody writes to it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@lru_cache(1024)
def workspace_name(owner: str) -> str:
    """The name of a workspace's folder: a readable part, and a hash that makes it unique."""
    slug = _NOT_PLAIN.sub("-", owner.lower())[:32].strip("-") or "owner"
    digest = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{slug}-{digest}"


def workspace_for(root: Path, name: str, owner: str | None = None) -> Path:
    """The workspace of that name, created if it is missing, closed to other users. Its owner is written down beside it:
    the name of the folder does not tell."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    workspace = root / workspace_name(name)
    workspace.mkdir(mode=0o700, exist_ok=True)
    note = root / NOTE.format(workspace.name)
    if not note.exists():
        note.write_text(name if owner is None else owner, "utf-8", "surrogatepass")
    return workspace


class Places(Struct, frozen=True, kw_only=True):
    """Gives each tool call its Place (D3)."""

    data: Path
    """The data directory."""
    by_owner: bool
    """One workspace for all sessions of an owner, not one for each."""
    apart: frozenset[Kept]
    """How a run is kept of which nothing may stay (Place.apart)."""
    timeout_s: float
    output_bytes: int
    homes: Homes | None
    """None: all workspaces are on this machine."""
    quotas: Quotas

    def of(self, state: RunState, call_id: str) -> Place:
        """The Place of a call of this run. Its folders are created."""
        accepted = state.facts.accepted
        owner, session = accepted.owner, accepted.resolved.session or ""
        name = owner if self.by_owner else f"{owner}/{session}"
        folder = workspace_for(self.data / "workspaces", name, owner)
        return Place(
            owner=owner,
            session=session,
            call_id=call_id,
            workspace=folder,
            state=workspace_for(self.data / "tools", owner),
            apart=state.facts.run if accepted.spec.kept in self.apart else "",
            memory_scope=accepted.spec.memory_scope,
            timeout_s=self.timeout_s,
            output_bytes=self.output_bytes,
            home=HERE if self.homes is None else self.homes.of(owner, name),
            quota=WorkspaceQuota(self.quotas, folder, owner),
        )


def owner_of(workspace: Path) -> str:
    """Who owns a workspace; empty if that is not known, because an older release made it. Blocks."""
    try:
        return workspace.with_name(NOTE.format(workspace.name)).read_text("utf-8", "surrogatepass")
    except OSError:
        return ""


def inside(workspace: Path, name: str) -> Path:
    """The real path of `name` in the workspace, whether it exists or not. `~` is the workspace, as for a shell."""
    if not name or "\0" in name or len(name) > 4096:
        raise ToolRefused("The path is empty, too long or has a NUL in it. Use a path such as notes/todo.txt.")
    if name == "~" or name.startswith("~/"):
        name = name[2:].lstrip("/") or "."
    top = top_of(workspace)
    try:
        path = Path(os.path.realpath(top / name))
    except UnicodeEncodeError as error:
        raise ToolRefused("The path is not valid text. Use a path such as notes/todo.txt.") from error
    if not path.is_relative_to(top):
        raise ToolRefused(
            f"{name!r} is outside the workspace, and only files in the workspace can be used here. "
            "Use a path relative to the workspace, such as notes/todo.txt."
        )
    return path


def top_of(workspace: Path) -> Path:
    """The real path of a workspace: data_dir may be relative, or lead through a link."""
    return Path(os.path.realpath(workspace))


def open_folder(top: Path, folder: Path, *, create: bool = False) -> int:
    """A descriptor of a folder below `top`, which is the real path of a workspace. `create`: missing folders are
    created."""
    fd = os.open(top, _FOLDER)
    for part in folder.relative_to(top).parts:
        try:
            deeper = _enter_made(part, fd) if create else os.open(part, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = deeper
    return fd


def open_file(workspace: Path, path: Path) -> BinaryIO:
    """Open the file at a path that `inside` returned. Raises ToolRefused if it is not a plain file."""
    top = top_of(workspace)
    if path == top:
        raise ToolRefused("That is the workspace itself. Use search_files with kind names to see what is in it.")
    folder = open_folder(top, path.parent)
    try:
        fd = os.open(path.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise ToolRefused(f"{path.name} is a folder. Use search_files with kind names to see what is in it.")
    raise ToolRefused(f"{path.name} is not a plain file (a pipe, socket or device) and cannot be read.")


def put_file(place: Place, path: Path, data: bytes, seen: os.stat_result | None = None) -> None:
    """Replace the file at a path that `inside` returned, in one step. Refused if it has changed since `seen`."""
    folder = open_folder(top_of(place.workspace), path.parent, create=True)
    try:
        draft = _free_draft(folder, place.call_id)
        with open(os.open(draft, _NEW, 0o644, dir_fd=folder), "wb") as file:
            try:
                file.write(data)
                file.flush()
                _keep_rights(folder, path.name, file.fileno(), seen)
                os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except (OSError, ToolRefused):
                os.unlink(draft, dir_fd=folder)
                raise
    finally:
        os.close(folder)


def _free_draft(folder: int, call_id: str) -> str:
    """The name of the draft. It is named after the call: a call that is repeated after a crash replaces the draft that
    the crash left. Where a command has put a folder there, another name is taken."""
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    draft = f".ninelives-{digest}.tmp"
    try:
        os.unlink(draft, dir_fd=folder)
    except FileNotFoundError:
        return draft
    except OSError:
        return f".ninelives-{digest}-{secrets.token_hex(8)}.tmp"
    return draft


def _keep_rights(folder: int, name: str, draft: int, seen: os.stat_result | None) -> None:
    """Keep owner and mode of the file. A new file gets the owner of its folder, because commands may run as another
    user than the server."""
    try:
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        before = None
    if before is not None and seen is not None and _mark(before) != _mark(seen):
        raise ToolRefused(f"{name} was changed by somebody else in the meantime. Read it again; nothing was changed.")
    owner = before or os.fstat(folder)
    if os.geteuid() == 0:
        os.fchown(draft, owner.st_uid, owner.st_gid)
    if before is not None and stat.S_ISREG(before.st_mode):
        os.fchmod(draft, before.st_mode & 0o777)


def _mark(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _enter_made(part: str, fd: int) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=fd)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another call created it meanwhile
            os.mkdir(part, 0o755, dir_fd=fd)
        made = os.open(part, _FOLDER, dir_fd=fd)
        if os.geteuid() == 0:  # commands may run as another user than the server: keep the owner of the folder above
            owner = os.fstat(fd)
            os.fchown(made, owner.st_uid, owner.st_gid)
        return made
