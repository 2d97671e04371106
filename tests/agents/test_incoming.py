"""A message while it streams in: what one read brings becomes deltas."""

from __future__ import annotations

from ninelives.agents.incoming import FLOOD, Incoming
from ninelives.core.events import ReasoningDelta, TextDelta, Usage
from ninelives.models.base import Finished, Part, Text, Thinking


def incoming(room: int = 1_000_000) -> Incoming:
    return Incoming("run", 0, room, frozenset())


def words(count: int) -> list[Part]:
    return [Text(f"tok{n} ") for n in range(count)]


def test_each_piece_of_an_ordinary_read_is_a_delta() -> None:
    assert list(incoming().feed(words(FLOOD))) == [TextDelta(f"tok{n} ") for n in range(FLOOD)]


def test_neighbours_of_one_kind_in_a_flood_are_one_delta_and_nothing_is_lost_or_moved() -> None:
    said = words(FLOOD)
    here = incoming()
    flood: list[Part] = [Thinking("a"), Thinking("b"), *said, Thinking("c"), Text("d"), Finished("stop", Usage())]
    text = "".join(f"tok{n} " for n in range(FLOOD))
    assert list(here.feed(flood)) == [ReasoningDelta("ab"), TextDelta(text), ReasoningDelta("c"), TextDelta("d")]
    assert (here.completed().text, here.completed().reasoning, here.completed().finish) == (text + "d", "abc", "stop")


def test_what_reaches_the_bound_does_not_fit() -> None:
    here = incoming(room=5)
    assert here.fits([Text("abcd")])
    assert not here.fits([Text("abc"), Thinking("de")])
    assert list(here.feed([Text("abcde"), Text("f")])) == [TextDelta("abcde")]
    assert here.full and here.completed().finish == "length"
