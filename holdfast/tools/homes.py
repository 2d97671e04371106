"""Which machine a workspace is on. Owns: the id of the place where this server keeps workspaces (its home), the rule
that a workspace is used at one home only, and the words of the refusal elsewhere. Refuses to know: where it is written
down which workspace has which home (a function comes along), and what tools do.

Theory of operation. Files are on a disk and a run may go on anywhere: a run that is taken over on a machine without its
files must not begin to write others there. So the first tool that uses a workspace settles it at the home of its
machine, for ever, and where the answer is another home the call is refused: never two halves of one workspace. A volume
that several servers share has one `.home` file, and is therefore one home."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from holdfast.tools.base import Place, Use

Settle = Callable[[str, str, str], Awaitable[str]]
"""(owner, name of the workspace, home) -> the home that it has: the given one where it had none."""

NOWHERE = Path("/dev/null/this-workspace-is-on-another-machine")
"""A path that nobody can make anything at."""
MOST_KNOWN = 10_000
_AWAY = (
    "{what} on another machine (home {home}), and this call runs on one that does not have them: it was not made. "
    "Do not try again now. Tell the user that the work can go on where the files are, or go on without them."
)
_THINGS = {"workspace": "The files of this workspace are", "memory": "The notes of this user are"}


def home_of(root: Path) -> str:
    """The id of a folder of workspaces, made at first use; the same for everybody who has the folder."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = root / ".home"
    with suppress(FileNotFoundError):
        return path.read_text("ascii").strip()
    draft = root / f".home.{secrets.token_hex(8)}"
    draft.write_text(secrets.token_hex(8) + "\n", "ascii")
    try:
        with suppress(FileExistsError):  # another server on this volume was faster: its id counts
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_text("ascii").strip()


class Homes:
    """The homes of all workspaces, as one server knows them."""

    def __init__(self, home: str, settle: Settle) -> None:
        self._home = home
        self._settle = settle
        self._known: dict[tuple[str, str], str] = {}

    def of(self, owner: str, name: str) -> Lodging:
        """The home of a workspace of an owner."""
        return Lodging(self, owner, name)

    async def look(self, owner: str, name: str) -> str | None:
        """The home of a workspace where that is not here. A home never changes: the answer is kept."""
        home = self._known.get((owner, name))
        if home is None:
            home = await self._settle(owner, name, self._home)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[owner, name] = home
        return home if home != self._home else None


class Lodging:
    """A Home. An owner's notes are one thing for all of the owner's workspaces: they live where the workspace of that
    name does."""

    def __init__(self, homes: Homes, owner: str, name: str) -> None:
        self._homes = homes
        self._owner = owner
        self._name = name

    async def away(self, use: Use) -> str:
        """See Home.away."""
        if not use:
            return ""
        home = await self._homes.look(self._owner, self._name if use == "workspace" else self._owner)
        return _AWAY.format(what=_THINGS[use], home=home) if home is not None else ""


async def lent(place: Place) -> Place:
    """The place as a function of somebody else may have it: without files where these are elsewhere, so that it fails
    when it wants them, and only then."""
    if await place.home.away("workspace"):
        return replace(place, workspace=NOWHERE, state=NOWHERE)
    return place
