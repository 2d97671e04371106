"""The legacy Completions API: a chat with one message, in another spelling (G17)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninelives.core import events as e
from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.completions import body
from ninelives.dialects.completions.frames import CompletionsProjection
from ninelives.dialects.completions.parse import parse
from ninelives.dialects.parsed import ParsedRequest
from tests.dialects.test_golden import SCENARIOS
from tests.dialects.transcript import follow, json_of, read, replay
from tests.journals import Pen, spec_of


def parsed(**fields: Any) -> ParsedRequest:
    profile = fields.pop("profile", Profile("hermes-agent"))
    caller = Context("ann", fields.pop("headers", {}), profile, b"secret")
    return parse(msgspec.json.encode({"prompt": "Hi", **fields}), caller, 10)


def test_the_prompt_is_the_one_message_of_a_chat() -> None:
    made = parsed(temperature=0.5, max_tokens=7, stop=["x"], stream=True, stream_options={"include_usage": True})
    assert made.spec.input == ({"role": "user", "content": "Hi"},) and made.spec.dialect == "completions"
    assert made.spec.sampling == {"temperature": 0.5, "stop": ["x"]} and made.spec.max_output_tokens == 7
    assert made.stream and made.spec.include_usage and made.spec.kept == "hours"
    assert (
        parsed(prompt=["Hi"]).asked.fingerprint
        == parsed().asked.fingerprint
        == parsed(n=1, echo=False).asked.fingerprint
    )
    assert parsed(headers={"idempotency-key": "k"}).spec.kept == "stored"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "missing_required_parameter", "prompt"),
    ({"prompt": ""}, "unsupported_value", "prompt"),
    ({"prompt": []}, "unsupported_value", "prompt"),
    ({"prompt": ["a", "b"]}, "unsupported_value", "prompt"),
    ({"prompt": [1, 2]}, "unsupported_value", "prompt"),
    ({"prompt": [[1, 2]]}, "unsupported_value", "prompt"),
    ({"prompt": {}}, "invalid_value", "prompt"),
    ({"n": 2}, "unsupported_value", "n"),
    ({"best_of": 3}, "unsupported_value", "best_of"),
    ({"echo": True}, "unsupported_parameter", "echo"),
    ({"suffix": "end"}, "unsupported_parameter", "suffix"),
    ({"logprobs": 0}, "unsupported_parameter", "logprobs"),
    ({"temperature": 3}, "invalid_value", "temperature"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED, ids=str)
def test_what_an_agent_cannot_honour_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ClientError) as caught:
        parsed(**fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)


def test_g4_the_fingerprint_has_the_profile_that_answers() -> None:
    def known(model: str) -> str:
        return parsed(model=model, profile=Profile("hermes-agent", unknown_model="default")).asked.fingerprint

    assert known("gpt-4o") == known("default") == known("hermes-agent")


def test_an_answer_to_a_question_is_a_prompt_like_any_other() -> None:
    assert parsed(prompt="approve ABCD1234").reply is None


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_stream_and_body_have_the_same_text_wherever_a_reader_joins(scenario: Any) -> None:
    pen = scenario(Pen(spec_of(dialect="completions", tool_progress="off", include_usage=True)))
    frames = read(b"".join(replay(CompletionsProjection(), pen.entries)))
    for edge in range(1, len(pen.entries)):
        before, after = follow(CompletionsProjection(), pen.entries, edge)
        live = read(b"".join((*before, *after)))
        if not any("error" in frame.data for frame in live if frame.data != "[DONE]"):
            assert _text(live) == _text(frames)
    assert not any(frame.event for frame in frames)
    end = pen.state.facts.end
    if isinstance(end, e.RunFailed | e.RunCancelled):
        assert frames[-1].data["error"]["message"]
        return
    whole = json_of(body.body(pen.state))
    assert whole["object"] == "text_completion" and whole["id"].startswith("cmpl-")
    assert frames[-1].data == "[DONE]" and frames[-2].data["usage"] == whole["usage"]
    pieces = [frame.data for frame in frames[:-2]]
    assert _text(frames) == whole["choices"][0]["text"]
    assert {(piece["id"], piece["object"], piece["created"], piece["model"]) for piece in pieces} == {
        (whole["id"], "text_completion", whole["created"], whole["model"])
    }
    ends = [piece["choices"][0]["finish_reason"] for piece in pieces]
    assert ends == [None] * (len(pieces) - 1) + [whole["choices"][0]["finish_reason"]]


def _text(frames: Any) -> str:
    pieces = [frame.data for frame in frames if frame.data != "[DONE]" and frame.data.get("choices")]
    return "".join(piece["choices"][0]["text"] for piece in pieces)
