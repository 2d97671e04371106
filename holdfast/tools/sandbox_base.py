"""What a sandbox is. Owns: the Sandbox Protocol, what is to be launched in one (Launch), how that is spawned (Start),
the files that are lent to a call, and the bounds that a launcher sets on itself. Refuses to know: which sandboxes
there are, and what is run in them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

Kind = Literal["bwrap", "landlock", "off", "refused"]

UID = 60_642
"""Whom commands run as where the server is root. No system or person has this number (it is in a range that systemd
keeps free), so that it owns nothing but workspaces and its limit of processes is shared with nobody."""

READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Programs and libraries."""
READABLE_ETC = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/mime.types",
)
"""What programs look for in /etc and what tells nothing about this machine's users and secrets."""


class Bounds(Struct, frozen=True):
    """What one call may use. None for processes: there is no way to bound them here."""

    memory_bytes: int = 2 << 30
    """Address space of each process."""
    processes: int | None = 64
    """Threads count too."""
    file_bytes: int = 1 << 30
    files: int = 1024
    scratch_bytes: int = 256 << 20
    """Size of /tmp, which is memory."""


class Lent:
    """A file that one call may use. It is held open here, so nothing that the call does to its name matters."""

    def __init__(self, name: str, data: bytes = b"", uid: int | None = None) -> None:
        self.name = name
        self._fd, path = tempfile.mkstemp(prefix="holdfast-")
        self.path = Path(path)
        try:
            os.write(self._fd, data)
            if uid is not None:
                os.fchown(self._fd, uid, uid)
        except OSError:
            self.close()
            raise

    @property
    def held(self) -> str:
        """A path that leads to it as long as this server holds it, whatever becomes of its name."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self, most: int) -> bytes:
        """What is in it, up to one byte more than `most`."""
        return os.pread(self._fd, most + 1, 0)

    def forget_name(self) -> None:
        """Nobody will look for it by its name any more; so nothing stays if the server is killed now."""
        with suppress(FileNotFoundError):  # forgotten already, or removed by the call where nothing fences it
            self.path.unlink()

    def close(self) -> None:
        """The call is over. Nothing happens the second time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.forget_name()


class Launch(Struct, frozen=True):
    """A program to be run for one call."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    workspace: Path
    """Its real path."""
    folder: Path
    """Where the program begins, in the workspace."""
    call_id: str
    cpu_s: int
    """CPU time of each process."""
    lent: tuple[Lent, ...] = ()


class Start(Struct):
    """How a launcher is spawned. The descriptors are handed down to it and closed here once it is there."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    fds: tuple[int, ...] = ()

    def close(self) -> None:
        """Close what was handed down."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


class Sandbox(Protocol):
    """A way to fence what a model runs. Stateless: one is shared by all calls."""

    kind: Kind
    says: str
    """One line for a person: what it is and what it does not do; for "refused", what to install or to set."""
    uid: int | None
    """Whom commands run as, where that is not the server's own user: the workspace must belong to him."""
    bounds: Bounds | None
    """What the launcher is to set on itself."""
    contained: bool
    """Whether no process can outlive the one that is spawned, nor the server. If not, the launcher must end its group
    by itself when the server dies, and what left the group must be looked for."""

    def seen(self, lent: Lent) -> str:
        """Where a program inside finds a lent file."""
        ...

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """How to spawn `argv`, the launcher of `launch`; ToolRefused where the workspace cannot be used."""
        ...


def real(workspace: Path) -> Path:
    """The real path of a workspace: the one under which a program inside finds it."""
    return Path(os.path.realpath(workspace))


def hand_over(workspace: Path, uid: int | None) -> None:
    """Give a workspace to the user that commands run as, with what is in it. Blocks; done once per workspace.

    The top goes last, so that a crash in between is made good by the next call. A file with a second name is left
    as it is: the other name may be outside."""
    if uid is None or os.lstat(workspace).st_uid == uid:
        return
    for _, folders, files, top in os.fwalk(workspace, follow_symlinks=False):
        for name in (*folders, *files):
            _hand_over(name, top, uid)
    os.chown(workspace, uid, uid, follow_symlinks=False)


def _hand_over(name: str, top: int, uid: int) -> None:
    with suppress(FileNotFoundError):  # gone meanwhile
        found = os.stat(name, dir_fd=top, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
            os.chown(name, uid, uid, dir_fd=top, follow_symlinks=False)


def dropped_uid() -> int | None:
    """Whom commands are to run as: None is the server's own user, where that is not root."""
    return UID if os.geteuid() == 0 else None


def existing(paths: Iterable[str]) -> list[str]:
    """Those that are there on this machine."""
    return [path for path in paths if os.path.lexists(path)]
