"""A Messages request as a Spec: fields, blocks that come back, tools, and the estimate of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.messages.body import content
from ninelives.dialects.messages.parse import IMAGE_TOKENS, count, parse
from ninelives.dialects.parsed import ParsedRequest
from tests.journals import Pen, quick, spec_of

CONTEXT = Context("ann", {}, Profile("hermes-agent"), b"secret")
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}


def read(context: Context = CONTEXT, **fields: Any) -> ParsedRequest:
    given = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse(json.dumps({k: v for k, v in given.items() if v is not None}).encode(), context, 100)


def refused(**fields: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        read(**fields)
    return caught.value


def chat_of(*messages: tuple[str, Any]) -> list[dict[str, Any]]:
    """The chat messages of a conversation."""
    spec = read(messages=[{"role": role, "content": shown} for role, shown in messages]).spec
    return [*spec.history, *spec.input]


def test_the_fields_reach_their_places() -> None:
    spec = read(
        model="hermes-agent",
        system=[{"type": "text", "text": "One.", "cache_control": {}}, {"type": "text", "text": "Two."}],
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        metadata={"user_id": "u1"},
        stream=True,
        unheard_of={"a": 1},
    ).spec
    assert (spec.dialect, spec.model, spec.instructions) == ("messages", "hermes-agent", "One.\n\nTwo.")
    assert spec.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["END"]}
    assert (spec.max_output_tokens, spec.metadata, spec.store) == (9, {"user_id": "u1"}, False)
    assert spec.input == ({"role": "user", "content": "Hi"},)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url"}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 101}]}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"tools": [{"name": "x"}]}, "tools"),
        ({"tools": [{"input_schema": {}}]}, "tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"system": [{"type": "text", "text": 1}]}, "system"),
        ({"thinking": "yes"}, "thinking"),
    ],
)
def test_a7_what_does_not_fit_is_400_and_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param), error.message


def test_a2_an_unknown_model_is_answered_by_the_default_profile_or_404() -> None:
    assert read(CONTEXT, model="claude-x").spec.model == "hermes-agent"
    strict = replace(CONTEXT, profile=Profile("hermes-agent", unknown_model="error"))
    with pytest.raises(ClientError) as caught:
        read(strict, model="claude-x")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"type": "auto"}, None),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_b5_tools_with_a_schema_are_the_callers_and_typed_ones_are_another_servers(choice: Any, kept: Any) -> None:
    typed = {"type": "web_search_20250305", "name": "web_search"}
    tools = [TOOL, {**TOOL, "type": "custom", "name": "two"}]
    spec = read(tools=tools, tool_choice=choice).spec
    inner = {"name": "weather", "description": "d", "parameters": TOOL["input_schema"]}
    assert spec.client_tools[0] == {"type": "function", "function": inner}
    assert len(spec.client_tools) == 2 and spec.tool_choice == kept
    ignoring = replace(CONTEXT, profile=Profile("hermes-agent", client_tools="ignore"))
    assert read(ignoring, tools=tools).spec.client_tools == ()
    with pytest.raises(ClientError, match=r"tools\[2\] is of type 'web_search_20250305'"):
        read(tools=[*tools, typed])
    claude = replace(CONTEXT, headers={"user-agent": "claude-cli/2.0.50 (external, cli)"})
    assert read(claude, tools=[*tools, typed]).spec.ignored_tools == ("web_search_20250305",), "G17"


def test_images_and_documents_become_chat_parts() -> None:
    url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    text = {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "BBBB"}}
    inner = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "in"}]}}
    (message,) = chat_of(("user", [{"type": "text", "text": "see"}, PNG, url, text, pdf, inner, {"type": "novelty"}]))
    assert message["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "text", "text": "t:\nplain"},
        {"type": "file", "file": {"filename": "document", "file_data": "data:application/pdf;base64,BBBB"}},
        {"type": "text", "text": "in"},
    ]


def test_a_client_tools_call_and_result_come_back_as_a_call_and_its_result() -> None:
    call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Köln"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}, PNG]}
    failed = {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True}
    said = [thought, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "I ask."}, call]
    told = chat_of(("user", "Hi"), ("assistant", said), ("user", [result, failed, {"type": "text", "text": "go on"}]))
    function = {"name": "weather", "arguments": '{"city":"Köln"}'}
    assert told == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I ask.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "Error: no"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "text", "text": "go on"},
            ],
        },
    ]


def test_what_the_server_gave_out_comes_back_as_the_history_it_was() -> None:
    """Clients resend the blocks as they got them: the model must read the same turn that it had."""
    pen = Pen(spec_of("messages", echo={"thinking": True}))
    one, two = pen.call("terminal", '{"command":"ls"}'), pen.call("read_file", '{"path":"a"}')
    pen.attempt().think("hm").text("I look.").settle(one, two).start(one, two)
    pen.finish(two, "A").finish(one, "no", is_error=True).text("Done.").settle().complete()
    told = chat_of(("user", "Hi"), ("assistant", content(pen.state)), ("user", "more"))
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [call["function"]["arguments"] for call in told[1]["tool_calls"]] == ['{"command":"ls"}', '{"path":"a"}']
    assert told[1]["content"] == "I look." and told[4] == {"role": "assistant", "content": "Done."}
    assert [(m["tool_call_id"], m["content"]) for m in told[2:4]] == [(one.id, "no"), (two.id, "A")]


def test_another_servers_blocks_come_back_too_and_a_call_without_a_result_is_left_out() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    hits = [{"type": "web_search_result", "url": "u"}]
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": hits}
    lost = {"type": "mcp_tool_use", "id": "s2", "name": "gone", "input": {}}
    told = chat_of(("user", "Hi"), ("assistant", [search, found, lost, {"type": "text", "text": "ok"}]), ("user", "go"))
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "assistant", "user"]
    assert [call["id"] for call in told[1]["tool_calls"]] == ["s1"] and '"url":"u"' in told[2]["content"]


def test_d2_with_a_session_only_the_new_turn_counts() -> None:
    talk = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    spec = read(replace(CONTEXT, headers={"x-hermes-session-id": "s"}), messages=talk).spec
    assert spec.history == () and spec.input == ({"role": "user", "content": "c"},)
    assert read(messages=talk).spec.history == ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


def test_g4_the_same_request_has_one_fingerprint_streamed_or_not_and_defaults_left_out() -> None:
    plain = read().asked.fingerprint
    assert read(stream=True, temperature=1, tools=[], tool_choice={"type": "auto"}).asked.fingerprint == plain
    assert read(temperature=0).asked.fingerprint != plain
    assert read(max_tokens=10).asked.fingerprint != plain


@pytest.mark.parametrize(("kind", "shown"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thoughts_are_asked_for_and_the_choice_is_in_the_spec(kind: str, shown: bool) -> None:
    """G1: whatever changes a frame is in the spec."""
    assert bool(read(thinking={"type": kind, "budget_tokens": 1024}).spec.echo) is shown


def test_tool_blocks_can_be_left_out() -> None:
    old = {"x-stainless-lang": "js", "x-stainless-package-version": "4.1.0"}
    assert read(replace(CONTEXT, headers=old)).spec.tool_progress == "compatible"
    assert read(replace(CONTEXT, headers={"x-tool-progress": "off"})).spec.tool_progress == "off"


def counted(**fields: Any) -> int:
    given = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return count(json.dumps(given).encode(), CONTEXT, 100)


def test_the_estimate_grows_with_system_messages_tools_and_pictures() -> None:
    plain = counted()
    assert 0 < plain < 30
    assert counted(system="x" * 400) >= plain + 100
    assert counted(tools=[TOOL]) > plain and counted(tools=[{"type": "web_search_20250305", "name": "w"}]) == plain
    big = {**PNG, "source": {**PNG["source"], "data": "A" * 100_000}}  # type: ignore[dict-item]
    pictured = counted(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}, big]}])
    assert plain + IMAGE_TOKENS <= pictured < plain + IMAGE_TOKENS + 30, "a picture's bytes are not text"


WORDS = ("type", "text", "role", "content", "source", "id", "name", "input", "tool_use_id", "data", "url", "title")
KINDS = ("text", "image", "document", "tool_use", "tool_result", "mcp_tool_use", "mcp_tool_result", "search_result")
KINDS += ("base64", "url", "content", "user", "assistant", "auto", "tool", "x_tool_result", "")
leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(KINDS) | st.text(max_size=4)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)
)
blocks = st.dictionaries(st.sampled_from(WORDS), anything).map(lambda block: {"type": "text", **block})
talks = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(("user", "assistant", "system")), "content": st.lists(blocks)})
)


@quick
@given(talks | anything, anything, anything, anything)
def test_a7_whatever_comes_is_read_or_refused(messages: Any, system: Any, tools: Any, choice: Any) -> None:
    """No other exception: it would be a 500."""
    raw = json.dumps({"max_tokens": 1, "messages": messages, "system": system, "tools": tools, "tool_choice": choice})
    for reading in (parse, count):
        try:
            reading(raw.encode(), CONTEXT, 100)
        except ClientError as error:
            assert error.status == 400 and error.param
