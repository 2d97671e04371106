"""A Chat Completions request as a Spec: every field, every refusal."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.core.spec import fingerprint
from ninelives.dialects.asking import Context, Profile, sent_fields
from ninelives.dialects.chat import parse as chat_parse
from ninelives.dialects.chat.parse import ChatRequest, parse
from ninelives.dialects.parsed import ParsedRequest

USER = {"role": "user", "content": "Hi"}


def context(profile: Profile | None = None, **headers: str) -> Context:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Context("alice", named, profile or Profile("hermes-agent"), b"secret")


def parsed(caller: Context | None = None, **fields: Any) -> ParsedRequest:
    return parse(msgspec.json.encode({"messages": [USER], **fields}), caller or context(), 10)


def refused(caller: Context | None = None, raw: bytes | None = None, **fields: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse(raw or msgspec.json.encode({"messages": [USER], **fields}), caller or context(), 10)
    return caught.value


WRONG: list[tuple[str, Any]] = [
    ("messages", []),
    ("messages", "Hi"),
    ("messages", ["Hi"]),
    ("messages", [{"content": "no role"}]),
    ("messages", [{"role": "robot", "content": "x"}]),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": "user", "content": 3}]),
    ("messages", [{"role": "system", "content": None}]),
    ("messages", [{"role": "user", "content": ["text"]}]),
    ("messages", [{"role": "user", "content": [{"text": "no type"}]}]),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "x"}] * 11}]),
    ("messages", None),
    ("model", 3),
    ("stream", "yes"),
    ("stream_options", True),
    ("stream_options", {"include_usage": "yes"}),
    ("store", 1),
    ("metadata", {"a": 1}),
    ("metadata", {"a" * 65: "x"}),
    ("metadata", {"a": "x" * 513}),
    ("metadata", {str(n): "x" for n in range(17)}),
    ("n", 0),
    ("n", 2),
    ("n", "1"),
    ("n", True),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("top_p", 1.1),
    ("top_p", -1),
    ("frequency_penalty", 2.5),
    ("presence_penalty", -2.5),
    ("logit_bias", {"50256": "x"}),
    ("logprobs", 1),
    ("top_logprobs", 21),
    ("top_logprobs", -1),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("max_tokens", 2**40),
    ("max_completion_tokens", -1),
    ("seed", "x"),
    ("seed", 10**30),
    ("stop", 3),
    ("stop", [1]),
    ("response_format", "json"),
    ("reasoning_effort", 3),
    ("modalities", "text"),
    ("user", 3),
    ("tools", {}),
    ("tools", ["x"]),
    ("tools", [{"type": "function", "function": {}}]),
    ("tool_choice", 3),
    ("tool_choice", "maybe"),
    ("tool_choice", {"type": "function"}),
    ("parallel_tool_calls", "x"),
    ("functions", [{"name": "f"}]),
    ("function_call", "auto"),
    ("function_call", {"name": "f"}),
    ("modalities", ["audio"]),
    ("modalities", []),
    ("audio", "alloy"),
    ("service_tier", 3),
    ("safety_identifier", 3),
    ("web_search_options", "x"),
    ("verbosity", 3),
    ("prediction", "x"),
    ("prompt_cache_key", 3),
    ("response_format", {}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_400_and_names_its_field(field: str, value: Any) -> None:
    """A7, B1."""
    error = refused(**{field: value})
    assert (error.status, error.param) == (400, field)
    assert error.kind == "invalid_request_error" and error.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":NaN}',
        b'{"temperature":Infinity}',
        b'{"temperature":1e999}',
        b'{"seed":1' + b"0" * 5000 + b"}",
        b'{"response_format":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
        b"{}",
    ],
    ids=lambda raw: raw[:24].decode("latin-1"),
)
def test_no_body_is_ever_a_server_error(raw: bytes) -> None:
    """A7: bad JSON, wrong types, NaN, lone surrogates, numbers out of range."""
    assert refused(raw=raw or b" ").status == 400


@pytest.mark.parametrize("n", [None, 1])
def test_n_may_be_one(n: int | None) -> None:
    """B1."""
    assert parsed(n=n).spec.store is False


def test_unknown_fields_are_ignored() -> None:
    """A7."""
    assert parsed(new_field={"a": 1}, moderation={"model": "x"}, audio={"voice": "alloy"}).spec == parsed().spec


def test_unsupported_parameter_names_what_to_use_instead() -> None:
    """B1: the fields of 2023."""
    old = {"functions": [{"name": "f"}], "function_call": "auto"}
    for field, value in old.items():
        error = refused(**{field: value})
        assert (error.code, error.param) == ("unsupported_parameter", field)
        assert "tools" in error.message


def test_unsupported_value_is_the_code_of_n_and_of_audio_answers() -> None:
    """B1."""
    assert refused(n=2).code == refused(modalities=["audio"]).code == "unsupported_value"
    assert parsed(modalities=["text", "audio"]).spec.sampling == {"modalities": ["text"]}


def test_too_many_parts_is_400() -> None:
    """A8."""
    content = [{"type": "text", "text": "x"}] * 11
    assert refused(messages=[{"role": "user", "content": content}]).code == "too_many_parts"


def test_invalid_session_key_is_400() -> None:
    """D2."""
    assert refused(context(x_hermes_session_key="a b")).code == "invalid_session_key"


def test_missing_required_parameter_names_it() -> None:
    """A7."""
    error = refused(raw=b"{}")
    assert (error.code, error.param) == ("missing_required_parameter", "messages")


def test_invalid_json_is_400() -> None:
    """A7."""
    assert refused(raw=b"{").code == "invalid_json"


def test_sampling_parameters_reach_the_upstream_as_they_are() -> None:
    """B1."""
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 0.1,
        "presence_penalty": -0.1,
        "logit_bias": {"1": 2.0},
        "logprobs": True,
        "top_logprobs": 3,
        "seed": 7,
        "stop": ["a", "b"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
        "reasoning_effort": "low",
        "verbosity": "low",
        "prediction": {"type": "content", "content": "x"},
        "modalities": ["text"],
        "prompt_cache_key": "k",
        "user": "u",
        "safety_identifier": "s",
        "service_tier": "flex",
        "web_search_options": {"search_context_size": "low"},
        "parallel_tool_calls": False,
    }
    assert parsed(**fields).spec.sampling == fields
    assert parsed().spec.sampling == {}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
    ],
)
def test_max_tokens_in_both_spellings(fields: dict[str, int], tokens: int | None) -> None:
    """B1: the newer one wins."""
    assert parsed(**fields).spec.max_output_tokens == tokens


def test_a_key_and_an_explicit_store_false_contradict_each_other() -> None:
    """G4: on chat only then."""
    error = refused(context(idempotency_key="k"), store=False)
    assert (error.status, error.code, error.param) == (400, "idempotency_requires_store", "store")


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "\x7f", "x" * 256])
def test_a_key_is_visible_ascii(key: str) -> None:
    """C5."""
    assert refused(context(idempotency_key=key)).code == "invalid_idempotency_key"
    assert parsed(context(idempotency_key="!" * 255)).asked.key == "!" * 255


@pytest.mark.parametrize("session", ["", "a b", "é", "x" * 257, "a\n", "<b>"])
def test_a_session_has_safe_characters(session: str) -> None:
    """D2."""
    assert refused(context(x_hermes_session_id=session)).code == "invalid_session_id"


def test_a_session_gives_the_history_and_the_body_only_the_new_turn() -> None:
    """D2."""
    messages = [USER, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "More"}]
    with_session = parsed(context(x_hermes_session_id="s-1"), messages=messages)
    assert with_session.asked.session == "s-1"
    assert (with_session.spec.history, with_session.spec.input) == ((), (messages[2],))
    without = parsed(messages=messages)
    assert without.asked.session is None
    assert (without.spec.history, without.spec.input) == (tuple(messages[:2]), (messages[2],))


@pytest.mark.parametrize("secret", [b"secret", b"k" * 64, b"k" * 65], ids=len)
def test_a_derived_session_is_named_by_an_hmac_of_owner_prompt_and_opening(secret: bytes) -> None:
    named = parsed(Context("bob", {}, Profile("hermes-agent"), secret)).asked.derived_session
    assert named == "auto-" + hmac.digest(secret, b"bob\0\0Hi", "sha256").hex()[:32]


def test_a_derived_session_is_stable_over_turns_and_differs_by_owner_prompt_and_opening() -> None:
    """D2: HMAC of owner + system prompt + first user message."""
    more = [USER, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "More"}]
    system = {"role": "system", "content": "Be brief"}
    names = [
        parsed().asked.derived_session,
        parsed(messages=[system, USER]).asked.derived_session,
        parsed(messages=[{"role": "user", "content": "Ho"}]).asked.derived_session,
        parsed(Context("bob", {}, Profile("hermes-agent"), b"secret")).asked.derived_session,
        parsed(context(x_openwebui_chat_id="c-1")).asked.derived_session,
    ]
    assert len(set(names)) == 5 and names[4] == "owui-c-1"
    assert parsed(messages=more).asked.derived_session == names[0]


def test_client_prompts_are_layered_and_images_pass_through() -> None:
    """B1."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image], "name": "al"},
    ]
    spec = parsed(messages=messages).spec
    assert spec.instructions == "Be brief\n\nand kind"
    assert spec.input == (messages[2],)


def test_an_assistant_message_may_have_calls_instead_of_content() -> None:
    """B5: the caller sends back what it was handed."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    spec = parsed(messages=messages).spec
    assert (*spec.history, *spec.input) == tuple(messages)


def test_a2_an_unknown_model_is_answered_by_the_default_profile() -> None:
    for name in ("gpt-4o", "default", "", "hermes-agent"):
        assert parsed(model=name).spec.model == parsed().spec.model == "hermes-agent"


def test_a2_unknown_model_error_is_404_with_the_known_ones() -> None:
    strict = context(Profile("hermes-agent", unknown_model="error"))
    with pytest.raises(ClientError) as caught:
        parsed(strict, model="gpt-4o")
    error = caught.value
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert "hermes-agent" in error.message and "gpt-4o" in error.message


def test_a2_g4_the_fingerprint_holds_the_profile_that_answers() -> None:
    """Names that lead to one profile give the same request; those of two profiles do not."""
    others = {"coder": Profile("coder")}
    asked = replace(context(Profile("hermes-agent")), others=others)
    by_name = {name: parsed(asked, model=name).asked.fingerprint for name in ("gpt-4o", "hermes-agent", "coder")}
    assert by_name["gpt-4o"] == by_name["hermes-agent"] != by_name["coder"]
    bound = replace(context(others["coder"]), bound=True)
    assert parsed(bound).asked.fingerprint == by_name["coder"] != parsed(asked).asked.fingerprint


def test_a2_an_admin_key_that_names_the_profile_of_an_owner_acts_for_this_owner() -> None:
    others = {"lucas": Profile("lucas", owner="lucas"), "coder": Profile("coder")}
    asked = replace(context(Profile("hermes-agent")), owner="default", others=others)
    assert parsed(asked, model="lucas").asked.owner == "lucas"
    assert parsed(asked, model="coder").asked.owner == parsed(asked, model="eva").asked.owner == "default"


PROGRESS = [
    ({}, "compatible", "compatible"),
    ({}, "off", "off"),
    ({"x_tool_progress": "bare"}, "compatible", "bare"),
    ({"x_tool_progress": "off"}, "bare", "off"),
    ({"x_stainless_lang": "js", "x_stainless_package_version": "4.104.0"}, "compatible", "off"),
    ({"x_stainless_lang": "js", "x_stainless_package_version": "4.1.0", "x_tool_progress": "bare"}, "off", "bare"),
    ({"x_stainless_lang": "js", "x_stainless_package_version": "6.49.0"}, "compatible", "compatible"),
    ({"x_stainless_lang": "python", "x_stainless_package_version": "4.0.0"}, "compatible", "compatible"),
]


@pytest.mark.parametrize(("headers", "setting", "shown"), PROGRESS)
def test_tool_progress_by_header_then_setting_and_off_for_old_node(
    headers: dict[str, str], setting: Any, shown: str
) -> None:
    """B4, G9."""
    assert parsed(context(Profile("hermes-agent", tool_progress=setting), **headers)).spec.tool_progress == shown


def test_an_unknown_tool_progress_is_400() -> None:
    """A7."""
    assert refused(context(x_tool_progress="loud")).code == "invalid_tool_progress"


def test_the_usage_chunk_is_asked_for_by_stream_options() -> None:
    """B2."""
    assert parsed(stream=True, stream_options={"include_usage": True}).spec.include_usage is True
    assert parsed(stream=True, stream_options={"include_obfuscation": True}).spec.include_usage is False
    assert parsed(stream=True).stream is True and parsed().stream is False


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
WEBUI = {"type": "function", "function": {"name": "search_chats"}}
CLIENT_TOOLS = [
    ({}, "auto", [TOOL], 1),
    ({}, "auto", [], 0),
    ({}, "ignore", [TOOL], 0),
    ({"x_openwebui_user_id": "u"}, "auto", [TOOL], 0),
    ({"x_openwebui_user_id": "u"}, "pass", [TOOL], 1),
    ({"user_agent": "Python/3.11 aiohttp/3.9"}, "auto", [WEBUI], 0),
    ({"user_agent": "Python/3.11 aiohttp/3.9"}, "auto", [TOOL], 1),
]
HOSTED = ["mcp", "web_search", "file_search", "code_interpreter", "image_generation", "computer_use_preview", "custom"]


@pytest.mark.parametrize(("headers", "setting", "tools", "count"), CLIENT_TOOLS)
def test_client_tools_are_taken_unless_a_front_end_added_them_by_itself(
    headers: dict[str, str], setting: str, tools: list[Any], count: int
) -> None:
    """B5."""
    caller = context(Profile("hermes-agent", client_tools=setting), **headers)
    assert len(parsed(caller, tools=tools).spec.client_tools) == count


@pytest.mark.parametrize("kind", HOSTED)
def test_g17_a_tool_that_this_server_does_not_have_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ClientError) as caught:
        parsed(tools=[TOOL, {"type": kind}])
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "unsupported_tool", "tools")
    assert f"tools[1] is of type '{kind}'" in error.message
    with pytest.raises(ClientError) as caught:
        parsed(tool_choice={"type": kind})
    assert caught.value.param == "tool_choice" and kind in caught.value.message


@pytest.mark.parametrize("agent", ["codex_cli_rs/0.166.0 (Ubuntu 24.4.0; x86_64)", "claude-cli/2.0.50 (external, cli)"])
def test_g17_callers_that_send_such_tools_unasked_are_answered_and_the_run_says_what_was_left_out(agent: str) -> None:
    tools = [TOOL, *({"type": kind} for kind in HOSTED), {"type": "mcp"}]
    spec = parsed(context(user_agent=agent), tools=tools, tool_choice={"type": "web_search"}).spec
    assert spec.ignored_tools == tuple(HOSTED) and spec.tool_choice is None and len(spec.client_tools) == 1


def test_g17_a_hosted_web_search_is_served_by_the_tool_of_this_server() -> None:
    caller = context(Profile("hermes-agent", searches=True))
    spec = parsed(caller, tools=[{"type": "web_search_preview"}], tool_choice={"type": "web_search_preview"}).spec
    assert spec.ignored_tools == () and spec.client_tools == ()
    with pytest.raises(ClientError, match="file_search"):
        parsed(caller, tools=[{"type": "file_search"}])


CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ([USER, CALLS, RESULT], ()),
        ([USER, RESULT], ("c1",)),
        ([USER, CALLS, RESULT, {**RESULT, "tool_call_id": "c2"}, {**RESULT, "tool_call_id": "c2"}], ("c2",)),
        ([USER, {**CALLS, "tool_calls": "none"}, RESULT], ("c1",)),
        ([USER, {**CALLS, "tool_calls": [{"id": 1}, None]}, RESULT, USER], ("c1",)),
    ],
)
def test_g17_results_whose_call_is_not_in_the_request_are_found(messages: Any, left: tuple[str, ...]) -> None:
    assert parsed(messages=messages).unmatched == left


def test_g17_with_a_named_session_the_call_must_be_in_the_session() -> None:
    caller = context(x_hermes_session_id="s")
    assert parsed(caller, messages=[USER, CALLS, RESULT]).unmatched == ("c1",), "only the new turn is taken"


def test_a_result_without_a_call_id_is_refused() -> None:
    with pytest.raises(ClientError, match=r"messages\[1\].tool_call_id is missing"):
        parsed(messages=[USER, {"role": "tool", "content": "x"}])


QUOTED = "### Task:\nMake a title\n<chat_history>\nUSER: Hi\n</chat_history>"
CHORES = [
    ("### Task:\nMake a title", {}, True),
    ("  ### Task: tags", {}, True),
    ("### Task:\nMake a title", {"stream": True}, False),
    ("### Task:\nMake a title", {"tools": [TOOL]}, False),
    ("### Task:\nMake a title", {"store": True}, False),
    ("Do this ### Task:", {}, False),
]


@pytest.mark.parametrize(("text", "fields", "chore"), CHORES)
def test_a_front_ends_chore_is_recognised(text: str, fields: dict[str, Any], chore: bool) -> None:
    """B7: one user message, not streamed, no tools."""
    made = parsed(context(x_openwebui_chat_id="c"), messages=[{"role": "user", "content": text}], **fields)
    assert made.spec.chore is chore
    assert (made.spec.kept == "memory") is chore


@pytest.mark.parametrize(
    ("text", "headers", "chore"),
    [
        ("### Task:\nMake a title", {}, False),
        ("### Task:\nMake a title", {"user_agent": "Python/3.11 aiohttp/3.9"}, False),
        ("### Task:\nMake a title", {"x_openwebui_user_id": "u"}, True),
        (QUOTED, {}, True),
        (QUOTED, {"user_agent": "Python/3.11 aiohttp/3.9"}, True),
        (QUOTED, {"x_hermes_session_id": "s"}, False),
        (QUOTED, {"x_hermes_session_key": "s"}, False),
        (QUOTED, {"x_openwebui_user_id": "u", "x_hermes_session_id": "s"}, False),
        (QUOTED[4:], {"x_openwebui_user_id": "u"}, False),
    ],
)
def test_b7_a_chore_comes_from_open_webui_or_quotes_a_chat_and_never_names_a_session(
    text: str, headers: dict[str, str], chore: bool
) -> None:
    """A prompt of anybody else that begins so keeps its tools, its system prompt and its session."""
    made = parsed(context(**headers), messages=[{"role": "user", "content": text}])
    assert made.spec.chore is chore
    assert made.asked.session == (None if chore else headers.get("x_hermes_session_id"))


def test_a_long_conversation_is_no_chore() -> None:
    """B7."""
    task = {"role": "user", "content": QUOTED}
    assert not parsed(messages=[USER, {"role": "assistant", "content": "Hello"}, task]).spec.chore


CAPPED: list[tuple[str, Any]] = [
    ("logit_bias", {str(n): 1 for n in range(1025)}),
    ("tools", [{"type": "function", "function": {"name": f"f{n}"}} for n in range(1025)]),
    ("stop", [str(n) for n in range(1025)]),
]


@pytest.mark.parametrize(("name", "value"), CAPPED, ids=[name for name, _ in CAPPED])
def test_maps_and_lists_of_options_are_capped_with_the_field_and_the_limit(name: str, value: Any) -> None:
    assert parsed(**{name: dict(list(value.items())[1:]) if isinstance(value, dict) else value[1:]})
    error = refused(**{name: value})
    assert (error.status, error.param) == (400, name)
    assert "1024" in error.message


def test_a_fingerprint_copies_no_conversation() -> None:
    request = ChatRequest(messages=[USER], temperature=1, stream=True)
    fields = context().known_fields(sent_fields(request), {"temperature": 1})
    assert fields == {"messages": [USER]}
    assert fields["messages"] is request.messages


@pytest.mark.parametrize("role", [["user"], {"a": 1}, 1, None])
def test_a7_a_role_that_is_no_text_is_refused(role: object) -> None:
    assert refused(messages=[{"role": role, "content": "x"}]).status == 400


TEXTS = st.sampled_from(
    ["", "Hi", 'Say "x"\n', "**Approval needed** before", "approve ABCD", "\U0001f991 gr\u00fc\u00df"]
)
ROLES = st.sampled_from(["user", "user", "assistant", "system", "developer", "function"])
SAID = st.fixed_dictionaries({"role": ROLES, "content": TEXTS}, optional={"name": st.just("n")})

WORDS = ["Hi", "**Approval needed** for `ls`", "approve ABCD", "done", "more"]
ANSWERED = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(WORDS)]


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k"}, {"x_hermes_session_id": "s"}])
@given(messages=st.lists(SAID, min_size=1, max_size=8))
@example(messages=ANSWERED)
@settings(max_examples=150, deadline=None)
def test_plain_texts_are_read_as_any_other_messages(headers: dict[str, str], messages: list[dict[str, str]]) -> None:
    """Most chats are plain texts and have a faster way. It must make no difference. A name makes a message general."""
    body: dict[str, Any] = {"messages": messages, "temperature": 0.5}
    fast = parse(msgspec.json.encode(body), context(**headers), 10)
    general = chat_parse._general(msgspec.json.decode(msgspec.json.encode(messages)), 10)
    repeats = "idempotency_key" in headers
    known = {"temperature": 0.5, "messages": messages if repeats else unrepeated(messages)}
    session = headers.get("x_hermes_session_id")
    assert fast.asked.fingerprint == fingerprint("chat", known, session)
    assert (fast.spec.instructions, fast.spec.input, fast.reply) == (general.system, general.turn, general.reply)
    assert fast.spec.history == (() if session else tuple(msgspec.json.decode(general.history)))
    assert fast.asked.derived_session == context(**headers).derived_session(general.system, general.first_said)


def unrepeated(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """B8: without a key, repeats of the last message do not count."""
    messages = list(messages)
    while len(messages) > 1 and messages[-1] == messages[-2] and messages[-1]["role"] == "user":
        messages.pop()
    return messages
