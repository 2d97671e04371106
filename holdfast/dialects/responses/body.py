"""A response as JSON. Owns: the response object with all its fields (facts/protocol.md 3), built from a state. Refuses
to know: frames, engines and HTTP."""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.ids import wire_id
from holdfast.core.spec import Resolved, Spec
from holdfast.core.state import Called, Facts, Handed, Returned, RunState, Said, Thought
from holdfast.dialects.responses import items
from holdfast.dialects.shared import hidden

_STANDING = {"whole": "completed", "cut": "incomplete", "dropped": "incomplete"}


def usage_object(usage: e.Usage) -> dict[str, object]:
    """Usage as Responses tells it."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def head(run: str, created_at: int, spec: Spec, resolved: Resolved) -> dict[str, object]:
    """The fields that never change over a run."""
    echo = spec.echo
    previous = wire_id("responses", resolved.previous) if resolved.previous and not resolved.conversation else None
    return {
        "id": wire_id("responses", run),
        "object": "response",
        "created_at": created_at // 1000,
        "completed_at": None,
        "status": "in_progress",
        "background": spec.background,
        "conversation": {"id": resolved.conversation} if resolved.conversation else None,
        "error": None,
        "frequency_penalty": echo.get("frequency_penalty", 0),
        "incomplete_details": None,
        "instructions": echo.get("instructions"),
        "max_output_tokens": spec.max_output_tokens,
        "max_tool_calls": spec.max_tool_calls,
        "metadata": spec.metadata,
        "model": spec.model,
        "output": [],
        "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "presence_penalty": echo.get("presence_penalty", 0),
        "previous_response_id": echo.get("previous_response_id", previous),  # echoed: only a connection knew it
        "prompt_cache_key": echo.get("prompt_cache_key"),
        "reasoning": echo.get("reasoning"),
        "safety_identifier": echo.get("safety_identifier"),
        "service_tier": echo.get("service_tier", "default"),
        "store": spec.store,
        "temperature": echo.get("temperature", 1),
        "text": echo.get("text", {"format": {"type": "text"}}),
        "tool_choice": echo.get("tool_choice", "auto"),
        "tools": echo.get("tools", []),
        "top_logprobs": echo.get("top_logprobs", 0),
        "top_p": echo.get("top_p", 1),
        "truncation": echo.get("truncation", "disabled"),
        "usage": None,
        "user": echo.get("user"),
    }


def ending(end: e.Terminal, usage: e.Usage, at: int, projection: int) -> dict[str, object]:
    """The fields that the end of a run settles."""
    fields: dict[str, object] = {"usage": usage_object(usage)}
    match end:
        case e.RunCompleted():
            fields |= {"status": "completed", "completed_at": at // 1000}
        case e.RunFailed():
            # From projection 2 on: the AI SDK cannot read a failed response whose error has no type.
            kind = {"type": "server_error"} if projection >= 2 else {}
            fields |= {"status": "failed", "error": {**kind, "code": end.code, "message": _reasoned(end)}}
        case e.RunCancelled():
            fields |= {"status": "cancelled"}
        case e.RunInterrupted(reason):
            fields |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return fields


def _reasoned(failed: e.RunFailed) -> str:
    """The SDK's list of codes is closed: our own reason goes into the message (C10)."""
    return f"{failed.message} ({failed.reason})" if failed.reason else failed.message


def output(state: RunState) -> list[items.Item]:
    """The items so far, as frames show them."""
    facts = state.facts
    run = facts.run
    unseen = {i.started.call.id for i in facts.items if isinstance(i, Called) and hidden(i.started.call.name)}
    shown: list[items.Item] = []
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
    for item in state.draft_items:
        match item:
            case Thought(seq, text):
                status = "in_progress" if seq == state.thought_seq else "completed"
                shown.append(items.reasoning(run, seq, text, status))
            case Said(seq, text, _, refusal):
                shown.append(items.message(run, seq, text, "in_progress", refusal))
    return shown


def _tool_items(facts: Facts, item: Called | Returned, unseen: set[str]) -> list[items.Item]:
    """A server tool's call or result, in the style of the run."""
    spec, run = facts.accepted.spec, facts.run
    pair = spec.tool_items == "function_call"
    match item:
        case Called(seq, started) if started.call.id not in unseen:
            if pair:
                return [items.function_call(run, seq, started.call, done=True)]
            unsettled = "in_progress" if facts.end is None else "incomplete"
            return [items.mcp_call(run, seq, started.call, facts.results.get(started.call.id), spec, unsettled)]
        case Returned(seq, finished) if pair and finished.call_id not in unseen:
            return [items.function_call_output(run, seq, finished, spec, done=True)]
        case _:
            return []


def response(state: RunState) -> dict[str, object]:
    """The response object in the form of a frame."""
    facts = state.facts
    shown = head(facts.run, facts.created_at, facts.accepted.spec, facts.accepted.resolved)
    shown["status"] = state.status
    shown["output"] = output(state)
    if facts.end is not None:
        shown |= ending(facts.end, facts.usage, facts.updated_at, facts.accepted.spec.projection)
    return shown


def body(state: RunState, metadata: dict[str, str] | None = None) -> dict[str, object]:
    """The response object as a JSON body."""
    shown = response(state)
    shown["output"] = [items.plain_output(item) for item in output(state)]
    if metadata is not None:
        shown["metadata"] = metadata
    return shown


def input_items(state: RunState) -> list[dict[str, object]]:
    """The input of a run, each item with an id, oldest first."""
    run = state.facts.run
    given = state.facts.accepted.spec.items
    return [{**_whole(item), "id": _own_id(item) or f"item_{run}{n:06x}"} for n, item in enumerate(given)]


def _own_id(item: items.Item) -> str | None:
    given = item.get("id")
    return given if isinstance(given, str) else None


def _whole(item: items.Item) -> items.Item:
    """An item in the form in which the API lists it: callers may leave out what does not matter to a model."""
    kind = item.get("type") or "message"
    if kind in ("function_call", "function_call_output"):
        return {**item, "status": item.get("status") or "completed"}
    if kind != "message":
        return item
    content = item["content"]
    if isinstance(content, str):
        content = [{"type": "output_text" if item["role"] == "assistant" else "input_text", "text": content}]
    parts = [_whole_part(part) for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return {**item, "type": "message", "status": item.get("status") or "completed", "content": parts}


def _whole_part(part: items.Item) -> items.Item:
    match part.get("type"):
        case "output_text":
            return {"annotations": [], "logprobs": [], **part}
        case "input_image":
            return {**part, "detail": part.get("detail") or "auto"}
        case _:
            return part
