"""Prices and money. Owns: what tokens cost by the price table of the configuration, and the unit in which costs are
counted. Refuses to know: who pays, and what was spent before."""

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
