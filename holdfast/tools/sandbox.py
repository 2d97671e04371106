"""Which sandbox there is. Owns: the choice, the two ways without bubblewrap (Landlock, none), and the refusal.
Refuses to know: which tools ask for one.

| kind     | files                      | network | processes                         | chosen by          |
| bwrap    | the workspace only         | none    | own ids, counted, die with server | auto, if it works  |
| landlock | the workspace and programs | no TCP  | seen by each other                | landlock           |
| off      | all of the server's user   | all     | all of the server's user          | off                |
| refused  | no shell tool is offered   |         |                                   | auto, if not bwrap |"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.tools import sandbox_landlock
from holdfast.tools.base import ToolRefused
from holdfast.tools.reaper import CALL
from holdfast.tools.sandbox_base import (
    READABLE,
    READABLE_ETC,
    Bounds,
    Kind,
    Launch,
    Lent,
    Sandbox,
    Start,
    dropped_uid,
    real,
)
from holdfast.tools.sandbox_bwrap import find_bwrap

__all__ = ["Landlocked", "Off", "Refused", "Sandbox", "choose", "fenced"]

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SHARED_PROCESSES = 256
"""All calls together, where the count is that of the user."""


def choose(setting: str) -> Sandbox:
    """The sandbox for `tools.sandbox` = auto, landlock or off. Blocks for some 40 ms: it is really tried."""
    if setting == "off":
        return Off()
    if setting == "landlock":
        version = sandbox_landlock.abi()
        return Landlocked(version) if version else Refused("this kernel has no Landlock")
    if setting != "auto":
        raise ValueError(f"tools.sandbox cannot be {setting!r}")
    found = find_bwrap()
    return Refused(f"bubblewrap {found}") if isinstance(found, str) else found


class Off:
    """No sandbox: commands have all rights of the server. Set by hand only."""

    kind: Kind = "off"
    says = "no sandbox: commands have all rights of the server's user, and no bound but time and output"
    uid: int | None = None
    bounds: Bounds | None = None
    contained = False

    def __init__(self) -> None:
        # A process that changed its user is closed to others of that user, and its /proc is root's.
        self._open = os.stat("/proc/self/fd").st_uid == os.geteuid()

    def seen(self, lent: Lent) -> str:
        """Where this server holds it, so that it needs no name that a killed server would leave behind."""
        return lent.held if self._open else str(lent.path)

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """As it is; marked, so that what is left of it can be found."""
        if self._open:
            for lent in launch.lent:
                lent.forget_name()
        return Start(tuple(argv), {CALL: launch.call_id})


class Refused:
    """There is no sandbox, and none was given up by hand: shell tools are not offered."""

    kind: Kind = "refused"
    uid: int | None = None
    bounds: Bounds | None = None
    contained = False

    def __init__(self, why: str) -> None:
        self.says = (
            f"shell tools are off: {why}. Make bubblewrap work (it is looked for at start), or set tools.sandbox to "
            "landlock (partial: no network or process isolation) or off (none)"
        )

    def seen(self, lent: Lent) -> str:
        """Nowhere."""
        raise ToolRefused(f"{self.says[0].upper()}{self.says[1:]}.")

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """Never."""
        raise ToolRefused(f"{self.says[0].upper()}{self.says[1:]}.")


class Landlocked:
    """Landlock around shell tools. Partial; set by hand only."""

    kind: Kind = "landlock"
    contained = False

    def __init__(self, version: int) -> None:
        self.uid = dropped_uid()
        self.bounds: Bounds | None = Bounds(processes=_SHARED_PROCESSES if self.uid is not None else None)
        closed = "files outside of the workspace" + (" and TCP" if version >= 4 else "")
        self.says = f"Landlock {version}, partial: closes {closed}; not UDP, local sockets and the number of processes"

    def seen(self, lent: Lent) -> str:
        """Where it is."""
        return str(lent.path)

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """See Sandbox.wrap."""
        _check_reach(launch.workspace, self.uid)
        lent = [str(each.path) for each in launch.lent]
        plan = sandbox_landlock.Plan([*READABLE, *READABLE_ETC], [str(launch.workspace), *lent, *_DEVICES], self.uid)
        return Start(_closed_in(argv, plan), {CALL: launch.call_id})


def fenced(argv: Sequence[str], workspace: Path) -> tuple[str, ...]:
    """A helper of the file tools that can read its own Python and the workspace, and write nothing; as it is where
    there is no Landlock. It keeps the server's user."""
    if not sandbox_landlock.abi():
        return tuple(argv)
    python = {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *argv) if os.path.isabs(path)}
    plan = sandbox_landlock.Plan([*READABLE, *READABLE_ETC, *sorted(python), str(real(workspace))], ["/dev/null"])
    return _closed_in(argv, plan)


def _closed_in(argv: Sequence[str], plan: sandbox_landlock.Plan) -> tuple[str, ...]:
    words = json.dumps(plan._asdict())
    return (sys.executable, "-I", "-S", "-X", "utf8", sandbox_landlock.__file__, words, *argv)


def _check_reach(workspace: Path, uid: int | None) -> None:
    """Without a view of its own, a user who is not root reaches a workspace only through folders open to him."""
    if uid is None:
        return
    for folder in workspace.parents:
        found = os.stat(folder)
        if not (found.st_mode & 0o001 or (found.st_mode & 0o010 and found.st_gid == uid)):
            raise ToolRefused(
                f"The server is root and Landlock drops that, but user {uid} cannot pass {folder}. Run the server as "
                f"another user, set server.data_dir, or let it pass: chgrp {uid} {folder} && chmod g+x {folder}"
            )
