"""Ropes: text that grows, whose earlier states stay right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

from hypothesis import given
from hypothesis import strategies as st

from ninelives.core.rope import FULL, HUGE_BYTES, LARGE_BYTES, Rope, alone, grow, join, turn


@given(st.lists(st.tuples(st.integers(0, 1_000_000), st.text(max_size=3)), max_size=60), st.integers(0, 2 * FULL))
def test_every_rope_keeps_its_text_whoever_goes_on_from_it(steps: list[tuple[int, str]], before: int) -> None:
    rope: Rope | None = None
    for n in range(before):
        rope = grow(rope, chr(97 + n % 26))
    known: list[tuple[Rope | None, str]] = [(rope, join(rope))]
    for where, piece in steps:
        rope, text = known[where % len(known)]
        known.append((grow(rope, piece), text + piece))
    assert all(join(rope) == text for rope, text in known)


def test_ropes_are_equal_where_their_texts_are() -> None:
    one = grow(grow(None, "a"), "b")
    other = grow(None, "ab")
    longer = grow(one, "c")
    assert one == other
    assert hash(one) == hash(other)
    assert one != longer
    assert one != "ab"


def test_a_long_rope_is_let_go_without_a_deep_recursion() -> None:
    rope: Rope | None = None
    for _ in range(1_000_000):
        rope = grow(rope, "x")
    assert len(join(rope)) == 1_000_000
    del rope


def test_r12_threads_work_on_large_pieces_one_after_the_other() -> None:
    begun, go = Event(), Event()

    def first() -> bool:
        begun.set()
        return go.wait(30)

    def small() -> str:
        with turn(LARGE_BYTES):
            return "small"

    def large() -> str:
        with turn(LARGE_BYTES + 1):
            return "large"

    with ThreadPoolExecutor(4) as pool:
        held = pool.submit(alone, LARGE_BYTES, first)
        assert begun.wait(30)
        waiting = [pool.submit(alone, HUGE_BYTES + 1, str), pool.submit(large)]
        assert pool.submit(small).result(30) == "small"
        assert not wait(waiting, 0.05).done
        go.set()
        assert held.result(30)
        assert [each.result(30) for each in waiting] == ["", "large"]
