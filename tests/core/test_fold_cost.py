"""What a delta costs: the same at any length (R9)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from ninelives.core import events as e
from ninelives.core.rope import join
from ninelives.core.state import RunState, apply
from tests.journals import AT, RUN, Pen


def allocated(step: Callable[[RunState, e.Entry], RunState], state: RunState, count: int) -> tuple[RunState, int]:
    """The state after `count` more deltas, and the bytes that were allocated on the way, transient ones included."""
    spent = 0
    tracemalloc.start()
    try:
        for _ in range(count):
            entry = e.Entry(RUN, state.seq + 1, AT, 1, e.TextDelta("word "))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            state = step(state, entry)
            spent += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return state, spent


def test_the_last_thousand_of_fifty_thousand_deltas_cost_what_the_first_did() -> None:
    """R9: text is a rope. Measured in bytes allocated, not in time."""
    state, first = allocated(apply, Pen().attempt().state, 1000)
    for _ in range(48_000):
        state = apply(state, e.Entry(RUN, state.seq + 1, AT, 1, e.TextDelta("word ")))
    state, last = allocated(apply, state, 1000)
    assert last <= 1.5 * first
    assert join(state.text) == "word " * 50_000
