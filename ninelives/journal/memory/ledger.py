"""What was spent, in memory. Owns: counts by minute, day, owner, model and key. Refuses to know: limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ninelives.journal.values import (
    DAY_MS,
    MINUTE_MS,
    RECENT_MINUTES,
    Spending,
    Subject,
    Totals,
    columns_of,
    month_start,
    spending_of,
)

Place = tuple[int, str, str, str]
"""A day or a minute, owner, model, key."""
FIELDS = {"owner": 1, "model": 2, "key": 3}


class MemoryLedger:
    """See journal.base.Ledger."""

    def __init__(self) -> None:
        self._days: dict[Place, tuple[int, ...]] = {}
        self._minutes: dict[Place, tuple[int, ...]] = {}

    async def add(self, spent: Sequence[Spending]) -> None:
        """See Ledger.add."""
        for each in spent:
            who = each.owner, each.model, each.key
            _add(self._days, (each.at // DAY_MS, *who), columns_of(each))
            _add(self._minutes, (each.at // MINUTE_MS, *who), (each.runs, each.tokens))
        oldest = max((each.at // MINUTE_MS for each in spent), default=0) - RECENT_MINUTES
        for place in [place for place in self._minutes if place[0] < oldest]:
            del self._minutes[place]

    async def days(self, owner: str | None, since: int, until: int) -> list[Spending]:
        """See Ledger.days."""
        found: dict[tuple[int, str, str], tuple[int, ...]] = {}
        for (day, who, model, _), counts in self._days.items():
            if owner in (None, who) and since // DAY_MS <= day < until // DAY_MS:
                before = found.get((-day, who, model), (0,) * len(counts))
                found[-day, who, model] = _sum([before, counts])
        return [spending_of(who, -day, model, *counts) for (day, who, model), counts in sorted(found.items())]

    async def totals(self, subject: Subject, now: int) -> Totals:
        """See Ledger.totals."""
        place, name = FIELDS[subject[0]], subject[1]
        today, first = now // DAY_MS, month_start(now)
        month = [(at[0], counts) for at, counts in self._days.items() if at[place] == name and at[0] >= first]
        sums: Counter[str] = Counter()
        for day, (_, asked, answered, _, _, cost, _) in month:
            sums.update(month_tokens=asked + answered, month_cost=cost)
            if day == today:
                sums.update(day_tokens=asked + answered, day_cost=cost)
        recent: dict[int, tuple[int, ...]] = {}
        for at, counts in sorted(self._minutes.items()):
            if at[place] == name and at[0] >= now // MINUTE_MS - 1:
                recent[at[0]] = _sum([recent.get(at[0], (0, 0)), counts])
        minutes = tuple((minute, runs, tokens) for minute, (runs, tokens) in recent.items())
        return Totals(sums["day_tokens"], sums["day_cost"], sums["month_tokens"], sums["month_cost"], minutes)


def _add(table: dict[Place, tuple[int, ...]], place: Place, counts: tuple[int, ...]) -> None:
    table[place] = _sum([table.get(place, (0,) * len(counts)), counts])


def _sum(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))
