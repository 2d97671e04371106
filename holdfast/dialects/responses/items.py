"""The items of a response. Owns: how a message, a thought, a tool call and its output are written, for frames and
bodies alike, so that they cannot disagree. Refuses to know: in which order they come."""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.ids import handed_id, item_id
from holdfast.core.spec import Spec
from holdfast.dialects.shared import bounded

Item = dict[str, object]
SERVER_LABEL = "holdfast"


def text_part(text: str) -> Item:
    """One part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> Item:
    """What a model says when it declines."""
    return {"type": "refusal", "refusal": text}


def message(run: str, seq: int, text: str | None, status: str, refusal: str = "") -> Item:
    """A message; no text and no refusal: without content."""
    content = [text_part(text)] if text or (text is not None and not refusal) else []
    if refusal:
        content.append(refusal_part(refusal))
    return {
        "type": "message",
        "id": item_id("msg", run, seq),
        "status": status,
        "role": "assistant",
        "content": content,
    }


def reasoning(run: str, seq: int, text: str | None, status: str) -> Item:
    """A thought, as a summary."""
    summary = [] if text is None else [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": item_id("rs", run, seq), "summary": summary, "status": status}


def function_call(run: str, seq: int, call: e.Call, *, done: bool) -> Item:
    """A call; its arguments are there when it is done."""
    return {
        "type": "function_call",
        "id": item_id("fc", run, seq),
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if done else "",
        "status": "completed" if done else "in_progress",
    }


def handed_call(call: e.Call, *, done: bool) -> Item:
    """A call that the caller must carry out."""
    return {
        "type": "function_call",
        "id": handed_id(call.id),
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments if done else "",
        "status": "completed" if done else "in_progress",
    }


def function_call_output(run: str, seq: int, finished: e.ToolFinished, spec: Spec, *, done: bool) -> Item:
    """What a call gave, in the form of a frame: an array of parts (C9)."""
    output, _ = bounded(finished.output, spec.output_bound)
    return {
        "type": "function_call_output",
        "id": item_id("fco", run, seq),
        "call_id": finished.call_id,
        "output": [{"type": "input_text", "text": output}],
        "status": "completed" if done else "in_progress",
    }


def mcp_call(run: str, seq: int, call: e.Call, finished: e.ToolFinished | None, spec: Spec, status: str) -> Item:
    """A call and, once it is settled, what it gave, as one item; `status` counts while it is not settled."""
    output, error = None, None
    if finished is not None:
        output, _ = bounded(finished.output, spec.output_bound)
        status = "failed" if finished.is_error else "completed"
        if finished.is_error:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output}]}
    return {
        "type": "mcp_call",
        "id": item_id("mcp", run, seq),
        "server_label": SERVER_LABEL,
        "name": call.name,
        "arguments": call.arguments,
        "output": output,
        "error": error,
        "approval_request_id": None,
        "status": status,
    }


def plain_output(item: Item) -> Item:
    """The same item as a JSON body shows it: a call's output as a plain string (C9)."""
    if item["type"] != "function_call_output":
        return item
    parts = item["output"]
    text = "".join(part["text"] for part in parts) if isinstance(parts, list) else parts
    return {**item, "output": text}
