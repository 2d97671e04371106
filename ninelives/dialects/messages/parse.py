"""A Messages request as a Spec. Owns: its fields, what reaches the upstream, and the estimate of its tokens. Refuses to
know: engines and HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ninelives.core.admission import Asked
from ninelives.core.context import estimated_tokens
from ninelives.core.errors import ClientError
from ninelives.core.history import results_without_call, split_turn, text_of
from ninelives.core.spec import NO_MESSAGES, Message, Spec, ToolProgress, fingerprint, messages_json
from ninelives.dialects import client_tools
from ninelives.dialects import fields as f
from ninelives.dialects.approval import reply_in, without_questions
from ninelives.dialects.asking import KEY, MEMORY_SCOPE, SESSION, TOOL_PROGRESS, Context, sent_fields
from ninelives.dialects.messages.input import checked_messages, messages_of, resumed, system_text
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import PROJECTION

_DEFAULTS: dict[str, object] = {
    "temperature": 1,
    "tools": [],
    "tool_choice": {"type": "auto"},
    "stop_sequences": [],
    "metadata": {},
    "system": [],
}
IMAGE_TOKENS = 1600
"""How many tokens an image counts, whatever its size: about the most that it costs."""


class ThinkingConfig(Struct):
    """See the API. The budget is ignored: upstreams have no such field."""

    type: str
    budget_tokens: int | None = None


class RequestMetadata(Struct):
    """See the API."""

    user_id: str | None = None


class CountRequest(Struct):
    """The known fields of what is to be counted; others are ignored."""

    messages: list[dict[str, object]] | None = None
    model: str | None = None
    system: str | list[dict[str, object]] | None = None
    tools: f.Tools | None = None
    tool_choice: dict[str, object] | None = None
    thinking: ThinkingConfig | None = None


class MessagesRequest(CountRequest):
    """The known fields; others are ignored."""

    max_tokens: f.Positive | None = None
    stream: bool | None = None
    stop_sequences: f.Stops | None = None
    temperature: f.Share | None = None
    top_p: f.Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    metadata: RequestMetadata | None = None


def parse(raw: bytes, context: Context, max_parts: int) -> ParsedRequest:
    """A request as a Spec. Raises ClientError when the request is not valid. This API has no `store`: a run is
    kept as on chat where that is left out, or with a key (B6)."""
    request = f.decode(raw, MessagesRequest)
    context = context.under(request.model)
    f.required(request.max_tokens, "max_tokens")
    sent = checked_messages(f.required(request.messages, "messages"), max_parts)
    again, given = resumed(sent), messages_of(sent)
    first = given if again is None else messages_of(again.messages)
    reply, messages = reply_in(given), without_questions(given)
    if not messages:
        raise ClientError("invalid_value", "messages has nothing that a model could read.", param="messages")
    key, session = context.wish(KEY), context.wish(SESSION)
    system, history, turn = split_turn([*_system(request), *messages])
    kept = context.kept(None, "hours")
    spec = Spec(
        dialect="messages",
        model=context.profile.name,
        input=tuple(turn),
        history_json=NO_MESSAGES if session else messages_json(history),
        instructions=system,
        sampling=_sampling(request),
        client_tools=_tools(request, context),
        ignored_tools=client_tools.hosted(request.tools, context, (None, "custom")),
        tool_choice=_choice(request.tool_choice),
        max_output_tokens=request.max_tokens,
        metadata=_notes(request),
        store=kept == "stored",
        kept=kept,
        tool_progress=_tool_blocks(context),
        output_bound=context.profile.output_bound,
        memory_scope=context.wish(MEMORY_SCOPE) or "",
        on_disconnect=context.on_disconnect(kept),
        projection=PROJECTION,
        echo={"thinking": True} if _wants_thinking(request) else {},
    )
    derived = context.derived_session(system, _first_user(messages))
    asked = Asked(
        owner=context.owner,
        fingerprint=fingerprint("messages", _fields(request, context, first), session),
        key=key,
        session=session,
        derived_session=derived,
        kept=kept,
        user="user_id" in spec.metadata,
    )
    got = ("", False) if again is None else (again.call, again.finished)
    unmatched = results_without_call((*spec.history, *spec.input))
    return ParsedRequest(spec, asked, bool(request.stream), reply, got, unmatched)


def _fields(request: MessagesRequest, context: Context, first: list[Message]) -> dict[str, object]:
    """The fields of the fingerprint. Without a key it only serves to find the run of a lost connection. Then marks of
    caching do not count: Claude Code moves them from one try to the next."""
    fields = context.known_fields(sent_fields(request), _DEFAULTS)
    keyed = KEY.header in context.headers
    return fields if keyed else {**fields, "messages": first, "system": system_text(request.system)}


def count(raw: bytes, context: Context, max_parts: int) -> int:
    """About how many tokens the caller's system prompt, messages and tools are: four bytes of JSON are one, an image
    is IMAGE_TOKENS. The server's own prompt and tools are not counted."""
    request = f.decode(raw, CountRequest)
    context = context.under(request.model)
    messages = messages_of(checked_messages(f.required(request.messages, "messages"), max_parts))
    images = 0
    counted: list[Message] = []
    for message in [*_system(request), *without_questions(messages)]:
        content = message.get("content")
        if isinstance(content, list):
            rest = [part for part in content if part["type"] != "image_url"]
            images += len(content) - len(rest)
            message = {**message, "content": rest}
        counted.append(message)
    tools = _tools(request, context)
    return estimated_tokens(counted) + (len(msgspec.json.encode(tools)) // 4 if tools else 0) + images * IMAGE_TOKENS


def _system(request: CountRequest) -> list[Message]:
    text = system_text(request.system)
    return [{"role": "system", "content": text}] if text else []


def _sampling(request: MessagesRequest) -> dict[str, object]:
    named = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
    }
    return {name: value for name, value in named.items() if value is not None}


def _tools(request: CountRequest, context: Context) -> tuple[dict[str, object], ...]:
    """Tools with a schema are the caller's own. Typed ones (web_search_..., bash_...) belong to another server: see
    client_tools.hosted."""
    flat: list[dict[str, object]] = []
    for n, tool in enumerate(request.tools or []):
        if tool.get("type") not in (None, "custom"):
            continue
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise ClientError("invalid_value", f"tools.{n}.input_schema must be an object.", param="tools")
        flat.append({"name": tool.get("name"), "description": tool.get("description"), "parameters": schema})
    return client_tools.nested(flat, context)


def _choice(given: dict[str, object] | None) -> str | dict[str, object] | None:
    """tool_choice in the form of Chat Completions; auto is nothing."""
    match given:
        case None | {"type": "auto"}:
            return None
        case {"type": "any"}:
            return "required"
        case {"type": "none"}:
            return "none"
        case {"type": "tool", "name": str() as name}:
            return {"type": "function", "function": {"name": name}}
        case _:
            words = "tool_choice must have the type auto, any, none, or tool and the name of one."
            raise ClientError("invalid_value", words, param="tool_choice")


def _wants_thinking(request: CountRequest) -> bool:
    return request.thinking is not None and request.thinking.type != "disabled"


def _tool_blocks(context: Context) -> ToolProgress:
    """Which server tools are shown. The client table does not apply: its rows are about chat clients."""
    return context.tool_progress() if TOOL_PROGRESS.header in context.headers else context.profile.tool_progress


def _notes(request: MessagesRequest) -> dict[str, str]:
    user = request.metadata.user_id if request.metadata else None
    return {"user_id": user[:512]} if user else {}


def _first_user(messages: list[Message]) -> str:
    return next((text_of(message.get("content")) for message in messages if message.get("role") == "user"), "")
