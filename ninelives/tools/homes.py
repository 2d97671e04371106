"""The machine that a workspace is on. Owns: the id of the folder in which this server keeps workspaces (its home), the
rule that a workspace is used at one home only, and the text of the refusal elsewhere. Refuses to know: where the home
of each workspace is recorded (the caller passes a function), and what tools do.

Theory of operation. Files are on one disk, but a run may continue on any machine. A machine without the run's files
must not begin a second set. So the first tool that uses a workspace assigns it to the home of its machine, for good. A
call on a machine with another home is refused. Servers that share a volume share its `.home` file, so they are one
home."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ninelives.tools.base import Place, Use

AssignHome = Callable[[str, str, str], Awaitable[str]]
"""(owner, name of the workspace, home) -> its home: the given one if it had none."""

NOWHERE = Path("/dev/null/this-workspace-is-on-another-machine")
"""A path at which nothing can be created."""
MOST_KNOWN = 10_000
_AWAY = (
    "{what} on another machine (home {home}), and this call runs on one that does not have them: it was not made. "
    "Do not try again now. Tell the user that the work can go on where the files are, or go on without them."
)
_THINGS = {"workspace": "The files of this workspace are", "memory": "The notes of this user are"}


def home_of(root: Path) -> str:
    """The id of a folder of workspaces, created at first use. Every server that has the folder gets the same."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = root / ".home"
    with suppress(FileNotFoundError):
        return path.read_text("ascii").strip()
    draft = root / f".home.{secrets.token_hex(8)}"
    draft.write_text(secrets.token_hex(8) + "\n", "ascii")
    try:
        with suppress(FileExistsError):  # another server on this volume was faster: use its id
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_text("ascii").strip()


class Homes:
    """The homes of all workspaces, with a cache."""

    def __init__(self, home: str, assign: AssignHome) -> None:
        self._home = home
        self._assign = assign
        self._known: dict[tuple[str, str], str] = {}

    def of(self, owner: str, name: str) -> WorkspaceHome:
        """The home of a workspace of an owner."""
        return WorkspaceHome(self, owner, name)

    async def elsewhere(self, owner: str, name: str) -> str | None:
        """The home of a workspace, or None if it is this one. A home never changes, so the answer is cached."""
        home = self._known.get((owner, name))
        if home is None:
            home = await self._assign(owner, name, self._home)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[owner, name] = home
        return home if home != self._home else None


class WorkspaceHome:
    """The Home of one workspace. The notes of an owner are shared by all of the owner's workspaces: their home is that
    of the workspace with the owner's name."""

    def __init__(self, homes: Homes, owner: str, name: str) -> None:
        self._homes = homes
        self._owner = owner
        self._name = name

    async def refusal(self, use: Use) -> str:
        """See Home.refusal."""
        if not use:
            return ""
        home = await self._homes.elsewhere(self._owner, self._name if use == "workspace" else self._owner)
        return _AWAY.format(what=_THINGS[use], home=home) if home is not None else ""


async def place_for_function(place: Place) -> Place:
    """The place for a function that may or may not use files. If they are on another machine, its paths lead nowhere,
    so the function fails only when it uses them."""
    if await place.home.refusal("workspace"):
        return replace(place, workspace=NOWHERE, state=NOWHERE)
    return place
