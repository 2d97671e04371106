"""The run that a request names. Owns: whose runs a key finds, and that an admin who opens a run of somebody else is in
the audit log. Refuses to know: what is done with the run."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request

from ninelives.engine.engine import Engine
from ninelives.http.edge.keys import ApiKey
from ninelives.http.edge.scopes import note
from ninelives.journal.values import RunRow

MOST_NOTED = 1_000
"""So many runs are remembered as noted. Then the next look at one of them is noted again."""


def sees_all(request: Request) -> bool:
    """Whether the caller sees the runs of all owners: an admin key that acts for nobody. In `/p/NAME/...` it acts for
    the owner of that profile, and a key of a front end acts for the people behind it."""
    state = request.scope["state"]
    key: ApiKey = state["key"]
    return key.admin and key.acts_for == "no" and state["profile"] is None


class RunFinder:
    """Runs by their id. A key finds the runs of its owner, an admin key those of all (sees_all)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._noted: set[tuple[str, str]] = set()
        """The admin key and the run. A page asks every two seconds: one entry is enough."""

    async def find(self, request: Request, run: str) -> RunRow | None:
        """The run, if this key may see it. Where it is another owner's, the request acts for that owner from here
        on."""
        state = request.scope["state"]
        key: ApiKey = state["key"]
        row = await self._engine.find(key.owner, run)
        if row is not None or not sees_all(request):
            return row
        owner = await self._engine.durable.owner_of(run)
        row = await self._engine.find(owner, run) if owner is not None else None
        if row is not None:
            self._note(request, key, row)
            state["key"] = replace(key, owner=row.owner)
        return row

    def _note(self, request: Request, key: ApiKey, row: RunRow) -> None:
        if (key.id, row.run) in self._noted:
            return
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted.add((key.id, row.run))
        note(request, "run.read", "ok", f"of {row.owner}")
