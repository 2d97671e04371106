"""Rules of the parser of an upstream's answer: pure, no network."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninelives.core.events import Usage
from ninelives.models.base import CallPiece, Finished, Part, Text, Thinking
from ninelives.models.chunks import EXCERPT_CHARS, AnswerReader, EventLines, UpstreamFailed, redacted


def event(delta: dict[str, object] | None = None, finish: str | None = None, **more: object) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta is not None or finish else []
    return b"data: " + msgspec.json.encode({"choices": choices, **more}) + b"\n\n"


def parse(*pieces: bytes) -> list[Part]:
    answer = AnswerReader()
    lines = EventLines(answer, 1 << 20)
    parts: list[Part] = []
    for piece in (*(piece for piece in pieces if piece), b""):
        if not answer.done:
            lines.feed(piece, parts)
    return parts


PIECE = {"function": {"arguments": "1"}}
FIRST = {"id": "x", "function": {"name": "f", "arguments": None}}
NUMBERING = {
    "index tells calls apart though ids repeat": (
        [{"index": 0, **FIRST}, {"index": 1, **FIRST}, {"index": 0, **PIECE}],
        [CallPiece(0, "f", ""), CallPiece(1, "f", ""), CallPiece(0, "", "1")],
    ),
    "without index a new id opens a call": (
        [FIRST, PIECE, {"id": "y", "function": {"name": "f"}}, PIECE],
        [CallPiece(0, "f", ""), CallPiece(0, "", "1"), CallPiece(1, "f", ""), CallPiece(1, "", "1")],
    ),
    "without index and id a name opens a call": (
        [{"function": {"name": "f"}}, PIECE, {"function": {"name": "g", "arguments": "2"}}],
        [CallPiece(0, "f", ""), CallPiece(0, "", "1"), CallPiece(1, "g", "2")],
    ),
    "without index the same id goes on": (
        [FIRST, {"id": "x", "function": {"name": "f", "arguments": "1"}}],
        [CallPiece(0, "f", ""), CallPiece(0, "", "1")],
    ),
    "one index for all calls: a new id with a name opens a call": (
        [{"index": 0, **FIRST}, {"index": 0, "id": "y", "function": {"name": "g"}}, {"index": 0, **PIECE}],
        [CallPiece(0, "f", ""), CallPiece(1, "g", ""), CallPiece(1, "", "1")],
    ),
    "a new id at every piece of one index is the same call": (
        [{"index": 0, **FIRST}, {"index": 0, "id": "y", **PIECE}],
        [CallPiece(0, "f", ""), CallPiece(0, "", "1")],
    ),
    "numbers are ours and begin at 0": ([{"index": 7, **FIRST}], [CallPiece(0, "f", "")]),
    "arguments may be an object": (
        [{"function": {"name": "f", "arguments": {"a": 1}}}],
        [CallPiece(0, "f", '{"a":1}')],
    ),
}


@pytest.mark.parametrize(("pieces", "told"), NUMBERING.values(), ids=NUMBERING)
def test_pieces_of_calls_are_numbered(pieces: list[dict[str, object]], told: list[Part]) -> None:
    events = [event({"tool_calls": [piece]}) for piece in pieces]
    assert parse(*events, event({}, "tool_calls")) == [*told, Finished("tool_calls", Usage())]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("eos", "stop"),
    ],
)
def test_finish_reasons_are_mapped_and_unknown_ones_are_stop(said: str, meant: str) -> None:
    assert parse(event({}, said))[-1].reason == meant  # type: ignore[union-attr]


def test_stop_after_calls_means_tool_calls() -> None:
    assert parse(event({"tool_calls": [FIRST]}), event({}, "stop"))[-1] == Finished("tool_calls", Usage())


def test_comments_event_lines_nulls_and_empty_strings_say_nothing() -> None:
    null = {"content": None, "tool_calls": None, "reasoning_content": "", "role": "assistant", "unknown": [{}]}
    stream = b": hi\n\nevent: x\nid: 1\nretry: 5\ndata:\n\n" + event(null) + event({"content": ""}) + event(None)
    assert parse(stream, event({}, "stop")) == [Finished("stop", Usage())]


STREAM = (
    ": wärme\r\n\r\nevent: message\r\n"
    'data:   {"choices":[{"index":0,"delta":{"content":"héllo"}}]}\r\n\r\n'
    'data:{"choices":[{"delta":{"reasoning":"…"}}]}\n\n'
    'data: {"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
    'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\r\n\r\ndata: [DONE]\r\n\r\n'
).encode()


def test_the_parts_are_the_same_wherever_the_bytes_are_cut() -> None:
    told = [Text("héllo"), Thinking("…"), CallPiece(0, "f", "{}"), Finished("tool_calls", Usage(3, 4))]
    assert parse(STREAM) == told
    assert parse(*(STREAM[n : n + 1] for n in range(len(STREAM)))) == told
    for place in range(len(STREAM)):
        assert parse(STREAM[:place], STREAM[place:]) == told


@settings(database=None, max_examples=60, deadline=None)
@given(texts=st.lists(st.text(min_size=1), max_size=6), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_any_text_survives_any_cuts(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(event({"content": text}) for text in texts) + event({}, "stop")
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert parse(*pieces) == [*(Text(text) for text in texts), Finished("stop", Usage())]


def test_reasoning_has_two_names() -> None:
    assert parse(event({"reasoning": "r"}), event({}, "stop"))[0] == Thinking("r")
    assert parse(event({"reasoning_content": "r"}), event({}, "stop"))[0] == Thinking("r")


# ---- one object per read ----

WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", '"', "\\", '\\"', "\n", "\u2028", "\x7f", "é", "a" * 300, '","content":"', "}\n\ndata: {"]),
)
PLAIN = [
    lambda text, spaced: ({"content": text}, None, {}, spaced),
    lambda text, spaced: ({"content": text, "role": "assistant"}, None, {"id": "x"}, spaced),
    lambda text, spaced: ({"content": text}, None, {"usage": {"prompt_tokens": len(text)}}, spaced),
    lambda text, spaced: ({"content": text, "reasoning_content": text}, None, {}, spaced),
    lambda text, spaced: ({"reasoning_content": text, "content": ""}, None, {}, spaced),
    lambda text, spaced: ({"refusal": text}, None, {}, spaced),
    lambda text, spaced: ({"content": text}, "length", {}, spaced),
    lambda text, spaced: ({"content": text}, None, {"message": {"content": text}}, spaced),
]


def told(delta: dict[str, object], finish: str | None, more: dict[str, object], spaced: bool) -> bytes:
    whole = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    raw = json.dumps(whole, ensure_ascii=spaced, separators=None if spaced else (",", ":")).encode()
    return b"data: " + raw + b"\n\n"


@given(st.lists(st.tuples(st.sampled_from(PLAIN), WORDS), max_size=12), st.booleans())
def test_an_object_is_read_the_same_after_others_that_are_like_it(steps: list[tuple[Any, str]], spaced: bool) -> None:
    stream = [told(*make(text, spaced)) for make, text in steps]
    answer, alone = AnswerReader(), AnswerReader()
    lines = EventLines(answer, 1 << 20)
    for event_ in stream:
        parts: list[Part] = []
        expected: list[Part] = []
        lines.feed(event_, parts)
        EventLines(alone, 1 << 20).feed(event_, expected)
        assert parts == expected


def half_event(**delta: object) -> bytes:
    """An event as a gateway in JavaScript sends it: halves of characters as escapes."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


def calls(arguments: str, index: int = 0) -> dict[str, object]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


END = event({}, finish="stop")
HALVES: dict[str, tuple[list[bytes], list[Part]]] = {
    "joined over two deltas": (
        [half_event(content="Hi \ud83d"), half_event(content="\ude00!")],
        [Text("Hi "), Text("\U0001f600!")],
    ),
    "joined over an empty delta and another channel": (
        [half_event(content="\ud83d"), half_event(), half_event(reasoning="hm"), half_event(content="\ude00")],
        [Thinking("hm"), Text("\U0001f600")],
    ),
    "each channel has its own": (
        [half_event(content="a\ud83d", reasoning="b\ud83d"), half_event(content="\ude01", reasoning="\ude00")],
        [Thinking("b"), Text("a"), Thinking("\U0001f600"), Text("\U0001f601")],
    ),
    "arguments of two calls": (
        [half_event(**calls('"\ud83d')), half_event(**calls("\ud83d", 1)), half_event(**calls('\ude00"'))],
        [CallPiece(0, "", '"'), CallPiece(0, "", '\U0001f600"'), CallPiece(1, "", "\ufffd")],
    ),
    "alone in the middle": ([half_event(content="a\ud83d"), half_event(content="b")], [Text("a"), Text("\ufffdb")]),
    "alone at the end": ([half_event(content="a\ud83d")], [Text("a"), Text("\ufffd")]),
    "a second half alone": ([half_event(content="\ude00a")], [Text("\ufffda")]),
    "two first halves": (
        [half_event(content="\ud83d\ud83d"), half_event(content="\ude00")],
        [Text("\ufffd"), Text("\U0001f600")],
    ),
    "as raw bytes": (
        [
            half_event(content="@").replace(b"@", b"\xed\xa0\xbd"),
            half_event(content="@").replace(b"@", b"\xed\xb8\x80"),
        ],
        [Text("\U0001f600")],
    ),
    "a whole pair beside a half": (
        [half_event(content="\U0001f601\ud83d"), half_event(content="\ude00")],
        [Text("\U0001f601"), Text("\U0001f600")],
    ),
}


@pytest.mark.parametrize(("events", "parts"), HALVES.values(), ids=HALVES.keys())
def test_half_a_character_waits_for_its_other_half_and_never_fails_a_run(
    events: list[bytes], parts: list[Part]
) -> None:
    *told, last = parse(*events, END)
    assert isinstance(last, Finished)
    assert told == parts


def test_half_a_character_in_an_answer_that_is_not_streamed_becomes_a_replacement() -> None:
    parts: list[Part] = []
    message = {"role": "assistant", "content": "a\ud83d"}
    AnswerReader().whole(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode(), parts)
    assert parts[:-1] == [Text("a"), Text("\ufffd")]


def test_half_a_character_in_an_error_can_be_shown() -> None:
    with pytest.raises(UpstreamFailed) as caught:
        parse(b"data: " + json.dumps({"error": {"message": "no \ud83d"}}).encode() + b"\n\n")
    assert caught.value.message.encode()


@pytest.mark.parametrize("line", [b'data: {"choices":[\\ud83d}\n\n', b'data: {"a":"\\ud83d\n\n', b"data: \xed\xa0\n\n"])
def test_garbage_with_half_a_character_is_garbage(line: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="cannot be read"):
        parse(line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Incorrect key: sk-abc*******wxyz. Try another.", "Incorrect key: [removed] Try another."),
        ("sent authorization: Bearer abc, refused", "sent authorization: Bearer [removed] refused"),
        ("bearer bearer secret", "bearer [removed] [removed]"),
        ('{"auth":"eyJhbGciOiJIUzI1NiJ9.e30"} is old', "[removed] is old"),
        ("we know ours12 and 3456, and no other", "we know [removed] and [removed] and no other"),
        ("  plain \n words ", "plain words"),
    ],
)
def test_a_text_of_the_upstream_shows_nothing_that_looks_like_a_credential(text: str, shown: str) -> None:
    assert redacted(text, "ours12-0000-3456") == shown


@pytest.mark.parametrize("part", ["a-", "sk-", "key_", "*", "bearer ", " ", "eyJ", "="])
def test_a_long_text_of_the_upstream_costs_time_in_proportion_to_its_length(part: str) -> None:
    """16 kB of "a-" took seconds before, and the time grew with the square."""
    assert len(redacted(part * 300_000, "ours12-0000-3456")) <= EXCERPT_CHARS
