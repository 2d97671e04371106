"""What tokens cost (core/limits.py)."""

from __future__ import annotations

import math

import msgspec
import pytest

from ninelives.core.events import Usage
from ninelives.core.limits import UNIT, Price, billionths, money


def test_a_cost_is_by_the_million_with_cached_input_at_its_own_price() -> None:
    price = Price(input=2.0, output=8.0, cached=0.5)
    assert price.of(Usage(input_tokens=1_000_000, output_tokens=500_000, cached_tokens=400_000)) == 5.4 * UNIT
    assert Price(input=2.0, output=8.0).of(Usage(1_000_000, 0, 400_000)) == 2 * UNIT
    assert Price(input=0.15, output=0.6).of(Usage(1, 1)) == 750, "one token is not rounded to nothing"
    assert Price(input=1, output=1, cached=0).of(Usage(5, 0, 9)) == 0, "no more can be cached than was sent"


def test_the_bill_of_an_upstream_counts_only_where_it_is_a_plausible_amount() -> None:
    assert billionths(0.0125) == 12_500_000 and money(12_500_000) == 0.0125
    for odd in (None, "0.01", True, math.nan, math.inf, -1.0, 10**9, [1], {}):
        assert billionths(odd) == 0, odd


def test_costs_of_model_calls_add_up() -> None:
    assert Usage(1, 2, cost=5).plus(Usage(3, 4, cost=7)) == Usage(4, 6, cost=12)


@pytest.mark.parametrize("table", [{"input": 1}, {"input": -1, "output": 1}, {"input": 1, "output": 1, "outptu": 2}])
def test_a_price_table_with_a_mistake_is_refused(table: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Price)
