"""What runs spend. Owns: the cost of a model call, and the counts of this process until they are in the store. Refuses
to know: how they are stored, and what follows from them.

Theory of operation. Counts go to the store in batches, a moment after they arise, so that no run waits for them. All
processes of a shared store add to the same rows. A process that is killed loses what it counted in the last moment; the
journal of each run still has its usage."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from ninelives.core.events import AnyEvent, MessageCompleted, RunAccepted, ToolFinished, Usage
from ninelives.engine.base import EngineParts
from ninelives.journal.values import MINUTE_MS, Spending, StoreUnavailable, Subject, Totals

T = TypeVar("T", bound=AnyEvent)
NOTHING = Usage()
FLUSH_S = 0.5
"""How long counts wait for others."""
FRESH_S = 0.5
"""How long the answer of the store counts."""
SUBJECTS = 10_000
MOST = 10_000
"""More different counts than this are not kept while the store is away."""
Place = tuple[str, str, str, int]
"""Owner, model, key and minute."""


class Counted(Struct):
    """What was spent in one place. The fields of Spending that are not in Place."""

    at: int
    runs: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: int = 0
    errors: int = 0


COUNTS = Counted.__struct_fields__[1:]


class Since(Struct):
    """What a subject used since the store was asked."""

    runs: int = 0
    tokens: int = 0
    cost: int = 0


class Accounts:
    """The counts of one process."""

    def __init__(self, parts: EngineParts) -> None:
        self._ledger = parts.durable.ledger
        self._price_of = parts.price_of
        self.now_ms = parts.now_ms
        self._log = parts.log
        self._counts: dict[Place, Counted] = {}
        """What the store does not have yet."""
        self._due = asyncio.Event()
        self._read: dict[Subject, tuple[Totals, float]] = {}
        """What the store said of subjects with limits, and when."""
        self._since: dict[Subject, Since] = {}
        """What was counted here since then."""

    def count(
        self, owner: str, model: str, key: str, *, usage: Usage = NOTHING, runs: int = 0, errors: int = 0
    ) -> None:
        """Add to what is used now. Where there is no room for more counts it is lost."""
        at = self.now_ms()
        place = owner, model, key, at // MINUTE_MS
        counted = self._counts.get(place)
        if counted is None:
            if len(self._counts) >= MOST:
                return self._log.error("usage_not_counted", owner=owner, model=model)
            counted = self._counts[place] = Counted(at)
            self._due.set()
        counted.runs += runs
        counted.errors += errors
        if usage is NOTHING:
            return None
        counted.input_tokens += usage.input_tokens
        counted.output_tokens += usage.output_tokens
        counted.cached_tokens += usage.cached_tokens
        counted.reasoning_tokens += usage.reasoning_tokens
        counted.cost += usage.cost
        for subject in subjects_of(owner, key, model) if self._since else ():
            if (since := self._since.get(subject)) is not None:
                since.tokens += usage.input_tokens + usage.output_tokens
                since.cost += usage.cost

    def fail(self, accepted: RunAccepted) -> None:
        """A run has failed."""
        self.count(accepted.owner, accepted.spec.model, accepted.key, errors=1)

    def spend(self, accepted: RunAccepted, event: T) -> T:
        """Count the tokens of a fact. Returns it with their cost, by the upstream's bill or the price table."""
        if not isinstance(event, MessageCompleted | ToolFinished) or event.usage == NOTHING:
            return event
        usage, model = event.usage, accepted.spec.model
        if self._price_of is not None and not usage.cost and (price := self._price_of(model)) is not None:
            usage = replace(usage, cost=price.of(usage))
            event = replace(event, usage=usage)
        self.count(accepted.owner, model, accepted.key, usage=usage)
        return event

    def reserve(self, subject: Subject) -> None:
        """A run of this subject is about to be opened: it counts from now on."""
        self._since.setdefault(subject, Since()).runs += 1

    async def used(self, subject: Subject) -> Totals:
        """What a subject used: by the store, and since it was asked. A store that is away is asked later."""
        loop = asyncio.get_running_loop()
        known, at = self._read.get(subject, (Totals(), -FRESH_S))
        if loop.time() - at >= FRESH_S:
            self._forget_old(loop.time())
            self._since[subject] = Since()
            try:
                await self.flush()
                known = await self._ledger.totals(subject, self.now_ms())
            except StoreUnavailable as error:
                self._log.warning("usage_not_read", reason=str(error))
            self._read[subject] = known, loop.time()
        since = self._since.get(subject)
        return _with(known, since, self.now_ms() // MINUTE_MS) if since is not None else known

    def _forget_old(self, now: float) -> None:
        """Whoever did nothing for a while is asked for again."""
        if len(self._read) > SUBJECTS:
            for subject in [subject for subject, (_, at) in self._read.items() if now - at > FRESH_S]:
                del self._read[subject]
                self._since.pop(subject, None)

    async def run(self) -> None:
        """Store what is counted, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Store what was counted. What cannot be stored now is tried again."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        spent = [Spending(owner=o, model=m, key=k, **asdict(counted)) for (o, m, k, _), counted in counts.items()]
        try:
            await self._ledger.add(spent)
        except StoreUnavailable as error:
            self._log.warning("usage_not_stored", reason=str(error))
            for place, counted in counts.items():
                later = self._counts.setdefault(place, Counted(counted.at))
                for name in COUNTS:
                    setattr(later, name, getattr(later, name) + getattr(counted, name))
            self._due.set()


def subjects_of(owner: str, key: str, model: str) -> tuple[Subject, Subject, Subject]:
    """Who and what a run counts for."""
    return ("owner", owner), ("key", key), ("model", model)


def _with(known: Totals, since: Since, minute: int) -> Totals:
    minutes = {each[0]: each for each in known.minutes}
    _, runs, tokens = minutes.get(minute, (minute, 0, 0))
    minutes[minute] = minute, runs + since.runs, tokens + since.tokens
    return Totals(
        known.day_tokens + since.tokens,
        known.day_cost + since.cost,
        known.month_tokens + since.tokens,
        known.month_cost + since.cost,
        tuple(minutes.values()),
    )
