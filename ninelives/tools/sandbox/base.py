"""What a sandbox is. Owns: the Sandbox Protocol, the program to launch in one (Launch), how it is spawned (Start), the
files made for a call, and the bounds that a launcher sets on itself. Refuses to know: which sandboxes there are, and
what runs in them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

Kind = Literal["bwrap", "landlock", "docker", "off", "refused"]

SHELL = "/bin/sh"

UID = 60_642
"""The user that commands run as if the server is root. systemd keeps this range free, so the user owns nothing but
workspaces, and nobody shares its limit of processes."""

READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Programs and libraries."""
PYTHONS = (Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))
"""Below /usr, which every sandbox shows."""
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
"""What programs need from /etc. It reveals nothing about the users and secrets of this machine."""


class Bounds(Struct, frozen=True):
    """What one call may use. `processes` is None if they cannot be bounded."""

    memory_bytes: int = 2 << 30
    """Address space of each process."""
    processes: int | None = 64
    """Threads count too."""
    file_bytes: int = 1 << 30
    files: int = 1024
    scratch_bytes: int = 256 << 20
    """Size of /tmp, which is memory."""
    call_bytes: int = 2 << 30
    """Memory of all processes of a call together, if a cgroup bounds it."""
    call_processes: int = 256
    """Processes of a call, if only a cgroup bounds them."""


class CallFile:
    """A file made for one call. It is held open here, so whatever the call does to its name does not matter."""

    def __init__(self, name: str, data: bytes = b"", uid: int | None = None, folder: Path | None = None) -> None:
        self.name = name
        self._fd, path = tempfile.mkstemp(prefix="ninelives-", dir=folder)
        self.path = Path(path)
        try:
            os.write(self._fd, data)
            if uid is not None:
                os.fchown(self._fd, uid, uid)
        except OSError:
            self.close()
            raise

    @property
    def descriptor_path(self) -> str:
        """A path that works while this server holds the file, whatever happens to its name."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self, most: int) -> bytes:
        """Its content, up to one byte more than `most`."""
        return os.pread(self._fd, most + 1, 0)

    def forget_name(self) -> None:
        """Remove its name, because nobody opens it by name any more. Nothing stays if the server is killed now."""
        with suppress(FileNotFoundError):  # removed already, maybe by the call itself if there is no sandbox
            self.path.unlink()

    def close(self) -> None:
        """Close and remove it. Nothing happens the second time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.forget_name()


class Launch(Struct, frozen=True):
    """A program to run for one call."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    workspace: Path
    """Its real path."""
    folder: Path
    """The folder in the workspace in which the program begins."""
    call_id: str
    cpu_s: int
    """CPU time of each process."""
    files: tuple[CallFile, ...] = ()
    call_bytes: int | None = None
    """Memory of the whole call, if it is not the bound of the sandbox."""
    file_bytes: int | None = None
    """The largest file that it may write, if that is less than the bound of the sandbox; 0: none, but it can delete."""


class Start(Struct):
    """How to spawn a launcher. It inherits the descriptors; close() closes them here after that."""

    argv: tuple[str, ...]
    environ: dict[str, str]
    fds: tuple[int, ...] = ()
    sweep: Callable[[], None] | None = None
    """Ends what the call left in a container. Blocks. Called once, after the end of the spawned process."""

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()


class CallGroup(Protocol):
    """The cgroup of one call. See cgroup.py."""

    path: Path

    def remove(self) -> bool:
        """Kill what is in it and remove it. True if it is gone. Blocks."""
        ...


class CallGroups(Protocol):
    """Makes a cgroup for each call."""

    def make(self, bounds: Bounds) -> CallGroup:
        """A cgroup for a call. Raises OSError."""
        ...


class Holds(Struct, frozen=True, kw_only=True):
    """What a sandbox bounds, for /v1/capabilities and for `doctor`. None means that there is no bound."""

    network: bool
    """Whether commands reach a network."""
    memory_bytes: int | None = None
    """Address space of one process."""
    call_memory_bytes: int | None = None
    """Memory of all processes of a call together."""
    processes: int | None = None
    seccomp: bool = False
    """Whether a filter refuses system calls that get around the bounds."""
    oom_floor: bool = False
    """Whether the kernel, short of memory, kills commands first, and commands cannot change that."""
    nothing_survives: bool = False
    """Whether no process can outlive its call or the server."""


class Sandbox(Protocol):
    """A way to confine what a model runs. Stateless: all calls share one."""

    kind: Kind
    says: str
    """One line for the operator: what it is and what it does not do; for "refused", what to install or to set."""
    uid: int | None
    """The user that commands run as, if it is not the server's own. The workspace must belong to that user."""
    bounds: Bounds | None
    """The bounds that the launcher sets on itself."""
    holds: Holds
    groups: CallGroups | None
    """Makes a cgroup for each call, if this server may."""
    contained: bool
    """Whether no process can outlive the spawned one or the server. If not, the launcher ends its own group when the
    server dies, and the reaper looks for processes that left the group."""

    gate_outside: bool
    """Whether the launcher waits for permission outside of the sandbox, and enters it afterwards."""

    def ready(self, workspace: Path) -> None:
        """Get ready for calls in a workspace. Blocks: call it in a thread. Raises ToolRefused."""
        ...

    def call_folder(self, workspace: Path) -> Path | None:
        """Where the files of a call must be made. None: anywhere."""
        ...

    def path_inside(self, file: CallFile) -> str:
        """The path at which a program inside finds a file of the call."""
        ...

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """How to spawn `argv`, the launcher of `launch`. Raises ToolRefused if the workspace cannot be used."""
        ...

    def close(self) -> None:
        """Release what is held for all calls, after the last one. Blocks."""
        ...


class HostSandbox:
    """What all sandboxes share whose commands run on this system."""

    gate_outside = False

    def ready(self, workspace: Path) -> None:
        """See Sandbox.ready: nothing is needed."""

    def call_folder(self, workspace: Path) -> Path | None:
        """See Sandbox.call_folder."""
        return None

    def close(self) -> None:
        """See Sandbox.close: nothing is held."""


def real_path(workspace: Path) -> Path:
    """The real path of a workspace, under which a program inside finds it too."""
    return Path(os.path.realpath(workspace))


def hand_over(workspace: Path, uid: int | None) -> None:
    """Give a workspace and its files to the user that commands run as. Blocks; done once per workspace.

    The top folder changes last, so the next call repeats what a crash interrupted. A file with a second link is left
    as it is: the other link may be outside."""
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
    """The user that commands should run as. None if the server is not root: then it is the server's own user."""
    return UID if os.geteuid() == 0 else None


def existing_paths(paths: Iterable[str]) -> list[str]:
    """Those that exist on this machine."""
    return [path for path in paths if os.path.lexists(path)]
