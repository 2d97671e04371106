"""A stretch of text: the states that are made on demand are those that `apply` makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.errors import IllegalEvent
from ninelives.core.rope import FULL
from ninelives.core.state import Place, RunState, Writing, apply, at
from tests.journals import AT, RUN, Pen

EVENTS = st.one_of(
    st.text(max_size=3).map(e.TextDelta),
    st.text(max_size=3).map(e.TextDelta),
    st.text(max_size=3).map(e.TextDelta),
    st.text(min_size=1, max_size=3).map(lambda text: e.TextDelta(text, refusal=True)),
    st.text(max_size=3).map(e.ReasoningDelta),
    st.just(e.CallBegun(call_id="call_c", name="f")),
    st.just(e.AttemptStarted(clean=False)),
    st.just(e.CancelRequested()),
    st.just("look"),
)


def begun(before: int) -> RunState:
    state = Pen().attempt().state
    for _ in range(before):
        state = apply(state, e.Entry(RUN, state.seq + 1, AT, 1, e.TextDelta("x")))
    return state


@given(st.lists(EVENTS, max_size=40), st.sampled_from([0, 1, FULL - 2, FULL]))
def test_every_place_is_the_state_that_apply_makes(steps: list[object], before: int) -> None:
    state = begun(before)
    writing = Writing(state)
    known: list[tuple[Place, RunState]] = []
    for step in steps:
        if step == "look":
            assert writing.state == state
            continue
        entry = e.Entry(RUN, state.seq + 1, AT, 1, step)  # type: ignore[arg-type]
        try:
            state = apply(state, entry)
        except IllegalEvent:
            refused = False
            try:
                writing = writing.add(entry)
            except IllegalEvent:
                refused = True
            assert refused
            continue
        writing = writing.add(entry)
        assert (writing.seq, writing.drafting) == (state.seq, state.drafting)
        known.append(((writing.base, writing.seq - writing.base.seq), state))
    assert writing.state == state
    assert all(at(place) == then for place, then in known)


def test_whoever_goes_on_from_the_same_state_writes_beside_it() -> None:
    state = begun(2)
    both = [Writing(state), Writing(state)]
    for n, text in enumerate("abcd"):
        writing = both[n % 2]
        both[n % 2] = writing.add(e.Entry(RUN, writing.seq + 1, AT, 1, e.TextDelta(text)))
    texts = [writing.state.draft_items[0].text for writing in both]  # type: ignore[union-attr]
    assert texts == ["xxac", "xxbd"]
