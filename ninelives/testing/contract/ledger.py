"""Contract: what was spent. Owns: the rules of Ledger (C11). See contract.py."""

from __future__ import annotations

from msgspec.structs import replace

from ninelives.journal.values import DAY_MS, MINUTE_MS, Spending, Totals
from ninelives.testing.author import Author, Backend

JANUARY = 20_454 * DAY_MS
"""The first day of 2026."""


class LedgerContract:
    """Counts by day, owner, key and model, that outlive their runs."""

    async def test_what_was_spent_is_told_by_day_owner_and_model(self, backend: Backend) -> None:
        ledger, noon = backend.store.ledger, JANUARY + DAY_MS // 2
        await ledger.add([Spending(owner="ann", model="m", key="k1", at=noon, runs=1, input_tokens=5, cost=7)])
        await ledger.add(
            [
                Spending(owner="ann", model="m", key="k2", at=noon + 1, runs=1, output_tokens=3, cached_tokens=2),
                Spending(owner="ann", model="m", key="k2", at=noon + 2, errors=1),
                Spending(owner="ann", model="n", at=noon - DAY_MS, runs=1, reasoning_tokens=4),
                Spending(owner="bob", model="m", at=noon, runs=2),
            ]
        )
        ann = replace(Spending(owner="ann", model="m", at=JANUARY, runs=2, errors=1), input_tokens=5, cost=7)
        ann = replace(ann, output_tokens=3, cached_tokens=2)
        older = Spending(owner="ann", model="n", at=JANUARY - DAY_MS, runs=1, reasoning_tokens=4)
        assert await ledger.days("ann", 0, JANUARY + DAY_MS) == [ann, older]
        assert await ledger.days("ann", JANUARY, JANUARY + DAY_MS) == [ann]
        everybody = await ledger.days(None, 0, JANUARY + DAY_MS)
        assert everybody == [ann, Spending(owner="bob", model="m", at=JANUARY, runs=2), older]
        assert await ledger.days("nobody", 0, JANUARY + DAY_MS) == []
        await ledger.add([])
        assert await ledger.days("ann", JANUARY, JANUARY + DAY_MS) == [ann]

    async def test_totals_are_of_today_this_month_and_the_last_minutes(self, backend: Backend) -> None:
        ledger, now = backend.store.ledger, JANUARY + 3 * DAY_MS + 10 * MINUTE_MS
        for at, key in ((now, "k1"), (now - MINUTE_MS, "k2"), (now - 2 * MINUTE_MS, "k1"), (now - 2 * DAY_MS, "k1")):
            await ledger.add(
                [Spending(owner="ann", model="m", key=key, at=at, runs=1, input_tokens=10, output_tokens=1, cost=100)]
            )
        await ledger.add([Spending(owner="bob", model="m", key="k3", at=now, runs=1, input_tokens=5, cost=1)])
        last = JANUARY - MINUTE_MS  # another month
        await ledger.add([Spending(owner="ann", model="m", key="k1", at=last, input_tokens=999, cost=999)])
        minute = now // MINUTE_MS
        ann = Totals(33, 300, 44, 400, ((minute - 1, 1, 11), (minute, 1, 11)))
        assert await ledger.totals(("owner", "ann"), now) == ann
        assert await ledger.totals(("key", "k1"), now) == Totals(22, 200, 33, 300, ((minute, 1, 11),))
        both = Totals(38, 301, 49, 401, ((minute - 1, 1, 11), (minute, 2, 16)))
        assert await ledger.totals(("model", "m"), now) == both
        assert await ledger.totals(("owner", "nobody"), now) == Totals()

    async def test_what_was_spent_stays_when_its_run_goes(self, backend: Backend) -> None:
        ann, at = Author(backend), backend.clock.now_ms()
        await ann.finished("r1")
        await backend.store.ledger.add([Spending(owner="ann", model="m", at=at, runs=1)])
        assert await backend.store.delete("ann", "r1")
        assert [each.runs for each in await backend.store.ledger.days("ann", 0, at + DAY_MS)] == [1]
