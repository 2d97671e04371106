"""Control groups. Owns: whether this server may make cgroups (version 2), and one per call that bounds its memory and
processes. Refuses to know: what runs in them.

Theory of operation. Limits of a process bound its address space, and not what all processes of a call hold together. A
cgroup bounds the sum: memory that is mapped, files in /tmp, socket buffers. A call that takes more is killed as a
whole, and nothing else is. It needs a subtree that was delegated to the server: `Delegate=` in systemd, or a machine
without systemd on which the server is root. A cgroup with processes cannot give controllers to children, so the server
moves itself into a leaf first. It does that only if it is alone there.

A launcher enters its cgroup before it does anything else. The cgroup goes when the call ends, with all that is left in
it. A server that was killed leaves its cgroups. The next start in the same subtree removes them."""

from __future__ import annotations

import errno
import itertools
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from ninelives.tools.sandbox.base import Bounds
from ninelives.tools.sandbox.reaper import identify

_LEAF = "ninelives-server"
_CALL = re.compile(r"ninelives-call-(\d+)-(\d+)-\d+\Z")
_CONTROLLERS = ("memory", "pids")
_SPARE = 16
"""Processes of the launcher itself: bubblewrap, shells, setpriv."""
_GONE_S = 2.0
_POLL_S = 0.01


class Cgroup:
    """The cgroup of one call."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self.path = path
        path.mkdir()
        try:
            (path / "memory.max").write_text(str(bounds.call_bytes))
            (path / "memory.oom.group").write_text("1")
            (path / "pids.max").write_text(str((bounds.processes or bounds.call_processes) + _SPARE))
            if (path / "memory.swap.max").exists():  # not where swap is not accounted
                (path / "memory.swap.max").write_text("0")
        except OSError:
            path.rmdir()
            raise

    def remove(self) -> bool:
        """Kill what is in it and remove it. True if it is gone. Blocks for two seconds at most."""
        return _remove(self.path)


class Cgroups:
    """Makes the cgroups of calls below one that belongs to this server."""

    def __init__(self, base: Path) -> None:
        self._base = base
        own = identify(os.getpid())
        self._prefix = f"ninelives-call-{os.getpid()}-{own.started if own else 0}"
        self._numbers = itertools.count()

    def make(self, bounds: Bounds) -> Cgroup:
        """A cgroup for a call. Raises OSError."""
        return Cgroup(self._base / f"{self._prefix}-{next(self._numbers)}", bounds)


def find_groups(proc: Path = Path("/proc")) -> Cgroups | str:
    """Prepare the subtree of this server. If that is not possible: the reason, which follows "no cgroup per call:"."""
    own = _own(proc) if proc.is_dir() else None
    if own is None:
        return "this machine has no cgroup version 2"
    if own.name == _LEAF:
        own = own.parent
    have = (own / "cgroup.controllers").read_text().split()
    if missing := [name for name in _CONTROLLERS if name not in have]:
        return f"the controllers {' and '.join(missing)} are not delegated (systemd: Delegate=memory pids)"
    if not _delegated(own):
        return "no subtree is delegated to the server (systemd: Delegate=memory pids)"
    try:
        _enable(own)
        _sweep(own)
        Cgroups(own).make(Bounds()).remove()
    except OSError as error:
        return f"{error.strerror} ({own})"
    return Cgroups(own)


def _own(proc: Path) -> Path | None:
    """The folder of the cgroup that this process is in."""
    lines = (proc / "self/cgroup").read_text().splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    mounts = [line.split() for line in (proc / "self/mountinfo").read_text().splitlines()]
    top = next((words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2"), None)
    if path is None or top is None:
        return None
    found = Path(top, path.lstrip("/"))
    return found if (found / "cgroup.controllers").exists() else None


def _delegated(own: Path) -> bool:
    """Whether this server may change the cgroup. systemd marks what it delegates. Other users need permission only."""
    if not all(os.access(own / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control")):
        return False
    if os.geteuid() != 0 or not Path("/run/systemd/system").is_dir():
        return True
    marks = ("trusted.delegate", "user.delegate")
    return any(name in os.listxattr(own) and os.getxattr(own, name) == b"1" for name in marks)


def _enable(own: Path) -> None:
    """Give the controllers to children. All but the root of the machine must then be without processes."""
    control = own / "cgroup.subtree_control"
    if all(name in control.read_text().split() for name in _CONTROLLERS):
        return
    if (own / "cgroup.type").exists():
        pids = {int(pid) for pid in (own / "cgroup.procs").read_text().split()}
        if pids - {os.getpid()}:
            raise OSError(errno.EBUSY, "other processes share the server's cgroup: run it as a service of its own")
        (own / _LEAF).mkdir(exist_ok=True)
        if pids:
            (own / _LEAF / "cgroup.procs").write_text(str(os.getpid()))
    control.write_text(" ".join(f"+{name}" for name in _CONTROLLERS))


def _sweep(own: Path) -> None:
    """Remove the cgroups of servers that are gone."""
    for path in own.iterdir():
        if found := _CALL.match(path.name):
            server = identify(int(found[1]))
            if server is None or server.started != int(found[2]):
                _remove(path)


def _remove(path: Path) -> bool:
    deadline = time.monotonic() + _GONE_S
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # busy: processes are left, or not reaped yet
            with suppress(OSError):  # before Linux 5.14 there is no such file
                (path / "cgroup.kill").write_text("1")
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True
