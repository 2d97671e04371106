"""Keeps the store within its bounds while the server runs, and forgets what is not stored. Owns: which runs were used
lately; what counts and never goes; the rounds in which runs, and all else that has no room, go; and the rounds in which
runs go whose answer was delivered or whose time is over (B6). Refuses to know: how a store finds them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from ninelives.agents.base import RunForgetter
from ninelives.core.errors import ClientError, Damaged
from ninelives.core.holding import Holding, evictable_room, fair_room, fixed_limit
from ninelives.engine.base import EngineParts
from ninelives.engine.readers import Readers
from ninelives.engine.replay import read_state
from ninelives.journal.values import MAX_GRANTS, ROW_BYTES, Gone, Grant, Retention, StoreUnavailable

USES = 100_000
"""More than this many used runs are not remembered between two rounds: they then count as used when they ended."""
FORGET_S = 10.0
"""A round of forgetting: well within the minute after a delivery."""
FORGET_RUNS = 256
ELSEWHERE_MS = 3_600_000
"""So long the machine that has the files of a run may take to forget it. Then any other does, and the files stay."""


def grants_full(reason: str) -> ClientError:
    """The error for a standing permission that cannot be stored."""
    words = f"{reason}. Answer with `once`, or delete something first: permissions with DELETE /v1/approvals/ID or "
    return ClientError("grants_full", f"{words}`ninelives approvals revoke`, files with the terminal.", status=409)


class Retainer:
    """Rounds of retention for one store."""

    def __init__(self, parts: EngineParts, readers: Readers) -> None:
        self._store = parts.durable
        self._upkeep = parts.durable.upkeep
        self._keep = parts.limits.keep
        self._agent_of = parts.agent_of
        self._now_ms = parts.clock()
        self._readers = readers
        self._outside = parts.outside
        self._fixed: Counter[str] = Counter()
        self._log = parts.log
        self._uses: dict[Gone, int] = {}
        self.evicted = 0
        self.forgotten = 0

    def used(self, owner: str, run: str) -> None:
        """Somebody looked at a run."""
        if len(self._uses) < USES:
            self._uses[owner, run] = self._now_ms()

    async def run(self) -> None:
        """Rounds of retention now and then, until cancelled."""
        await self._rounds(self._keep.every_s, self.round)

    async def run_forgetting(self) -> None:
        """Rounds of forgetting now and then, until cancelled."""
        await self._rounds(FORGET_S, self.forget)

    async def _rounds(self, every_s: float, round: Callable[[], Awaitable[int]]) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await round()
            except StoreUnavailable as error:
                self._log.warning("retention_failed", reason=str(error))
            except Exception as error:  # the edge of a task that must not end: files of tools may be anything
                self._log.error("retention_failed", error=repr(error))

    async def round(self) -> int:
        """One round of retention; how many runs went."""
        outside = await self._survey()
        uses, self._uses = self._uses, {}
        await self._upkeep.touch([(owner, run, at) for (owner, run), at in uses.items()])
        now, keep = self._now_ms(), self._keep
        rooms, total = await self._rooms(outside)
        rule = Retention(
            at=now,
            runs=keep.runs,
            owner_bytes=keep.owner_bytes,
            owner_rooms=rooms,
            total_bytes=total,
            outside=outside,
            before=int(now - keep.days * 86_400_000) if keep.days else 0,
        )
        gone = await self._upkeep.evict(rule, frozenset(self._readers.being_read()))
        self.evicted += len(gone.runs)
        await self._outside.drop(gone.outside)
        counts = {"runs": len(gone.runs), "sessions": len(gone.sessions), "conversations": len(gone.conversations)}
        counts["outside"] = len(gone.outside)
        if any(counts.values()):
            self._log.info("expired", **counts)
        return len(gone.runs)

    async def _rooms(self, outside: Sequence[Holding]) -> tuple[dict[str, int], int]:
        """The bounds of owners that have one of their own, and that of all together. Where all together hold too much,
        those who hold the most give way: nobody's flood evicts what others keep."""
        keep = self._keep
        named = self._fixed.keys() | keep.owners.keys()
        rooms = {name: evictable_room(keep.bound_of(name), self._fixed[name]) for name in named}
        total = evictable_room(keep.total_bytes, self._fixed.total())
        if not total:
            return rooms, 0
        sizes = Counter({each.owner: each.bytes for each in await self._upkeep.usage()})
        for each in outside:
            sizes[each.owner] += each.bytes
        room = fair_room(sizes.values(), total)
        if not room:
            return rooms, total
        cut = {owner: room for owner, size in sizes.items() if size > room}
        return rooms | {owner: min(room, rooms.get(owner) or room) for owner in cut}, 0

    async def _survey(self) -> tuple[Holding, ...]:
        """Count what is fixed. Returns what else is outside of the store."""
        keep = self._keep
        if not (keep.owner_bytes or keep.owners or keep.total_bytes or keep.days):
            return ()
        held = await self._outside.survey()
        fixed = Counter(await self._upkeep.fixed())
        for each in held:
            fixed[each.owner] += each.bytes * each.fixed
        self._fixed = fixed
        return tuple(each for each in held if not each.fixed)

    async def check_grant(self, grant: Grant) -> None:
        """Raise ClientError if there is no room for one more standing permission. They are never evicted."""
        grants = await self._store.grants(grant.owner)
        if len(grants) >= MAX_GRANTS and grant.id not in {each.id for each in grants}:
            raise grants_full(f"There are {len(grants)} standing permissions, which is the most")
        bound = self._keep.bound_of(grant.owner)
        if not bound:
            return
        used, limit = self._fixed[grant.owner], fixed_limit(bound)
        used = max(used, sum(ROW_BYTES + len(each.arguments.encode()) for each in grants))
        if used + ROW_BYTES + len(grant.arguments.encode()) > limit:
            what = "The workspaces and standing permissions of this owner"
            raise grants_full(f"{what} hold {used} bytes, and store.owner_bytes allows {limit} bytes for them")

    async def forget(self) -> int:
        """One round of forgetting; how many runs went. Those that cannot go now do not keep others waiting."""
        unstored_ms = int(self._keep.unstored_hours * 3_600_000)
        before, stay = self.forgotten, set[Gone]()
        while True:
            due = await self._upkeep.forgettable(self._now_ms(), unstored_ms, FORGET_RUNS + len(stay))
            some = [found for found in due if found not in stay]
            gone = [found for found in some if await self._can_go(*found)]
            stay.update(set(some) - set(gone))
            if gone:
                await self._store.forget(gone)
                self.forgotten += len(gone)
                for _owner, run in gone:
                    self._readers.kept.forget(run)
            if len(some) < FORGET_RUNS:
                return self.forgotten - before

    async def _can_go(self, owner: str, run: str) -> bool:
        """Whether nobody reads it, and what its tools left is gone."""
        if self._readers.count(run):
            return False
        return await self._forget_outputs(owner, run)

    async def _forget_outputs(self, owner: str, run: str) -> bool:
        """Delete what its tools left outside of the journal; False where another process must do that."""
        try:
            state = await read_state(self._store, owner, run)
        except Damaged as error:  # what cannot be read can still be deleted
            self._log.error("run_damaged", run=run, reason=str(error))
            return True
        if state is None:
            return True
        agent = self._agent_of(state.facts.accepted)
        if not isinstance(agent, RunForgetter):
            return True
        try:
            return await agent.forget(state) or self._now_ms() - state.facts.updated_at > ELSEWHERE_MS
        except StoreUnavailable:
            raise
        except Exception as error:  # the agent's code. One run that it fails for must not keep all others
            self._log.error("outputs_not_forgotten", run=run, error=repr(error))
            return True
