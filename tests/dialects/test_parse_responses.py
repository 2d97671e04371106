"""A Responses request as a Spec: every field and every refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import body
from ninelives.dialects.responses.parse import parse
from tests.dialects.transcript import json_of
from tests.journals import Pen


def context(profile: Profile | None = None, **headers: str) -> Context:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Context("alice", named, profile or Profile("hermes-agent"), b"secret")


def parsed(caller: Context | None = None, **fields: Any) -> ParsedRequest:
    return parse(msgspec.json.encode({"input": "Hi", **fields}), caller or context(), 10)


def refused(caller: Context | None = None, **fields: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parsed(caller, **fields)
    return caught.value


def said(role: str, text: Any, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **extra}


WRONG: list[tuple[str, Any]] = [
    ("input", None),
    ("input", []),
    ("input", 3),
    ("input", ["Hi"]),
    ("input", [{"content": "no role"}]),
    ("input", [{"role": "robot", "content": "x"}]),
    ("input", [{"role": "user"}]),
    ("input", [{"role": "user", "content": 3}]),
    ("input", [{"role": "user", "content": [{"text": "no type"}]}]),
    ("input", [{"role": "user", "content": ["text"]}]),
    ("input", [{"type": 3}]),
    ("input", [said("user", [{"type": "input_text", "text": "x"}] * 11)]),
    ("input", [said("user", [{"type": "input_image", "file_id": "f"}])]),
    ("input", [{"type": "function_call", "name": "f", "arguments": "{}"}]),
    ("input", [{"type": "function_call", "call_id": "c", "arguments": "{}"}]),
    ("input", [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]),
    ("input", [{"type": "function_call_output", "output": "x"}]),
    ("input", [{"type": "function_call_output", "call_id": "", "output": "x"}]),
    ("input", [{"type": "function_call_output", "call_id": "c"}]),
    ("input", [{"type": "function_call_output", "call_id": "c", "output": 3}]),
    ("model", 3),
    ("instructions", ["x"]),
    ("conversation", 3),
    ("conversation", ""),
    ("conversation", {}),
    ("conversation", {"id": 3}),
    ("conversation", "x" * 257),
    ("conversation", "a\nb"),
    ("previous_response_id", 3),
    ("store", "no"),
    ("stream", 1),
    ("background", "no"),
    ("tools", "x"),
    ("tools", [{"type": "function"}]),
    ("tool_choice", 3),
    ("tool_choice", "maybe"),
    ("parallel_tool_calls", 1),
    ("max_output_tokens", 15),
    ("max_output_tokens", "x"),
    ("max_tool_calls", 0),
    ("temperature", 2.1),
    ("temperature", -1),
    ("top_p", 2),
    ("top_logprobs", 21),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("text", "json"),
    ("text", {"format": "json"}),
    ("text", {"format": {"type": "xml"}}),
    ("text", {"format": {"type": "json_schema"}}),
    ("reasoning", "high"),
    ("reasoning", {"effort": 3}),
    ("truncation", "middle"),
    ("metadata", {"a": 1}),
    ("metadata", {"a" * 65: "x"}),
    ("metadata", {str(n): "x" for n in range(17)}),
    ("include", "x"),
    ("include", [1]),
    ("prompt_cache_key", "x" * 65),
    ("safety_identifier", "x" * 129),
    ("user", 3),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: str(value)[:50])
def test_a_wrong_value_is_400_and_names_its_field(field: str, value: Any) -> None:
    """A7, C1."""
    error = refused(**{field: value})
    assert (error.status, error.param) == (400, field)


def test_unknown_fields_are_ignored() -> None:
    """A7: clients send new ones every month."""
    assert parsed(moderation={}, access_programs=[], new=1).spec == parsed().spec


# store, keys, background


def test_store_defaults_to_true() -> None:
    """C2."""
    assert parsed().spec.store and parsed(store=None).spec.store
    assert not parsed(store=False).spec.store


def test_a_key_needs_store() -> None:
    """C5."""
    error = refused(context(idempotency_key="k"), store=False)
    assert (error.status, error.code, error.param) == (400, "idempotency_requires_store", "store")
    assert parsed(context(idempotency_key="k")).asked.key == "k"


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
def test_a_key_is_visible_ascii(key: str) -> None:
    """C5."""
    assert refused(context(idempotency_key=key)).code == "invalid_idempotency_key"


def test_background_needs_store() -> None:
    """C2."""
    error = refused(background=True, store=False)
    assert (error.status, error.code, error.param) == (400, "background_requires_store", "background")
    assert parsed(background=True).spec.background and not parsed().spec.background


# chain, conversation, session


def test_previous_response_id_names_a_run() -> None:
    """C6, G7."""
    assert parsed(previous_response_id="resp_0123456789ab").asked.previous == "0123456789ab"


@pytest.mark.parametrize("shown", ["", "0123456789ab", "run_0123456789ab", "resp_", "resp_x/y", "resp_" + "a" * 65])
def test_a_previous_response_id_of_another_shape_is_404_with_the_id_in_the_message(shown: str) -> None:
    """C6, G7."""
    error = refused(previous_response_id=shown)
    assert (error.status, error.code, error.param) == (404, "response_not_found", "previous_response_id")
    assert error.message == f"Response not found: {shown}"


def test_a_chain_and_a_conversation_exclude_each_other() -> None:
    """C6."""
    assert refused(previous_response_id="resp_0123456789ab", conversation="trip").status == 400


@pytest.mark.parametrize(
    ("given", "named"),
    [(None, None), ("trip", "trip"), ("nach Köln", "nach Köln"), ("conv_1", "conv_1"), ({"id": "conv_1"}, "conv_1")],
)
def test_the_forms_of_a_conversation(given: Any, named: str | None) -> None:
    """C7: a name, an id or {id}."""
    assert parsed(conversation=given).asked.conversation == named


def test_a_session_gives_the_history_and_the_body_only_the_new_turn() -> None:
    """D2."""
    given = [said("user", "Hi"), said("assistant", "Hello"), said("user", "More")]
    made = parsed(context(x_hermes_session_id="s"), input=given)
    assert (made.asked.session, made.spec.input) == ("s", (said("user", "More"),))
    assert parsed(input=given).spec.input == tuple(given)


def test_a_bad_session_is_400() -> None:
    """D2."""
    assert refused(context(x_hermes_session_id="a b")).code == "invalid_session_id"


# what reaches the upstream, what is echoed


def test_sampling_parameters_reach_the_upstream() -> None:
    """C1."""
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "prompt_cache_key": "k",
        "user": "u",
    }
    made = parsed(**fields, reasoning={"effort": "low"}, text={"format": {"type": "json_object"}}).spec
    assert made.sampling == {**fields, "reasoning_effort": "low", "response_format": {"type": "json_object"}}
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    assert parsed(text={"format": schema}).spec.sampling == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
        }
    }
    assert parsed(text={"format": {"type": "text"}}).spec.sampling == {}
    made = parsed(max_output_tokens=16, max_tool_calls=3).spec
    assert (made.max_output_tokens, made.max_tool_calls) == (16, 3)


def shown(**fields: Any) -> Any:
    return json_of(body.head("r", 0, parsed(**fields).spec, Pen().state.facts.accepted.resolved))


def test_the_response_object_has_every_field_with_its_default() -> None:
    """C1: Open Responses requires all of them, numbers not null."""
    assert shown() == {
        "id": "resp_r",
        "object": "response",
        "created_at": 0,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "conversation": None,
        "error": None,
        "frequency_penalty": 0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "hermes-agent",
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


@pytest.mark.parametrize(
    ("field", "given", "echoed"),
    [
        ("temperature", 0.5, 0.5),
        ("metadata", {"a": "b"}, {"a": "b"}),
        ("truncation", "auto", "auto"),
        ("service_tier", "auto", "default"),
        ("service_tier", "flex", "flex"),
        ("reasoning", {"effort": "low"}, {"effort": "low", "summary": None}),
        ("text", {"verbosity": "low"}, {"format": {"type": "text"}, "verbosity": "low"}),
        ("text", {"format": None}, {"format": {"type": "text"}}),
        ("tool_choice", "none", "none"),
        ("store", False, False),
        ("safety_identifier", "s", "s"),
        (
            "tools",
            [{"type": "function", "name": "f"}],
            [{"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}],
        ),
    ],
)
def test_what_was_sent_is_echoed(field: str, given: Any, echoed: Any) -> None:
    """C1."""
    assert shown(**{field: given})[field] == echoed


# style of tool items


STYLES = [
    ({}, "auto", "function_call"),
    ({"user_agent": "curl/8.5"}, "auto", "function_call"),
    ({"user_agent": "Mozilla/5.0 (X11) Firefox/130"}, "auto", "function_call"),
    ({"user_agent": "Python/3.11 aiohttp/3.9"}, "auto", "function_call"),
    ({"user_agent": "Kai/1.0 subagents/2"}, "auto", "function_call"),
    ({"x_stainless_lang": "python"}, "auto", "mcp_call"),
    ({"user_agent": "OpenAI/Python 3.49.0"}, "auto", "mcp_call"),
    ({"user_agent": "AsyncOpenAI/Python 3.49.0", "x_stainless_async": "async:asyncio"}, "auto", "mcp_call"),
    ({"user_agent": "ai/6.0.326 ai-sdk/provider-utils/4.0"}, "auto", "mcp_call"),
    ({"user_agent": "ai-sdk/openai/3.0.139"}, "auto", "mcp_call"),
    ({"user_agent": "codex_cli_rs/0.40 (Linux)"}, "auto", "mcp_call"),
    ({"user_agent": "Agents/Python 0.3"}, "auto", "mcp_call"),
    ({"x_stainless_lang": "python", "x_tool_items": "function_call"}, "auto", "function_call"),
    ({"x_tool_items": "mcp_call"}, "function_call", "mcp_call"),
    ({"x_stainless_lang": "python", "x_tool_items": "auto"}, "function_call", "mcp_call"),
    ({"x_stainless_lang": "python"}, "function_call", "function_call"),
    ({}, "mcp_call", "mcp_call"),
]


@pytest.mark.parametrize(("headers", "setting", "style"), STYLES)
def test_the_style_of_tool_items_by_header_then_setting_then_caller(
    headers: dict[str, str], setting: str, style: str
) -> None:
    """C9: auto gives mcp_call to callers that would try to run a function_call themselves."""
    assert parsed(context(Profile("hermes-agent", tool_items=setting), **headers)).spec.tool_items == style


def test_an_unknown_style_is_400() -> None:
    """A7."""
    assert refused(context(x_tool_items="xml")).code == "invalid_tool_items"


@pytest.mark.parametrize(("sent", "kept"), [({}, "disabled"), ({"truncation": "auto"}, "auto")])
def test_truncation_left_out_is_disabled_for_the_agent_too(sent: dict[str, str], kept: str) -> None:
    assert parsed(**sent).spec.echo["truncation"] == kept
