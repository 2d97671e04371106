"""Input items: the forms in which a Responses input may come, and the messages that they become."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import body
from ninelives.dialects.responses.parse import parse
from tests.journals import Pen


def parsed(**fields: Any) -> ParsedRequest:
    context = Context("alice", {}, Profile("hermes-agent"), b"secret")
    return parse(msgspec.json.encode({"input": "Hi", **fields}), context, 10)


def said(role: str, text: Any, **extra: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **extra}


def messages(*items: dict[str, Any]) -> list[dict[str, object]]:
    return list(parsed(input=list(items)).spec.input)


def test_plain_text_is_a_user_message() -> None:
    """C1."""
    made = parsed(input="Hi")
    assert made.spec.input == (said("user", "Hi"),)
    assert made.spec.items == (said("user", [{"type": "input_text", "text": "Hi"}], type="message"),)


def test_easy_messages_and_messages_with_parts() -> None:
    """C1: without a type; content text or parts."""
    assert messages(said("user", "Hi")) == [said("user", "Hi")]
    assert messages(said("user", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])) == [
        said("user", "a\nb")
    ]
    assert messages(said("assistant", [{"type": "output_text", "text": "a", "annotations": []}], type="message")) == [
        said("assistant", "a")
    ]
    assert messages(said("assistant", [{"type": "refusal", "refusal": "No"}])) == [said("assistant", "No")]


def test_images_and_files_pass_through() -> None:
    """B1, C1."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}
    (message,) = messages(said("user", [{"type": "input_text", "text": "See"}, image, file]))
    assert message["content"] == [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
    ]
    (plain,) = messages(said("user", [{"type": "input_image", "image_url": "https://x/y.png"}]))
    assert plain["content"] == [{"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "auto"}}]


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
TOLD = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("42", "42"),
        ([{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}], "4\n2"),
        ([{"type": "input_image", "image_url": "x"}], ""),
        ("", ""),
    ],
)
def test_a_function_call_output_is_text_or_parts(output: Any, text: str) -> None:
    """C9: Open WebUI sends text back, frames have parts."""
    assert messages(CALL, {"type": "function_call_output", "call_id": "c1", "output": output}) == [
        {"role": "assistant", "content": None, "tool_calls": [TOLD]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]


def test_calls_made_in_one_breath_are_one_message_with_the_text_before_them() -> None:
    """As the upstream wrote them; some refuse two assistant messages in a row."""
    other = {**CALL, "call_id": "c2"}
    results = [{"type": "function_call_output", "call_id": c, "output": c} for c in ("c2", "c1")]
    assert messages(said("assistant", "Look."), CALL, other, *results, {**CALL, "call_id": "c3"}) == [
        {"role": "assistant", "content": "Look.", "tool_calls": [TOLD, {**TOLD, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "c2"},
        {"role": "tool", "tool_call_id": "c1", "content": "c1"},
        {"role": "assistant", "content": None, "tool_calls": [{**TOLD, "id": "c3"}]},
    ]


def test_an_mcp_call_that_the_server_gave_out_comes_back_as_call_and_result() -> None:
    """C9."""
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": "x", "name": "f", "arguments": "{}", "output": "42"}
    assert messages(call) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "mcp_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "mcp_1", "content": "42"},
    ]


@pytest.mark.parametrize("kind", ["reasoning", "web_search_call", "something_new"])
def test_other_items_are_ignored(kind: str) -> None:
    """New clients send new ones."""
    assert messages({"type": kind, "id": "x", "summary": []}, said("user", "Hi")) == [said("user", "Hi")]


def test_system_and_developer_items_stay_in_their_place_and_are_no_instructions() -> None:
    """C6: instructions are the request's own; items are inherited along a chain."""
    given = [said("system", "Be kind"), said("user", "Hi"), said("developer", "?")]
    made = parsed(instructions="Be brief", input=given)
    assert made.spec.instructions == "Be brief"
    assert made.spec.input == (said("system", "Be kind"), said("user", "Hi"), said("system", "?"))
    assert [item["role"] for item in made.spec.items] == ["system", "user", "developer"]
    shown = body.head("r", 0, made.spec, Pen().state.facts.accepted.resolved)
    assert shown.instructions == "Be brief"
    assert parsed().spec.instructions is None


def test_input_items_are_listed_with_ids_in_their_full_form() -> None:
    """C8."""
    made = parsed(input=[said("user", "Hi"), said("assistant", "Hello"), {**CALL, "id": "fc_1"}])
    state = Pen(made.spec).state
    assert body.input_items(state) == [
        {
            "id": "item_0123456789abcdef000000",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi"}],
        },
        {
            "id": "item_0123456789abcdef000001",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
        },
        {**CALL, "id": "fc_1", "status": "completed"},
    ]
