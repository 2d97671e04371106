"""What fits into a model's window: one test per rule."""

from __future__ import annotations

import msgspec
import pytest

from ninelives.core.context import (
    GONE,
    SHOWN,
    TAIL,
    estimated_tokens,
    fit,
    output_path,
    shortened,
)
from ninelives.core.errors import AgentError
from ninelives.core.history import shown_to_model
from ninelives.core.spec import Message


def say(role: str, text: str, **more: object) -> Message:
    return {"role": role, "content": text, **more}


SYSTEM = say("system", "s" * 40)
CALL = say("assistant", "", tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}])
RESULT = say("tool", "r" * 4000, tool_call_id="c")
LAST = say("user", "l" * 40)
TALK = [SYSTEM, say("user", "u" * 400), CALL, RESULT, say("assistant", "a" * 400), LAST]


def test_what_fits_is_sent_as_it_is() -> None:
    """The very same list."""
    assert fit(TALK, estimated_tokens(TALK), "disabled") is TALK


def test_what_does_not_fit_is_refused_unless_truncation_is_auto() -> None:
    """C1: truncation disabled is the default."""
    with pytest.raises(AgentError) as caught:
        fit(TALK, estimated_tokens(TALK) - 1, "disabled")
    assert (caught.value.code, caught.value.status) == ("context_length_exceeded", 400)


def test_the_oldest_tool_outputs_give_way_first() -> None:
    """They stay as calls with a word in place of the output."""
    kept = fit(TALK, estimated_tokens(TALK) - 1, "auto")
    assert [message["role"] for message in kept] == [message["role"] for message in TALK]
    assert kept[3]["content"] == GONE and kept[3]["tool_call_id"] == "c"
    assert RESULT["content"] == "r" * 4000, "the caller's own messages are not touched"


def test_then_the_oldest_turns_as_a_whole() -> None:
    """No call loses its result; prompts and the last turn stay."""
    assert fit(TALK, estimated_tokens([SYSTEM, LAST]) + 10, "auto") == (SYSTEM, LAST)


def test_the_last_turn_is_never_cut() -> None:
    """Its own tool outputs neither."""
    talk = [SYSTEM, say("user", "u"), CALL, RESULT]
    with pytest.raises(AgentError, match="last turn alone"):
        fit(talk, 100, "auto")


def test_a_long_conversation_is_measured_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: chains have thousands of turns; each message is encoded a few times, not once per other message."""
    turn = (say("user", "u" * 40), CALL, RESULT, say("assistant", "a"))
    talk = [SYSTEM, *(message for _ in range(400) for message in turn), LAST]
    encoded = 0

    def counting(message: object) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(message)

    encode = msgspec.json.encode
    monkeypatch.setattr(msgspec.json, "encode", counting)
    kept = fit(talk, 2000, "auto")
    assert encoded <= 5 * len(talk)
    assert kept[0] == SYSTEM and kept[-1] == LAST and estimated_tokens(kept) <= 2000


def test_short_tool_outputs_are_left_alone() -> None:
    """A word in place of them would be longer."""
    short = say("tool", "ok", tool_call_id="c")
    talk = [SYSTEM, say("user", "u"), CALL, short, RESULT, say("assistant", "a"), LAST]
    kept = fit(talk, estimated_tokens(talk) - 10, "auto")
    assert kept[3] == short and kept[4]["content"] == GONE


def test_a_long_output_is_shown_by_its_ends_with_a_pointer() -> None:
    """The journal keeps all of it."""
    edge = "x" * SHOWN
    assert shown_to_model("c", edge) == edge
    shown = shown_to_model("c", edge + "y")
    assert output_path("c") in shown and "1 characters left out" in shown


@pytest.mark.parametrize("extra", [1, 10_000_000])
def test_a_long_output_without_a_file_is_shortened_for_good(extra: int) -> None:
    """B6: a run in memory leaves no file."""
    output = "a" * SHOWN + "z" * extra
    short = shortened(output)
    assert shown_to_model("c", short) == short
    assert short.startswith("aaa") and short.endswith("z") and "read_file" not in short
    left_out = int(short.partition("[... ")[2].partition(" ")[0])
    assert short.count("a" * 100) and left_out + len(short.split("\n")[0]) + TAIL == len(output)


def test_pictures_are_told_from_texts_by_their_type_and_never_compared_with_each_other() -> None:
    """Two thousand pictures in one message cost two seconds when each part was looked for among them."""

    class Part(dict[str, object]):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Part.compared += 1
            return super().__eq__(other)

        __hash__ = None  # type: ignore[assignment]

    parts = [Part(type="image_url", image_url={"url": f"data:{n}"}) for n in range(50)]
    content = [*parts, {"type": "text", "text": "what are these?"}]
    assert 50_000 < estimated_tokens([{"role": "user", "content": content}]) < 50_100
    assert Part.compared == 0
