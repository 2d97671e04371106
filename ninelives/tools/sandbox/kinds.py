"""The sandbox of this server. Owns: the choice, the two kinds without bubblewrap (Landlock, none), and the refusal.
Refuses to know: which tools need one.

| kind     | files                      | network | processes                         | chosen by          |
| bwrap    | the workspace only         | none    | own ids, counted, die with server | auto, if it works  |
| landlock | the workspace and programs | no TCP  | seen by each other                | landlock           |
| docker   | the workspace only         | none    | own ids, counted, die with server | docker             |
| off      | all of the server's user   | all     | all of the server's user          | off                |
| refused  | no shell tool is offered   |         |                                   | auto, if not bwrap |"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ninelives.tools.base import ToolRefused
from ninelives.tools.sandbox import landlock
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
    Sandbox,
    Start,
    dropped_uid,
)
from ninelives.tools.sandbox.bwrap import find_bwrap
from ninelives.tools.sandbox.cgroup import find_groups
from ninelives.tools.sandbox.docker import DockerOptions, find_docker
from ninelives.tools.sandbox.reaper import CALL
from ninelives.tools.sandbox.seccomp import filter_program

__all__ = ["Landlocked", "NoSandbox", "Sandbox", "SandboxOff", "choose"]

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SHARED_PROCESSES = 256
"""For all calls together, because the kernel counts the processes of the user."""


def choose(setting: str, docker: DockerOptions | None = None) -> Sandbox:
    """The sandbox for `tools.sandbox` = auto, landlock, docker or off. Blocks for about 40 ms, because it runs
    bubblewrap, or for longer, because it runs docker."""
    if setting == "docker" and docker is not None:
        container = find_docker(docker)
        return NoSandbox(f"tools.sandbox is docker, but {container}") if isinstance(container, str) else container
    if setting not in ("auto", "landlock", "off"):
        raise ValueError(f"tools.sandbox cannot be {setting!r}")
    tempfile.gettempdir()  # looks for it once. Later, without a free descriptor, none would seem to exist
    made = find_groups()
    groups = None if isinstance(made, str) else made
    if setting == "off":
        return SandboxOff(groups)
    if setting == "landlock":
        version = landlock.abi()
        return Landlocked(version, groups) if version else NoSandbox("this kernel has no Landlock")
    found = find_bwrap(groups)
    return NoSandbox(f"bubblewrap {found}") if isinstance(found, str) else found


class SandboxOff(HostSandbox):
    """No sandbox: commands have all rights of the server. Only by explicit setting."""

    kind: Kind = "off"
    says = "no sandbox: commands have all rights of the server's user, and no bound but time and output"
    uid: int | None = None
    bounds: Bounds | None = None
    contained = False

    def __init__(self, groups: CallGroups | None = None) -> None:
        self.groups = groups
        self.holds = Holds(network=True, call_memory_bytes=Bounds().call_bytes if groups else None)
        # After a change of user, /proc/self belongs to root: other processes of the user cannot open its descriptors.
        self._open = os.stat("/proc/self/fd").st_uid == os.geteuid()

    def path_inside(self, file: CallFile) -> str:
        """See Sandbox.path_inside. Through the server's descriptor if possible: a killed server then leaves no file."""
        return file.descriptor_path if self._open else str(file.path)

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """See Sandbox.wrap. The environment marks the process for the reaper."""
        if self._open:
            for file in launch.files:
                file.forget_name()
        return Start(tuple(argv), {CALL: launch.call_id})


class NoSandbox(HostSandbox):
    """No sandbox works, and none was turned off by setting: shell tools are not offered."""

    kind: Kind = "refused"
    uid: int | None = None
    bounds: Bounds | None = None
    groups: CallGroups | None = None
    holds = Holds(network=False)
    contained = False

    def __init__(self, why: str) -> None:
        self.says = (
            f"shell tools are off: {why}. Make bubblewrap work (it is looked for at start; in a container see "
            "docs/operations.md, 'Tools in a container'), or set tools.sandbox to "
            "docker (containers), landlock (partial: no network or process isolation) or off (none)"
        )

    def path_inside(self, file: CallFile) -> str:
        """Always refused."""
        raise ToolRefused(f"{self.says[0].upper()}{self.says[1:]}.")

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """Always refused."""
        raise ToolRefused(f"{self.says[0].upper()}{self.says[1:]}.")


class Landlocked(HostSandbox):
    """The sandbox made by Landlock. Partial, and only by explicit setting."""

    kind: Kind = "landlock"
    contained = False

    def __init__(self, version: int, groups: CallGroups | None = None) -> None:
        self.uid = dropped_uid()
        self.bounds: Bounds | None = Bounds(processes=_SHARED_PROCESSES if self.uid is not None else None)
        self.groups = groups
        self._filter = (filter_program() or b"").hex()
        self.holds = Holds(
            network=True,
            memory_bytes=self.bounds.memory_bytes,
            call_memory_bytes=self.bounds.call_bytes if groups else None,
            processes=self.bounds.call_processes if groups else self.bounds.processes,
            seccomp=bool(self._filter),
            oom_floor=True,
        )
        closed = "files outside of the workspace" + (" and TCP" if version >= 4 else "")
        self.says = f"Landlock {version}, partial: closes {closed}; not UDP, local sockets and the number of processes"

    def path_inside(self, file: CallFile) -> str:
        """See Sandbox.path_inside."""
        return str(file.path)

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """See Sandbox.wrap."""
        _check_reach(launch.workspace, self.uid)
        files = [str(each.path) for each in launch.files]
        write = [str(launch.workspace), *files, *_DEVICES]
        plan = landlock.Plan([*READABLE, *READABLE_ETC], write, self.uid, self._filter)
        return Start(_closed_in(argv, plan), {CALL: launch.call_id})


def _closed_in(argv: Sequence[str], plan: landlock.Plan) -> tuple[str, ...]:
    words = json.dumps(plan._asdict())
    return (sys.executable, "-I", "-S", "-X", "utf8", landlock.__file__, words, *argv)


def _check_reach(workspace: Path, uid: int | None) -> None:
    """Without a mount of its own, an unprivileged user needs permission to pass every folder above the workspace."""
    if uid is None:
        return
    for folder in workspace.parents:
        found = os.stat(folder)
        if not (found.st_mode & 0o001 or (found.st_mode & 0o010 and found.st_gid == uid)):
            raise ToolRefused(
                f"The server is root and Landlock drops that, but user {uid} cannot pass {folder}. Run the server as "
                f"another user, set server.data_dir, or let it pass: chgrp {uid} {folder} && chmod g+x {folder}"
            )
