"""A Responses request as a Spec. Owns: its fields, its input items as messages, and the rules of store, background,
conversation and chain. Refuses to know: engines and HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.core.admission import Asked
from holdfast.core.errors import ClientError, not_found
from holdfast.core.history import split_turn, text_of
from holdfast.core.ids import run_of
from holdfast.core.spec import Message, Spec, fingerprint
from holdfast.dialects import client_tools
from holdfast.dialects import fields as f
from holdfast.dialects.asking import Context
from holdfast.dialects.chat.parse import is_chore
from holdfast.dialects.responses.input import Item, input_items, messages_of

_DEFAULTS: dict[str, object] = {
    "store": True,
    "background": False,
    "parallel_tool_calls": True,
    "temperature": 1,
    "top_p": 1,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "truncation": "disabled",
    "tool_choice": "auto",
    "service_tier": "auto",
    "text": {"format": {"type": "text"}},
    "metadata": {},
    "include": [],
    "tools": [],
}
_ECHOED = [
    "instructions",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "truncation",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "user",
]
_UPSTREAM = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "prompt_cache_key",
    "user",
)
MAX_INPUT = 10_485_760


class ResponsesRequest(Struct):
    """The known fields; others are ignored."""

    model: str | None = None
    input: Annotated[str, Meta(max_length=MAX_INPUT)] | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, object] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, object] | None = None
    background: bool | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=16, le=2**31)] | None = None
    max_tool_calls: f.Positive | None = None
    temperature: f.Temperature | None = None
    top_p: f.Share | None = None
    top_logprobs: f.TopLogprobs | None = None
    presence_penalty: f.Penalty | None = None
    frequency_penalty: f.Penalty | None = None
    text: dict[str, object] | None = None
    reasoning: dict[str, object] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: f.Metadata | None = None
    include: list[str] | None = None
    service_tier: str | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None


class ParsedResponses(Struct, frozen=True):
    """A request, understood."""

    spec: Spec
    asked: Asked
    stream: bool


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedResponses:
    """See house.md: parse(request) -> Spec."""
    request = f.decode(raw, ResponsesRequest)
    context = context.under(request.model)
    store = request.store is not False
    key, session = context.key(), context.session()
    _check_store(request, store, key)
    given: str | list[Item] = f.required(request.input, "input")  # type: ignore[assignment]
    items = input_items(given, max_parts)
    system, history, turn = split_turn(messages_of(items))
    layers = [layer for layer in (request.instructions, system) if layer]
    tools = client_tools.nested(request.tools, context)
    chore = context.chores() and _is_chore(request, [*history, *turn], bool(tools), key)
    if chore:
        session, store = None, False
    spec = Spec(
        dialect="responses",
        model=context.profile.name,
        input=tuple(turn) if session else (*history, *turn),
        instructions="\n\n".join(layers) or None,
        sampling=_sampling(request),
        client_tools=tools,
        tool_choice=client_tools.chat_choice(request.tool_choice),
        chore=chore,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        store=store,
        background=bool(request.background),
        tool_items=context.tool_items(),
        output_bound=context.profile.output_bound,
        memory_scope=context.memory_scope(),
        on_disconnect=context.on_disconnect(request.store is not None or bool(request.background)),
        echo=_echo(request),
        items=tuple(items),
    )
    first_user = next((text_of(m.get("content")) for m in (*history, *turn) if m.get("role") == "user"), "")
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("responses", f.known_fields(request, _DEFAULTS), session),
        key=key,
        previous=_previous(request.previous_response_id),
        conversation=_conversation(request),
        session=session,
        derived_session=context.derived_session(spec.instructions, first_user),
        store=store,
    )
    return ParsedResponses(spec, asked, bool(request.stream))


def _check_store(request: ResponsesRequest, store: bool, key: str | None) -> None:
    if not store and key is not None:
        raise ClientError("idempotency_requires_store", "An Idempotency-Key needs store=true.", param="store")
    if not store and request.background:
        raise ClientError("background_requires_store", "background=true needs store=true.", param="background")
    if request.previous_response_id is not None and request.conversation is not None:
        message = "previous_response_id and conversation cannot be used together: send one of them."
        raise ClientError("mutually_exclusive_parameters", message, param="conversation")


def _is_chore(request: ResponsesRequest, messages: list[Message], tools: bool, key: str | None) -> bool:
    joins = request.previous_response_id or request.conversation or request.background or key
    return not joins and request.store is None and is_chore(messages, bool(request.stream), tools)


def _previous(shown: str | None) -> str | None:
    if shown is None:
        return None
    run = run_of("responses", shown)
    if run is None:
        error = not_found("response", shown)
        error.param = "previous_response_id"
        raise error
    return run


def _conversation(request: ResponsesRequest) -> str | None:
    named = request.conversation.get("id") if isinstance(request.conversation, dict) else request.conversation
    if named is None and request.conversation is None:
        return None
    if not isinstance(named, str) or not 1 <= len(named) <= 256 or not named.isprintable():
        message = "conversation must be a name or an id of 1 to 256 characters."
        raise ClientError("invalid_value", message, param="conversation")
    return named


def _sampling(request: ResponsesRequest) -> dict[str, object]:
    options = {name: value for name in _UPSTREAM if (value := getattr(request, name)) is not None}
    if (form := _response_format((request.text or {}).get("format"))) is not None:
        options["response_format"] = form
    effort = (request.reasoning or {}).get("effort")
    if not isinstance(effort, str | None):
        raise ClientError("invalid_value", "reasoning.effort must be a string.", param="reasoning")
    if effort is not None:
        options["reasoning_effort"] = effort
    return options


def _response_format(form: object) -> dict[str, object] | None:
    """text.format in the form of Chat Completions; plain text is nothing."""
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema", "name": str(name), "schema": dict(schema), **more}:
            extra: dict[str, object] = {field: more[field] for field in ("description", "strict") if field in more}
            return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **extra}}
        case {"type": "json_schema"}:
            raise ClientError("invalid_value", "text.format needs a name and a schema.", param="text")
        case _:
            message = "text.format.type must be text, json_object or json_schema."
            raise ClientError("invalid_value", message, param="text")


def _echo(request: ResponsesRequest) -> dict[str, object]:
    echo = {name: value for name in _ECHOED if (value := getattr(request, name)) is not None}
    echo["truncation"] = request.truncation or "disabled"  # what the body shows is what the agent does
    if request.tools:
        echo["tools"] = client_tools.echoed(request.tools)
    if request.tool_choice is not None:
        echo["tool_choice"] = request.tool_choice
    if request.text is not None:
        given = {name: value for name, value in request.text.items() if value is not None}
        echo["text"] = {"format": {"type": "text"}, **given}
    if request.reasoning is not None:
        echo["reasoning"] = {"effort": None, "summary": None, **request.reasoning}
    if echo.get("service_tier") == "auto":
        echo["service_tier"] = "default"
    return echo
