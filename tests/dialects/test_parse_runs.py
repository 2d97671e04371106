"""A Runs request as a Spec (D1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninelives.core.admission import Accept, Found, decide
from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.runs.parse import parse


def context(**headers: str) -> Context:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Context("alice", named, Profile("hermes-agent"), b"secret")


def parsed(caller: Context | None = None, **fields: Any) -> ParsedRequest:
    return parse(msgspec.json.encode({"input": "Hi", **fields}), caller or context(), 10)


def refused(caller: Context | None = None, **fields: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parsed(caller, **fields)
    return caught.value


def test_system_messages_of_the_history_become_layers_of_the_prompt() -> None:
    """D1: they are not dropped."""
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "And kind."},
        {"role": "assistant", "content": "Hello"},
    ]
    spec = parsed(instructions="First of all.", conversation_history=history).spec
    assert spec.instructions == "First of all.\n\nBe brief.\n\nAnd kind."
    assert [message["role"] for message in spec.history] == ["user", "assistant"]


USER, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
MORE = {"role": "user", "content": "More"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", None),
        ("input", []),
        ("input", 3),
        ("input", [{"role": "robot", "content": "x"}]),
        ("instructions", 3),
        ("session_id", 3),
        ("session_id", "a b"),
        ("session_id", ""),
        ("previous_response_id", 3),
        ("conversation_history", "x"),
        ("conversation_history", [3]),
        ("conversation_history", [{"content": "no role"}]),
        ("model", 3),
        ("metadata", {"a": 1}),
    ],
    ids=str,
)
def test_a_wrong_value_is_400_and_names_its_field(field: str, value: Any) -> None:
    """A7, D1."""
    error = refused(**{field: value})
    assert (error.status, error.param) == (400, field)


def test_a_run_is_stored_and_goes_on_by_itself() -> None:
    """D1: 202 at once; unknown fields are ignored."""
    spec = parsed(stream=True, store=False, new=1).spec
    assert (spec.dialect, spec.store, spec.background, spec.input) == ("runs", True, True, (USER,))


def test_the_session_of_the_body_wins_over_the_header() -> None:
    """D1."""
    assert parsed(context(x_hermes_session_id="h"), session_id="b").asked.session == "b"
    assert parsed(context(x_hermes_session_id="h")).asked.session == "h"
    assert parsed().asked.session is None


def test_conversation_history_comes_before_the_input() -> None:
    """D1; the earlier messages of an input list are history too, and prompts are layered."""
    spec = parsed(conversation_history=[USER, HELLO], input="More", instructions="Be brief").spec
    assert (spec.history, spec.input, spec.instructions) == ((USER, HELLO), (MORE,), "Be brief")
    spec = parsed(input=[{"role": "system", "content": "Be kind"}, USER, HELLO, MORE]).spec
    assert (spec.history, spec.input, spec.instructions) == ((USER, HELLO), (MORE,), "Be kind")


def test_a_session_gives_the_history_instead() -> None:
    """D2."""
    found = parsed(session_id="s", input=[USER, HELLO, MORE])
    assert (found.spec.history, found.spec.input) == ((), (MORE,))
    assert parsed(session_id="s", conversation_history=[]).asked.history_given is False


def test_d1_a_given_history_wins_over_that_of_the_session_which_still_gets_the_turn() -> None:
    found = parsed(session_id="s", conversation_history=[USER, HELLO], input="and now?")
    assert found.spec.history == (USER, HELLO)
    assert (found.asked.session, found.asked.history_given) == ("s", True)
    decided = decide(found.asked, Found(session_turns=3))
    assert isinstance(decided, Accept)
    assert (decided.resolved.session, decided.resolved.session_turns, decided.resolved.remember) == ("s", None, True)


def test_d1_parts_of_chat_completions_are_read_in_an_input() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    spec = parsed(input=[{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]).spec
    assert spec.input[0]["content"] == [{"type": "text", "text": "look"}, image]
    assert refused(input=[{"role": "user", "content": [{"type": "image_url"}]}]).status == 400


@pytest.mark.parametrize("shown", ["run_0123456789ab", "resp_0123456789ab", "chatcmpl-0123456789ab"])
def test_any_of_a_runs_ids_names_the_one_before(shown: str) -> None:
    """G7."""
    assert parsed(previous_response_id=shown).asked.previous == "0123456789ab"


def test_an_unknown_previous_run_is_404() -> None:
    """C6."""
    error = refused(previous_response_id="nope")
    assert (error.status, error.param, error.message) == (404, "previous_response_id", "Response not found: nope")


def test_an_idempotency_key_works() -> None:
    """D1: the same request gives the same fingerprint, in any spelling of its defaults."""
    one = parsed(context(idempotency_key="k"))
    assert one.asked.key == "k"
    again = parsed(context(idempotency_key="k"), metadata={}, conversation_history=[], instructions=None)
    assert one.asked.fingerprint == again.asked.fingerprint
    assert one.asked.fingerprint != parsed(input="Ho").asked.fingerprint


def test_a2_an_unknown_model_is_answered_by_the_default_profile() -> None:
    assert parsed(model="default").spec.model == "hermes-agent"
