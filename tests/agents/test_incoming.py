"""A message while it streams in: what one read brings becomes deltas."""

from __future__ import annotations

import pytest

from ninelives.agents.loop_state import FLOOD, Incoming, ToldDraft
from ninelives.core.events import CallBegun, Delta, MessageCompleted, ReasoningDelta, TextDelta, Usage
from ninelives.models.base import CallPiece, Finished, Part, Text, Thinking


def incoming(room: int = 1_000_000) -> Incoming:
    return Incoming("run", 0, room, frozenset())


class Told:
    """A sink with room."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def has_room(self) -> bool:
        return True

    def is_read(self) -> bool:
        return True

    def put(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def put_last(self, message: MessageCompleted) -> None:
        raise AssertionError("no message is put here")


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
    done = here.completed(lambda: 7)
    assert (done.text, done.reasoning, done.finish) == (text + "d", "abc", "stop")


def test_what_an_earlier_process_passed_on_is_skipped_and_the_message_is_whole() -> None:
    here = Incoming("run", 0, 1000, frozenset(), lambda name: "", ToldDraft(5, 0, 3).skips())
    told = Told()
    assert here.take(told, [Text("a")]) and not told.deltas, "a word that was passed on"
    parts: list[Part] = [Thinking("ab"), Thinking("cd"), Text("bc"), Text("defg"), CallPiece(0, "note", ""), Text("h")]
    assert list(here.feed(parts)) == [ReasoningDelta("d"), TextDelta("fg"), TextDelta("h")]
    done = here.completed(lambda: 7)
    assert (done.text, done.reasoning) == ("abcdefgh", "abcd")


def test_what_reaches_the_bound_does_not_fit() -> None:
    here = incoming(room=5)
    assert here.fits([Text("abcd")])
    assert not here.fits([Text("abc"), Thinking("de")])
    told = Told()
    assert not here.take(told, [Text("abcde")]) and not here.take(told, [Text("abc"), Thinking("de")])
    assert not told.deltas, "what does not fit is yielded"
    assert list(here.feed([Text("abcde"), Text("f")])) == [TextDelta("abcde")]
    assert here.full and here.completed(lambda: 7).finish == "length"


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (Usage(3, 4, 1, 2), Usage(3, 4, 1, 2)),
        (Usage(), Usage(70, 5, 0, 1, estimated=True)),
        (Usage(3), Usage(3, 5, 0, 1, estimated=True)),
        (Usage(0, 4, 0, 2), Usage(70, 4, 0, 2, estimated=True)),
    ],
)
def test_c11_what_the_upstream_does_not_count_is_estimated(told: Usage, counted: Usage) -> None:
    here = Incoming("r", 0, 1000, frozenset())
    parts: list[Part] = [Thinking("ab"), Text("hello"), CallPiece(0, "note", "{}äö"), Finished("tool_calls", told)]
    assert not [delta for delta in here.feed(parts) if not delta.text]
    assert here.completed(lambda: 70).usage == counted


def test_c11_an_empty_answer_of_no_tokens_is_no_estimate() -> None:
    here = Incoming("r", 0, 1000, frozenset())
    assert list(here.feed([Finished("stop", Usage(3))])) == []
    assert here.completed(lambda: 70).usage == Usage(3)


def begun(*pieces: CallPiece) -> list[tuple[str, str]]:
    """The calls that are told while they are written: id and name."""
    tools = {"terminal": "💻", "patch": "", "mine": "x"}
    here = Incoming("r", 3, 1000, frozenset({"mine"}), tools.get)
    told = [delta for piece in pieces for delta in here.feed([piece])]
    assert [delta.emoji for delta in told if isinstance(delta, CallBegun)] == [tools[t.name] for t in told]
    return [(delta.call_id, delta.name) for delta in told if isinstance(delta, CallBegun)]


def test_the_begin_of_a_call_is_told_once_under_the_id_that_it_will_have() -> None:
    pieces = [
        CallPiece(0, "terminal", ""),
        CallPiece(0, "", '{"a"'),
        CallPiece(0, "", ":1}"),
        CallPiece(1, "patch", ""),
    ]
    assert begun(*pieces) == [("call_r0003", "terminal"), ("call_r0004", "patch")]
    here = Incoming("r", 3, 1000, frozenset())
    assert list(here.feed([*pieces, Finished("tool_calls", Usage(1, 1))])) == []
    assert [call.id for call in here.completed(lambda: 0).calls] == ["call_r0003", "call_r0004"]


def test_a_name_that_comes_in_pieces_is_told_when_it_is_whole() -> None:
    pieces = [CallPiece(0, "term", ""), CallPiece(0, "inal", ""), CallPiece(0, "", "{}")]
    assert begun(*pieces) == [("call_r0003", "terminal")]


def test_a_call_in_one_piece_a_call_for_the_caller_and_an_unknown_tool_are_not_told() -> None:
    assert begun(CallPiece(0, "terminal", "{}")) == []
    assert begun(CallPiece(0, "mine", ""), CallPiece(1, "unknown", ""), CallPiece(1, "", "{}")) == []
    assert begun(CallPiece(0, "terminal", "{"), CallPiece(0, "", "}")) == [("call_r0003", "terminal")]
