"""A Chat Completions request as a Spec. Owns: its fields, what reaches the upstream, and the rules of `store`. Refuses
to know: engines and HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.history import SYSTEM_ROLES, results_without_call, text_of
from ninelives.core.spec import NO_MESSAGES, Kept, Message, Spec, fingerprint
from ninelives.dialects import client_tools
from ninelives.dialects import fields as f
from ninelives.dialects.asking import Context
from ninelives.dialects.chat.conversation import PlainText, SentMessages, read_messages
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import PROJECTION

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


def _decoded(raw: bytes) -> ChatRequest:
    try:
        return _plain.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return f.decode(raw, ChatRequest)  # other messages, or an error that it explains


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec. Raises ClientError when the request is not valid."""
    request = _decoded(raw)
    context = context.under(request.model)
    _check_supported(request)
    sent, given = read_messages(f.required(request.messages, "messages"), max_parts), f.sent_fields(request)
    key, session = context.key(), context.session()
    kept, chore = _kept(request, key, context, sent)
    session = None if chore else session
    spec = Spec(
        dialect="chat",
        model=context.profile.name,
        input=sent.turn,
        history_json=NO_MESSAGES if session else sent.history,
        instructions=sent.system,
        sampling=_sampling(request, given),
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
    fields = f.known_fields(given, _DEFAULTS, context.named_profile(request.model))
    # Without a key the fingerprint only serves to find the run of a lost connection. Then repeats of the last message
    # do not count: Open WebUI leaves out an answer that broke off, so the same message stands twice in a row (B8).
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("chat", fields, session, sent.canonical(repeats=key is not None)),
        key=key,
        session=session,
        derived_session=context.derived_session(sent.system, sent.first_said),
        kept=kept,
        resend_ms=context.resend_ms(user=bool(request.user)),
    )
    if request.tools or request.tool_choice is not None:
        spec = _with_tools(spec, request, context)
    unmatched = results_without_call((*spec.history, *spec.input)) if sent.has_results else ()
    return ParsedRequest(spec, asked, bool(request.stream), sent.reply, unmatched=unmatched)


def _kept(request: ChatRequest, key: str | None, context: Context, sent: SentMessages) -> tuple[Kept, bool]:
    """What is kept of the run, and whether it is a chore of a front end."""
    if key is not None and request.store is False:
        message = "An Idempotency-Key needs a stored run: leave store out, or set it to true."
        raise ClientError("idempotency_requires_store", message, param="store")
    plain = request.store is None and key is None and not request.stream and not request.tools
    if plain and sent.history is NO_MESSAGES and is_chore(context, sent.turn):
        return "memory", True
    return context.kept(request.store, "hours"), False


def _with_tools(spec: Spec, request: ChatRequest, context: Context) -> Spec:
    return replace(
        spec,
        client_tools=client_tools.nested(request.tools, context),
        ignored_tools=client_tools.hosted(request.tools, context),
        tool_choice=client_tools.chat_choice(request.tool_choice, context),
    )


def _sampling(request: ChatRequest, given: f.Sent) -> dict[str, object]:
    options = {name: value for name, value in given if name in _UPSTREAM}
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


def is_chore(context: Context, messages: Sequence[Message]) -> bool:
    """A front end's own request, such as a title (B7): one user message, in a request without a stream and tools."""
    spoken = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
    if len(spoken) != 1 or spoken[0].get("role") != "user":
        return False
    return context.is_chore(text_of(spoken[0].get("content")))
