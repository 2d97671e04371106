"""A Chat Completions request as a Spec. Owns: its fields, what reaches the upstream, and the rules of `store`. Refuses
to know: engines and HTTP."""

from __future__ import annotations

from itertools import repeat
from operator import contains, itemgetter

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.history import SYSTEM_ROLES, results_without_call, split_turn, text_of
from ninelives.core.spec import Kept, Message, Spec, fingerprint
from ninelives.dialects import client_tools
from ninelives.dialects import fields as f
from ninelives.dialects.approval import QUESTION, asks_for_approval, reply_in, without_questions
from ninelives.dialects.asking import Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import PROJECTION

_UPSTREAM = [
    "temperature",
    "top_p",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "seed",
    "stop",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "prediction",
    "modalities",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "web_search_options",
    "parallel_tool_calls",
    "user",
]
_DEFAULTS: dict[str, object] = {
    "store": False,
    "n": 1,
    "temperature": 1,
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logprobs": False,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "tools": [],
    "tool_choice": "auto",
    "metadata": {},
}
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_ROLES = frozenset(role for role in ROLES if role != "tool")
"""A message of these needs nothing but a text."""
_role, _content = itemgetter("role"), itemgetter("content")


class MessageTraits(Struct, frozen=True):
    """What the messages of a request contain."""

    asks: bool
    """One may ask for an approval."""
    results: bool
    """There are results of calls."""
    prompts: bool
    """There are system messages."""


class StreamOptions(Struct):
    """See the API."""

    include_usage: bool | None = None


class ChatRequest(Struct):
    """The known fields; others are ignored."""

    messages: list[dict[str, object]] | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    metadata: f.Metadata | None = None
    n: int | None = None
    temperature: f.Temperature | None = None
    top_p: f.Share | None = None
    frequency_penalty: f.Penalty | None = None
    presence_penalty: f.Penalty | None = None
    logit_bias: f.LogitBias | None = None
    logprobs: bool | None = None
    top_logprobs: f.TopLogprobs | None = None
    max_tokens: f.Positive | None = None
    max_completion_tokens: f.Positive | None = None
    seed: f.Seed | None = None
    stop: str | f.Stops | None = None
    response_format: dict[str, object] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: dict[str, object] | None = None
    modalities: list[str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    web_search_options: dict[str, object] | None = None
    audio: dict[str, object] | None = None
    user: str | None = None
    tools: f.Tools | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, object]] | None = None
    function_call: str | dict[str, object] | None = None


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec. Raises ClientError when the request is not valid."""
    request = f.decode(raw, ChatRequest)
    context = context.under(request.model)
    _check_supported(request)
    given = request.messages or f.required(request.messages, "messages")
    traits = _check_messages(given, max_parts)
    messages = without_questions(given) if traits.asks else given
    key, session = context.key(), context.session()
    kept, chore = _kept(request, key, context, messages)
    session = None if chore else session
    system, history, turn = split_turn(messages, prompts=traits.prompts)
    spec = Spec(
        dialect="chat",
        model=context.profile.name,
        input=tuple(turn),
        history=() if session else tuple(history),
        instructions=system,
        sampling=_sampling(request),
        chore=chore,
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        metadata=request.metadata or {},
        store=kept == "stored",
        kept=kept,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        tool_progress=context.tool_progress(),
        output_bound=context.profile.output_bound,
        memory_scope=context.memory_scope(),
        on_disconnect=context.on_disconnect(kept, asked_to_store=request.store is True),
        projection=PROJECTION,
    )
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("chat", _fields(request, key, context), session),
        key=key,
        session=session,
        derived_session=context.derived_session(system, first_said(messages)),
        kept=kept,
        resend_ms=context.resend_ms(user=bool(request.user)),
    )
    if request.tools or request.tool_choice is not None:
        spec = _with_tools(spec, request, context)
    unmatched = results_without_call((*spec.history, *spec.input)) if traits.results else ()
    return ParsedRequest(spec, asked, bool(request.stream), reply_in(given), unmatched=unmatched)


def _kept(request: ChatRequest, key: str | None, context: Context, messages: list[Message]) -> tuple[Kept, bool]:
    """What is kept of the run, and whether it is a chore of a front end."""
    if key is not None and request.store is False:
        message = "An Idempotency-Key needs a stored run: leave store out, or set it to true."
        raise ClientError("idempotency_requires_store", message, param="store")
    plain = request.store is None and key is None and not request.stream and not request.tools
    return ("memory", True) if plain and is_chore(context, messages) else (context.kept(request.store, "hours"), False)


def _with_tools(spec: Spec, request: ChatRequest, context: Context) -> Spec:
    return replace(
        spec,
        client_tools=client_tools.nested(request.tools, context),
        ignored_tools=client_tools.hosted(request.tools, context),
        tool_choice=client_tools.chat_choice(request.tool_choice, context),
    )


def _fields(request: ChatRequest, key: str | None, context: Context) -> dict[str, object]:
    """The fields of the fingerprint. Without a key it only serves to find the run of a lost connection. Then repeats of
    the last message do not count: Open WebUI leaves out an answer that broke off, so the same message sent again stands
    twice in a row (B8)."""
    fields = f.known_fields(request, _DEFAULTS, context.named_profile(request.model))
    messages = request.messages or []
    end = len(messages)
    while end > 1 and messages[end - 1].get("role") == "user" and messages[end - 1] == messages[end - 2]:
        end -= 1
    if key is None and end < len(messages):
        fields["messages"] = messages[:end]
    return fields


def _sampling(request: ChatRequest) -> dict[str, object]:
    options = {name: value for name in _UPSTREAM if (value := getattr(request, name)) is not None}
    if "audio" in (request.modalities or ()):
        options["modalities"] = ["text"]
    return options


def _check_supported(request: ChatRequest) -> None:
    """Refuse options that an agent which answers in text cannot honour."""
    if request.n not in (None, 1):
        raise ClientError("unsupported_value", "n must be 1: an agent gives one answer.", param="n")
    for old in ("functions", "function_call"):
        if getattr(request, old):
            new = "tools" if old == "functions" else "tools and tool_choice"
            raise ClientError("unsupported_parameter", f"{old} is obsolete: use {new} instead.", param=old)
    if request.modalities is not None and "text" not in request.modalities:
        raise ClientError("unsupported_value", "modalities must contain text: answers are text.", param="modalities")
    if request.response_format is not None:
        _check_format(request.response_format)


def _check_format(form: dict[str, object]) -> None:
    if not isinstance(form.get("type"), str):
        message = "response_format.type is missing: text, json_object or json_schema."
        raise ClientError("invalid_value", message, param="response_format")
    schema = form.get("json_schema")
    if form["type"] == "json_schema" and not (isinstance(schema, dict) and isinstance(schema.get("name"), str)):
        message = "response_format.json_schema must be an object with a name and a schema."
        raise ClientError("invalid_value", message, param="response_format")


def is_chore(context: Context, messages: list[Message]) -> bool:
    """A front end's own request, such as a title (B7): one user message, in a request without a stream and tools."""
    spoken = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
    if len(spoken) != 1 or spoken[0].get("role") != "user":
        return False
    return context.is_chore(text_of(spoken[0].get("content")))


def _check_messages(messages: list[Message], max_parts: int) -> MessageTraits:
    """Check all messages. A chat may resend thousands of them, most often plain texts: those are checked in C."""
    if not messages:
        raise ClientError("invalid_value", "messages must not be empty.", param="messages")
    try:
        roles = set(map(_role, messages))
        are_texts = roles <= _TEXT_ROLES and set(map(type, map(_content, messages))) == {str}
    except (KeyError, TypeError):  # a field is missing, or a role is no text
        are_texts = False
    if are_texts:
        asks = any(map(contains, map(_content, messages), repeat(QUESTION)))
        return MessageTraits(asks, False, not roles.isdisjoint(SYSTEM_ROLES))
    parts = sum(_check_message(n, message) for n, message in enumerate(messages))
    if parts > max_parts:
        message_text = f"There are {parts} content parts; the limit is {max_parts}."
        raise ClientError("too_many_parts", message_text, param="messages")
    results = any(message["role"] == "tool" for message in messages)
    return MessageTraits(any(map(asks_for_approval, messages)), results, True)


def _check_message(n: int, message: Message) -> int:
    """Check a message. Returns how many parts it has."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise ClientError("invalid_value", f"messages[{n}].role must be one of {known}.", param="messages")
    if not isinstance(content, str | list | None):
        raise ClientError("invalid_value", f"messages[{n}].content must be text or parts.", param="messages")
    if content is None and role in ("user", "system", "developer", "tool"):
        raise ClientError("invalid_value", f"messages[{n}].content is missing.", param="messages")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise ClientError("invalid_value", f"messages[{n}].tool_call_id is missing.", param="messages")
    if not isinstance(content, list):
        return 0
    _check_parts(content, n)
    return len(content)


def _check_parts(content: list[object], n: int) -> None:
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ClientError("invalid_value", f"messages[{n}].content has a part without a type.", param="messages")


def first_said(messages: list[Message]) -> str:
    """The text of the first user message."""
    return next((text_of(message.get("content")) for message in messages if message.get("role") == "user"), "")
