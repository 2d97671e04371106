"""Bubblewrap. Owns: the options that make the sandbox, and the check that they work on this machine. Refuses to know:
what runs inside.

Theory of operation. The sandbox has its own root: /usr and a few files of /etc to read, and a fresh /proc, /dev and
/tmp. The workspace is mounted under its own path, so file tools and commands use the same paths. It is the only thing
that can be written and that stays. There is no network, no environment of the launcher, and no capability; process ids
and user namespace are its own. A filter refuses system calls that get around this (seccomp.py). /proc is read-only, so
no process inside can lower its OOM score. Bubblewrap dies with the server, and everything inside dies with it. The
launcher is the first process inside (--as-pid-1). When it ends, the kernel has killed all others before bubblewrap
returns, so nothing is left and no init has to reap it.

A server that is not root needs one bubblewrap. Root needs two, because what runs inside must not be root outside: the
limit of processes does not apply to root, and root reads every visible file. So an unprivileged user starts bubblewrap,
but that user cannot reach a workspace below folders that are closed to others. An outer bubblewrap, as root, therefore
mounts the workspace at a place that can be reached, and setpriv drops the user between the two. The outer one has its
own process ids too, with a shell of root as the first. The kernel does not kill a process at the death of a parent
that is another user, but it kills all when the first process of their namespace dies."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ninelives.tools.base import ToolRefused
from ninelives.tools.sandbox.base import (
    READABLE,
    READABLE_ETC,
    Bounds,
    CallFile,
    CallGroups,
    Holds,
    HostSandbox,
    Kind,
    Launch,
    Start,
    dropped_uid,
    existing_paths,
    hand_over,
    real_path,
)
from ninelives.tools.sandbox.seccomp import filter_program

INSIDE_UID = 1000
CALL_FILES = "/run/ninelives"
_NUMBER = re.compile(r"\d+")
_WINDOW = "/tmp"
"""Where the outer one mounts the workspace and the files of the call, in an empty tmpfs."""
_SHM_BYTES = 64 << 20
_PROBE_S = 10.0
_OWN = ("/proc", "/dev", "/run", "/etc", *READABLE)
"""Paths at which no workspace can be, because the sandbox mounts its own files there."""
_OPTIONAL = ("--disable-userns", "--size", "--perms", "--seccomp")
"""Options that can be left out, for versions that do not have them."""


class Bwrap(HostSandbox):
    """The sandbox made by bubblewrap."""

    kind: Kind = "bwrap"
    contained = True

    def __init__(self, program: str, options: frozenset[str], version: str, groups: CallGroups | None = None) -> None:
        self.uid = dropped_uid()
        # Before Linux 5.14 the kernel counts the user's processes on the whole machine: a small bound would forbid all.
        self.bounds: Bounds | None = Bounds(processes=64 if _kernel() >= (5, 14) else 1024)
        self.groups = groups
        self._filter = filter_program() if "--seccomp" in options else None
        self.holds = Holds(
            network=False,
            memory_bytes=self.bounds.memory_bytes,
            call_memory_bytes=self.bounds.call_bytes if groups else None,
            processes=self.bounds.processes,
            seccomp=self._filter is not None,
            oom_floor=True,
            nothing_survives=True,
        )
        self.says = f"bubblewrap {version}: no network, own process ids, only the workspace can be written"
        if missing := [option for option in _OPTIONAL if option not in options]:
            self.says += f" (without {', '.join(missing)})"
        self._program = program
        self._setpriv = shutil.which("setpriv") or "setpriv"
        self._options = options

    def path_inside(self, file: CallFile) -> str:
        """See Sandbox.path_inside. The files of a call have a folder of their own."""
        return f"{CALL_FILES}/{file.name}"

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """See Sandbox.wrap."""
        home = str(launch.workspace)
        if home == "/" or any(Path(home).is_relative_to(taken) for taken in _OWN):
            raise ToolRefused(f"The workspace {home} is where the sandbox has its own files. Set server.data_dir.")
        users = _pipe(f"agent:x:{INSIDE_UID}:{INSIDE_UID}::{home}:/bin/sh\n".encode())
        groups = _pipe(f"agent:x:{INSIDE_UID}:\n".encode())
        sources = {home: home} | {str(file.path): self.path_inside(file) for file in launch.files}
        outer: list[str] = []
        if self.uid is not None:
            window = {source: f"{_WINDOW}/{number}" for number, source in enumerate(sources)}
            outer = self._window(window, self.uid)
            sources = {window[source]: inside for source, inside in sources.items()}
        inner = [
            *self._namespaces(),
            *self._system(),
            *("--ro-bind-data", str(users), "/etc/passwd", "--ro-bind-data", str(groups), "/etc/group"),
            *(word for source, inside in sources.items() for word in ("--bind", source, inside)),
            *("--remount-ro", "/", "--chdir", "/"),
        ]
        fds = [users, groups]
        if self._filter is not None:
            fds.append(_pipe(self._filter))
            inner += ["--seccomp", str(fds[-1])]
        return Start((*outer, self._program, *inner, "--", *argv), {}, tuple(fds))

    def _window(self, sources: dict[str, str], uid: int) -> list[str]:
        binds = [word for source, shown in sources.items() for word in ("--bind", source, shown)]
        return [
            *(self._program, "--unshare-pid", "--as-pid-1", "--die-with-parent", "--dev-bind", "/", "/"),
            *(*self._perms("0755"), "--tmpfs", _WINDOW, *binds, "--"),
            *("/bin/sh", "-c", '"$@"; exit $?', "sh"),
            *(self._setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups"),
            *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
        ]

    def _namespaces(self) -> list[str]:
        disable = ["--disable-userns"] if "--disable-userns" in self._options else []
        return [
            *("--unshare-all", "--unshare-user", *disable, "--as-pid-1", "--die-with-parent", "--new-session"),
            *("--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--hostname", "ninelives"),
        ]

    def _system(self) -> list[str]:
        """The options for everything but the workspace."""
        words: list[str] = []
        for path in existing_paths(READABLE):
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            else:
                words += ["--ro-bind", path, path]
        for path in existing_paths(READABLE_ETC):
            words += ["--ro-bind-try", os.path.realpath(path), path]
        scratch = self.bounds.scratch_bytes if self.bounds else 0
        words += ["--proc", "/proc", "--remount-ro", "/proc"]
        words += ["--dev", "/dev", *self._size(_SHM_BYTES), "--tmpfs", "/dev/shm"]
        return [*words, "--remount-ro", "/dev", *self._perms("1777"), *self._size(scratch), "--tmpfs", "/tmp"]

    def _size(self, size: int) -> list[str]:
        return ["--size", str(size)] if "--size" in self._options else []

    def _perms(self, mode: str) -> list[str]:
        return ["--perms", mode] if "--perms" in self._options else []


def find_bwrap(groups: CallGroups | None = None) -> Bwrap | str:
    """Run bubblewrap to see whether it works. If not: the reason, as a text that follows "bubblewrap". Blocks."""
    program = shutil.which("bwrap")
    if program is None:
        return "is not installed (on Debian: apt-get install bubblewrap)"
    if dropped_uid() is not None and shutil.which("setpriv") is None:
        return "cannot be used by root without setpriv (install util-linux, or run the server as another user)"
    try:
        said = subprocess.run([program, "--help"], capture_output=True, text=True, env={}, timeout=_PROBE_S)
        version = subprocess.run([program, "--version"], capture_output=True, text=True, env={}, timeout=_PROBE_S)
        named = version.stdout.strip().removeprefix("bubblewrap ")
        options = frozenset(option for option in _OPTIONAL if option in said.stdout + said.stderr)
        found = Bwrap(program, options, named, groups)
        trouble = _trouble(found)
        # Some containers have a read-only /proc/sys, and some kernels no filters.
        for left_out in ({"--disable-userns"}, {"--seccomp"}, {"--disable-userns", "--seccomp"}):
            if trouble and left_out <= options:
                found = Bwrap(program, options - left_out, named, groups)
                trouble = _trouble(found)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not work here: {error}"
    return f"does not work here: {trouble}" if trouble else found


def _trouble(sandbox: Bwrap) -> str:
    """Run two programs in the sandbox. The error, or an empty text if they work."""
    with tempfile.TemporaryDirectory(prefix="ninelives-probe-") as top:
        # Real workspaces are below folders that are closed to others too.
        workspace = real_path(Path(top)) / "workspace"
        workspace.mkdir(mode=0o700)
        hand_over(workspace, sandbox.uid)
        argv = ("/bin/sh", "-c", f"cd '{workspace}' && true | true && : >probe")
        start = sandbox.wrap(argv, Launch(argv, {}, workspace, workspace, "probe", 5))
        try:
            ran = subprocess.run(
                start.argv,
                env=start.environ,
                pass_fds=start.fds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd="/",
                timeout=_PROBE_S,
            )
        finally:
            start.close()
        if ran.returncode == 0 and (workspace / "probe").exists():
            return ""
        said = ran.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return said[:300] or f"it ended with code {ran.returncode}"


def _pipe(data: bytes) -> int:
    """A descriptor from which a few bytes are read."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in _NUMBER.findall(platform.release())[:2])
