"""When two requests are the same (G4)."""

from __future__ import annotations

import msgspec
import pytest

from ninelives.core.spec import FINGERPRINT_VERSION, fingerprint
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.chat import parse as chat
from ninelives.dialects.responses import parse as responses

CONTEXT = Context("alice", {"idempotency-key": "k"}, Profile("hermes-agent"), b"secret")


def of_chat(context: Context = CONTEXT, **fields: object) -> str:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return chat.parse(msgspec.json.encode(body), context, 100).asked.fingerprint


def of_responses(context: Context = CONTEXT, **fields: object) -> str:
    return responses.parse(msgspec.json.encode({"input": "Hi", **fields}), context, 100).asked.fingerprint


def with_headers(**headers: str) -> Context:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Context("alice", {"idempotency-key": "k", **named}, Profile("hermes-agent"), b"secret")


def test_the_known_values() -> None:
    """R16: these are stored with keys; a change of one needs a new version, and the old one stays computable."""
    assert FINGERPRINT_VERSION == 1
    assert fingerprint("chat", {}, None) == "1:3ca25df114e26ecd4e355f9e8ba2319a1ff40dccbfdce2de9eec4462db9693c8"
    assert of_responses() == "1:cbdbda324039aef985ca507c2423633ec6995978ccddb7a4a996c39f64b74de1"
    assert of_chat(temperature=0.5) == "1:e6dbd16eb52bb8b9269711f87f2456c004e83b4791b1bc0b3d0d364fa5934467"


def test_the_order_of_fields_does_not_count() -> None:
    """At any depth."""
    one = fingerprint("chat", {"a": {"x": 1, "y": [1, 2]}, "b": 2}, None)
    assert one == fingerprint("chat", {"b": 2, "a": {"y": [1, 2], "x": 1}}, None)
    assert one != fingerprint("chat", {"b": 2, "a": {"y": [2, 1], "x": 1}}, None)


def test_session_and_dialect_count() -> None:
    """G4: the same key on another endpoint, or in another session, is another request."""
    values = {fingerprint(dialect, {}, session) for dialect in ("chat", "responses", "runs") for session in (None, "s")}
    assert len(values) == 6
    assert of_chat() != of_chat(with_headers(x_hermes_session_id="s"))
    assert of_responses() != of_responses(with_headers(x_hermes_session_id="s"))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"temperature": 1},
        {"temperature": 1.0},
        {"top_p": 1},
        {"frequency_penalty": 0},
        {"presence_penalty": 0.0},
        {"logprobs": False},
        {"parallel_tool_calls": True},
        {"tool_choice": "auto"},
        {"stop": None},
        {"metadata": {}},
        {"tools": []},
        {"logit_bias": {}},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"stream": True},
        {"stream": False},
        {"stream_options": {"include_usage": True}},
        {"some_new_field": 1},
    ],
    ids=str,
)
def test_defaults_and_delivery_are_left_out_on_chat(fields: dict[str, object]) -> None:
    """G4."""
    assert of_chat(**fields) == of_chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"background": False},
        {"parallel_tool_calls": True},
        {"temperature": 1},
        {"top_p": 1.0},
        {"top_logprobs": 0},
        {"presence_penalty": 0},
        {"frequency_penalty": 0},
        {"truncation": "disabled"},
        {"tool_choice": "auto"},
        {"service_tier": "auto"},
        {"text": {"format": {"type": "text"}}},
        {"metadata": {}},
        {"include": []},
        {"tools": []},
        {"instructions": None},
        {"stream": True},
        {"stream_options": {"include_obfuscation": False}},
        {"some_new_field": 1},
    ],
    ids=str,
)
def test_defaults_and_delivery_are_left_out_on_responses(fields: dict[str, object]) -> None:
    """G4."""
    assert of_responses(**fields) == of_responses()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"store": True},
        {"stop": "x"},
        {"max_tokens": 5},
        {"model": "hermes-agent"},  # without a model the fingerprint is that of earlier releases
        {"seed": 1},
        {"user": "u"},
        {"messages": [{"role": "user", "content": "Ho"}]},
        {"metadata": {"a": "b"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
    ids=str,
)
def test_every_other_field_counts_on_chat(fields: dict[str, object]) -> None:
    """G4."""
    assert of_chat(**fields) != of_chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "Ho"},
        {"instructions": "Be brief"},
        {"temperature": 0},
        {"max_output_tokens": 16},
        {"background": True},
        {"previous_response_id": "resp_aaaaaaaaaaaa"},
        {"conversation": "trip"},
        {"text": {"format": {"type": "json_object"}}},
    ],
    ids=str,
)
def test_every_other_field_counts_on_responses(fields: dict[str, object]) -> None:
    """G4."""
    assert of_responses(**fields) != of_responses()


def test_what_was_recognised_about_the_client_does_not_count() -> None:
    """G4: a retry by another library is the same request."""
    sdk = with_headers(x_stainless_lang="js", x_stainless_package_version="4.1", user_agent="OpenAI/JS 4.1")
    assert of_chat(sdk) == of_chat(with_headers(x_tool_progress="bare")) == of_chat()
    assert of_responses(sdk) == of_responses(with_headers(x_tool_items="mcp_call")) == of_responses()
