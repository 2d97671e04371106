"""A Chat Completions request as a Spec. Owns: its fields, what reaches the upstream, the rules of `store`, and its
messages: their checks, and their parts (prompts, history and new turn). Refuses to know: engines and HTTP.

A chat resends its whole conversation, so there may be thousands of messages, most often plain texts. Those are read
into PlainText, which checks and encodes them in C. The history is encoded once: fingerprint, journal and model all get
those bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.history import SYSTEM_ROLES, results_without_call, split_turn, text_of
from ninelives.core.spec import (
    NO_MESSAGES,
    Message,
    Piece,
    Spec,
    canonical_json,
    fingerprint,
    json_list,
    messages_json,
)
from ninelives.dialects import client_tools
from ninelives.dialects import fields as f
from ninelives.dialects.approval import ANSWERS, QUESTION, Reply, asks_for_approval, reply_in, without_questions
from ninelives.dialects.asking import KEY, MEMORY_SCOPE, SESSION, Context, Sent, sent_fields
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import PROJECTION

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ASKS = QUESTION.encode()
_UPSTREAM = {
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
}
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


class PlainText(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message with a role and a text. The fields are in the order of canonical JSON."""

    content: str
    role: Literal["assistant", "developer", "function", "system", "user"]


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


class PlainChatRequest(ChatRequest):
    """The same where all messages are plain texts."""

    messages: list[PlainText] | None = None  # type: ignore[assignment]


_plain = msgspec.json.Decoder(PlainChatRequest)


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec. Raises ClientError when the request is not valid."""
    request: ChatRequest
    try:
        request = _plain.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        request = f.decode(raw, ChatRequest)  # other messages, or an error that it explains
    context = context.under(request.model)
    _check_supported(request)
    sent, given = read_messages(request.messages, max_parts), sent_fields(request)
    key, session = context.wish(KEY), context.wish(SESSION)
    if key is not None and request.store is False:
        message = "An Idempotency-Key needs a stored run: leave store out, or set it to true."
        raise ClientError("idempotency_requires_store", message, param="store")
    plain = request.store is None and key is None and not request.stream and not request.tools
    chore = plain and sent.history is NO_MESSAGES and is_chore(context, sent.turn)
    session = None if chore else session
    spec = _spec(request, given, sent, context, session, chore)
    # Without a key the fingerprint only serves to find the run of a lost connection. Then repeats of the last message
    # do not count: Open WebUI leaves out an answer that broke off, so the same message stands twice in a row (B8).
    messages, fields = sent.canonical(repeats=key is not None), context.known_fields(given, _DEFAULTS)
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("chat", fields, session, messages),
        key=key,
        session=session,
        derived_session=context.derived_session(sent.system, sent.first_said),
        kept=spec.kept,
        user=bool(request.user),
    )
    unmatched = results_without_call((*spec.history, *spec.input)) if sent.has_results else ()
    return ParsedRequest(spec, asked, bool(request.stream), sent.reply, unmatched=unmatched)


def _spec(
    request: ChatRequest, given: Sent, sent: SentMessages, context: Context, session: str | None, chore: bool
) -> Spec:
    sampling = {name: value for name, value in given if name in _UPSTREAM}
    if "audio" in (request.modalities or ()):
        sampling["modalities"] = ["text"]
    kept = "memory" if chore else context.kept(request.store, "hours")
    spec = Spec(
        dialect="chat",
        model=context.profile.name,
        input=sent.turn,
        history_json=NO_MESSAGES if session else sent.history,
        instructions=sent.system,
        sampling=sampling,
        chore=chore,
        max_output_tokens=request.max_completion_tokens or request.max_tokens,
        metadata=request.metadata or {},
        store=kept == "stored",
        kept=kept,
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        tool_progress=context.tool_progress(),
        output_bound=context.profile.output_bound,
        memory_scope=context.wish(MEMORY_SCOPE) or "",
        on_disconnect=context.on_disconnect(kept, asked_to_store=request.store is True),
        projection=PROJECTION,
    )
    if not request.tools and request.tool_choice is None:
        return spec
    return replace(
        spec,
        client_tools=client_tools.nested(request.tools, context),
        ignored_tools=client_tools.hosted(request.tools, context),
        tool_choice=client_tools.chat_choice(request.tool_choice, context),
    )


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


def is_chore(context: Context, messages: Sequence[Message]) -> bool:
    """A front end's own request, such as a title (B7): one user message, in a request without a stream and tools."""
    spoken = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
    if len(spoken) != 1 or spoken[0].get("role") != "user":
        return False
    return context.is_chore(text_of(spoken[0].get("content")))


class SentMessages(Struct, frozen=True, kw_only=True):
    """The messages of a request, checked and taken apart."""

    system: str | None
    history: Raw
    turn: tuple[Message, ...]
    first_said: str
    """The text of the first user message."""
    reply: Reply | None
    """The last message answers a question (G11)."""
    has_results: bool = False
    """There are results of calls."""
    given: tuple[Raw, ...] = ()
    """All messages as they were sent are these lists, and `rest`."""
    rest: Sequence[PlainText] | Sequence[Message] = ()

    def canonical(self, *, repeats: bool) -> list[Piece]:
        """All messages as canonical JSON, in pieces, with or without repeats of the last one."""
        rest, end = self.rest, len(self.rest)
        while not repeats and end > 1 and rest[end - 1] == rest[end - 2] and _role(rest[end - 1]) == "user":
            end -= 1
        return json_list(*self.given, messages_json(rest[:end]))


def _role(message: PlainText | Message) -> object:
    return message.role if isinstance(message, PlainText) else message.get("role")


def read_messages(given: list[PlainText] | list[Message] | None, max_parts: int) -> SentMessages:
    """Check the messages of a request and take them apart. Raises ClientError where one is not valid."""
    if not given:
        f.required(given, "messages")
        raise ClientError("invalid_value", "messages must not be empty.", param="messages")
    if not isinstance(given[0], PlainText):
        return _general(given, max_parts)
    return _taken_apart(given) or _general([{"role": each.role, "content": each.content} for each in given], max_parts)


def _taken_apart(given: list[PlainText]) -> SentMessages | None:
    """The parts of plain texts. None where there is more to do: prompts between other messages, and questions and
    answers of an approval."""
    roles = [message.role for message in given]
    prompts, begins = _places(roles)
    if not roles[prompts:] or not set(SYSTEM_ROLES).isdisjoint(roles[prompts:]):
        return None
    encoded, rest = canonical_json(given[prompts:begins]), given[begins:]
    answers = rest[-1].content.lstrip()[:8].lower().startswith(ANSWERS)
    if answers or _ASKS in encoded or any(QUESTION in message.content for message in rest):
        return None
    history = Raw(encoded) if begins > prompts else NO_MESSAGES
    return SentMessages(
        system="\n\n".join(message.content for message in given[:prompts] if message.content) or None,
        history=history,
        turn=tuple([{"role": message.role, "content": message.content} for message in rest]),
        first_said=given[roles.index("user")].content if "user" in roles else "",
        reply=None,
        given=(messages_json(given[:prompts]), history),
        rest=rest,
    )


def _places(roles: Sequence[str]) -> tuple[int, int]:
    """How many prompts come first, and where the new turn begins: see split_turn()."""
    prompts = next((n for n, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
    begins = len(roles)
    while begins > prompts and roles[begins - 1] != "assistant":
        begins -= 1
    return prompts, min(begins, len(roles) - 1)


def _general(given: list[Message], max_parts: int) -> SentMessages:
    parts = sum(_check_message(n, message) for n, message in enumerate(given))
    if parts > max_parts:
        message_text = f"There are {parts} content parts; the limit is {max_parts}."
        raise ClientError("too_many_parts", message_text, param="messages")
    messages = without_questions(given) if any(map(asks_for_approval, given)) else given
    system, history, turn = split_turn(messages)
    encoded = messages_json(history)
    prompts = given[: len(given) - len(history) - len(turn)]
    in_order = messages is given and all(message["role"] in SYSTEM_ROLES for message in prompts)
    return SentMessages(
        system=system,
        history=encoded,
        turn=tuple(turn),
        first_said=first_said(messages),
        reply=reply_in(given),
        has_results=any(message["role"] == "tool" for message in given),
        given=(messages_json(prompts), encoded) if in_order else (),
        rest=turn if in_order else given,
    )


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
