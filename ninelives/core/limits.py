"""Prices, money and limits. Owns: what tokens cost by the price table of the configuration, the unit in which costs are
counted, what an owner, a key or a profile may use, and the arithmetic of a limit per minute. Refuses to know: who asks,
and what was spent before."""

from __future__ import annotations

import math
from typing import Annotated

from msgspec import Meta, Struct

from ninelives.core.events import Usage

UNIT = 1_000_000_000
"""Costs are whole billionths of a unit of money, so that sums are exact."""
MOST = 1_000_000.0
"""A bill of an upstream for one call that is higher than this is a mistake, and does not count."""
Money = Annotated[float, Meta(ge=0, le=1e9)]
Whole = Annotated[int, Meta(ge=0, le=10**15)]
MINUTE_S = 60


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[prices.MODEL]: what a million tokens cost, in a currency of your choice, the same in all prices."""

    input: Money
    output: Money
    cached: Money | None = None
    """Of input that the upstream had in its cache; left out: as other input."""

    def of(self, usage: Usage) -> int:
        """The cost of a model call."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        rate = self.input if self.cached is None else self.cached
        per_million = (usage.input_tokens - cached) * self.input + cached * rate + usage.output_tokens * self.output
        return round(per_million * UNIT / 1_000_000)


def billionths(amount: object) -> int:
    """An amount of money as it is counted. What is no plausible amount counts as not known."""
    if not isinstance(amount, int | float) or isinstance(amount, bool) or not math.isfinite(amount):
        return 0
    return round(amount * UNIT) if 0 < amount <= MOST else 0


def money(cost: int) -> float:
    """A cost in units of money, as answers show it."""
    return cost / UNIT


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an owner, a key or a profile may use. None: no limit."""

    runs: Whole | None = None
    """Runs that have not ended, those that wait for a person left out."""
    requests_per_minute: Whole | None = None
    """Requests that start a run."""
    tokens_per_minute: Whole | None = None
    tokens_per_run: Whole | None = None
    tokens_per_day: Whole | None = None
    tokens_per_month: Whole | None = None
    money_per_run: Money | None = None
    money_per_day: Money | None = None
    money_per_month: Money | None = None

    def over(self, default: Limits) -> Limits:
        """These, with those of `default` where there is none."""
        given = ((name, getattr(self, name)) for name in Limits.__struct_fields__)
        return Limits(**{name: getattr(default, name) if value is None else value for name, value in given})


NO_LIMITS = Limits()


class Window(Struct, frozen=True):
    """A limit per minute. It slides: of the minute before, the part counts that is less than a minute ago."""

    limit: int
    now: int
    """Used in this minute of the clock."""
    before: int
    """Used in the minute before."""
    second: float
    """How far this minute is."""

    @property
    def used(self) -> float:
        """What counts now."""
        return self.now + self.before * (1 - self.second / MINUTE_S)

    @property
    def remaining(self) -> int:
        """How much is left."""
        return max(0, math.floor(self.limit - self.used))

    def wait_s(self) -> int:
        """In how many seconds there is room for one more; 0: now."""
        if self.remaining >= 1:
            return 0
        if self.now < self.limit and self.before:
            share = 1 - (self.limit - 1 - self.now) / self.before
            return max(1, math.ceil(MINUTE_S * share - self.second))
        share = max(0.0, 1 - (self.limit - 1) / self.now) if self.now else 1.0
        return max(1, math.ceil(MINUTE_S - self.second + MINUTE_S * share))

    def after_one(self) -> Window:
        """The same with one more."""
        return Window(self.limit, self.now + 1, self.before, self.second)

    def reset_s(self) -> float:
        """In how many seconds all of it is there again."""
        if self.now:
            return 2 * MINUTE_S - self.second
        return MINUTE_S - self.second if self.before else 0.0
