"""A response as JSON. Owns: the response object of a state, with all fields of the API (C1). Refuses to know:
frames, engines and HTTP."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.core.spec import Resolved, Spec
from ninelives.core.state import Called, Facts, Handed, Returned, RunState, Said, Thought
from ninelives.dialects.responses import items
from ninelives.dialects.responses.shapes import ItemStatus, McpStatus, OutputItem, Response, ResponseUsage
from ninelives.dialects.shared import hidden

_STANDING: dict[str, ItemStatus] = {"whole": "completed", "cut": "incomplete", "dropped": "incomplete"}


def usage_object(usage: e.Usage) -> ResponseUsage:
    """Usage as Responses counts it."""
    return ResponseUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details={"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        output_tokens=usage.output_tokens,
        output_tokens_details={"reasoning_tokens": usage.reasoning_tokens},
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def head(run: str, created_at: int, spec: Spec, resolved: Resolved) -> Response:
    """The response at its start: most of its fields never change."""
    echo: dict[str, Any] = spec.echo  # checked by parse
    previous = wire_id("responses", resolved.previous) if resolved.previous and not resolved.conversation else None
    return Response(
        id=wire_id("responses", run),
        object="response",
        created_at=created_at // 1000,
        completed_at=None,
        status="in_progress",
        background=spec.background,
        conversation={"id": resolved.conversation} if resolved.conversation else None,
        error=None,
        frequency_penalty=echo.get("frequency_penalty", 0),
        incomplete_details=None,
        instructions=echo.get("instructions"),
        max_output_tokens=spec.max_output_tokens,
        max_tool_calls=spec.max_tool_calls,
        metadata=spec.metadata,
        model=spec.model,
        output=[],
        parallel_tool_calls=echo.get("parallel_tool_calls", True),
        presence_penalty=echo.get("presence_penalty", 0),
        previous_response_id=echo.get("previous_response_id", previous),  # echoed when only a websocket knew it
        prompt_cache_key=echo.get("prompt_cache_key"),
        reasoning=echo.get("reasoning"),
        safety_identifier=echo.get("safety_identifier"),
        service_tier=echo.get("service_tier", "default"),
        store=spec.store,
        temperature=echo.get("temperature", 1),
        text=echo.get("text", {"format": {"type": "text"}}),
        tool_choice=echo.get("tool_choice", "auto"),
        tools=echo.get("tools", []),
        top_logprobs=echo.get("top_logprobs", 0),
        top_p=echo.get("top_p", 1),
        truncation=echo.get("truncation", "disabled"),
        usage=None,
        user=echo.get("user"),
        ignored_tools=spec.ignored_tools or UNSET,
    )


def ending(end: e.Terminal, usage: e.Usage, at: int, projection: int) -> dict[str, object]:
    """The fields that the end of a run sets."""
    fields: dict[str, object] = {"usage": usage_object(usage)}
    match end:
        case e.RunCompleted():
            fields |= {"status": "completed", "completed_at": at // 1000}
        case e.RunFailed():
            # From projection 2 on: the AI SDK cannot read a failed response whose error has no type.
            kind = {"type": "server_error"} if projection >= 2 else {}
            fields |= {"status": "failed", "error": {**kind, "code": end.code, "message": _message_with_reason(end)}}
        case e.RunCancelled():
            fields |= {"status": "cancelled"}
        case e.RunInterrupted(reason):
            fields |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return fields


def _message_with_reason(failed: e.RunFailed) -> str:
    """The message with our own reason: the SDK's list of codes is closed (C10)."""
    return f"{failed.message} ({failed.reason})" if failed.reason else failed.message


def output(state: RunState) -> list[OutputItem]:
    """The items so far, as frames show them."""
    facts = state.facts
    run = facts.run
    unseen = {i.started.call.id for i in facts.items if isinstance(i, Called) and hidden(i.started.call.name)}
    shown: list[OutputItem] = []
    for item in facts.items:
        match item:
            case Thought(seq, text, kept):
                shown.append(items.reasoning(run, seq, text if kept else None, "completed" if kept else "incomplete"))
            case Said(seq, text, standing, refusal):
                said = None if standing == "dropped" else text
                shown.append(items.message(run, seq, said, _STANDING[standing], refusal))
            case Handed(_, call):
                shown.append(items.handed_call(call, done=True))
            case Called() | Returned():
                shown.extend(_tool_items(facts, item, unseen))
    return shown + _draft_items(state)


def _draft_items(state: RunState) -> list[OutputItem]:
    """The items of the message that is streaming in."""
    run = state.facts.run
    shown: list[OutputItem] = []
    for item in state.draft_items:
        match item:
            case Thought(seq, text):
                status: ItemStatus = "in_progress" if seq == state.thought_seq else "completed"
                shown.append(items.reasoning(run, seq, text, status))
            case Said(seq, text, _, refusal):
                shown.append(items.message(run, seq, text, "in_progress", refusal))
    return shown


def _tool_items(facts: Facts, item: Called | Returned, unseen: set[str]) -> list[OutputItem]:
    """A server tool's call or result, in the style of the run."""
    spec, run = facts.accepted.spec, facts.run
    pair = spec.tool_items == "function_call"
    match item:
        case Called(seq, started) if started.call.id not in unseen:
            if pair:
                return [items.function_call(run, seq, started.call, done=True)]
            unsettled: McpStatus = "in_progress" if facts.end is None else "incomplete"
            return [items.mcp_call(run, seq, started.call, facts.results.get(started.call.id), spec, unsettled)]
        case Returned(seq, finished) if pair and finished.call_id not in unseen:
            return [items.function_call_output(run, seq, finished, spec, done=True)]
        case _:
            return []


def response(state: RunState) -> Response:
    """The response object in the form of a frame."""
    facts = state.facts
    spec = facts.accepted.spec
    changed: dict[str, object] = {"status": state.status, "output": output(state)}
    if facts.end is not None:
        changed |= ending(facts.end, facts.usage, facts.updated_at, spec.projection)
    return replace(head(facts.run, facts.created_at, spec, facts.accepted.resolved), **changed)


def body(state: RunState, metadata: dict[str, str] | None = None) -> Response:
    """The response object as a JSON body."""
    shown = response(state)
    plain = [items.plain_output(item) for item in shown.output]
    return replace(shown, output=plain, metadata=shown.metadata if metadata is None else metadata)


def input_items(state: RunState) -> list[dict[str, object]]:
    """The input of a run, each item with an id, oldest first."""
    run = state.facts.run
    given = state.facts.accepted.spec.items
    return [{**_completed_item(item), "id": _own_id(item) or f"item_{run}{n:06x}"} for n, item in enumerate(given)]


def _own_id(item: items.Item) -> str | None:
    given = item.get("id")
    return given if isinstance(given, str) else None


def _completed_item(item: items.Item) -> items.Item:
    """An item with the fields that callers may leave out, as the API lists it."""
    kind = item.get("type") or "message"
    if kind in ("function_call", "function_call_output"):
        return {**item, "status": item.get("status") or "completed"}
    if kind != "message":
        return item
    content = item["content"]
    if isinstance(content, str):
        content = [{"type": "output_text" if item["role"] == "assistant" else "input_text", "text": content}]
    parts = [_completed_part(part) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return {**item, "type": "message", "status": item.get("status") or "completed", "content": parts}


def _completed_part(part: items.Item) -> items.Item:
    match part.get("type"):
        case "output_text":
            return {"annotations": [], "logprobs": [], **part}
        case "input_image":
            return {**part, "detail": part.get("detail") or "auto"}
        case _:
            return part
