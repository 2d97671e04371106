"""The items of a response. Owns: how a message, a thought, a tool call and its output are written, for frames and
bodies alike, so that they cannot disagree. Refuses to know: in which order they come."""

from __future__ import annotations

from msgspec import to_builtins
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.ids import handed_id, item_id
from ninelives.core.spec import Spec
from ninelives.dialects.responses.shapes import (
    FunctionCallItem,
    FunctionCallOutputItem,
    ItemStatus,
    McpCallItem,
    McpStatus,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from ninelives.dialects.shared import bounded, server_label

Item = dict[str, object]
"""An item of an input, as the caller sent it."""


def text_part(text: str) -> Item:
    """One part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> Item:
    """The text of a model that declines."""
    return {"type": "refusal", "refusal": text}


def message(run: str, seq: int, text: str | None, status: ItemStatus, refusal: str = "") -> MessageItem:
    """A message. Without text and refusal it has no content."""
    content = [text_part(text)] if text or (text is not None and not refusal) else []
    if refusal:
        content.append(refusal_part(refusal))
    return MessageItem(
        id=item_id("msg", run, seq),
        status=status,
        role="assistant",
        content=content,
    )


def reasoning(run: str, seq: int, text: str | None, status: ItemStatus) -> ReasoningItem:
    """A thought, as a summary."""
    summary: list[Item] = [] if text is None else [{"type": "summary_text", "text": text}]
    return ReasoningItem(id=item_id("rs", run, seq), summary=summary, status=status)


def function_call(run: str, seq: int, call: e.Call, *, done: bool) -> FunctionCallItem:
    """A call of a server tool. It has its arguments when it is done."""
    return FunctionCallItem(
        id=item_id("fc", run, seq),
        call_id=call.id,
        name=call.name,
        arguments=call.arguments if done else "",
        status="completed" if done else "in_progress",
    )


def handed_call(call: e.Call, *, done: bool) -> FunctionCallItem:
    """A call for the caller."""
    return FunctionCallItem(
        id=handed_id(call.id),
        call_id=call.id,
        name=call.name,
        arguments=call.arguments if done else "",
        status="completed" if done else "in_progress",
    )


def function_call_output(
    run: str, seq: int, finished: e.ToolFinished, spec: Spec, *, done: bool
) -> FunctionCallOutputItem:
    """The result of a call in the form of a frame: an array of parts (C9)."""
    output, _ = bounded(finished.output, spec.output_bound)
    return FunctionCallOutputItem(
        id=item_id("fco", run, seq),
        call_id=finished.call_id,
        output=[{"type": "input_text", "text": output}],
        status="completed" if done else "in_progress",
    )


def mcp_call(
    run: str, seq: int, call: e.Call, finished: e.ToolFinished | None, spec: Spec, status: McpStatus
) -> McpCallItem:
    """A call and its result as one item. `status` applies until there is a result."""
    output: str | None = None
    error: Item | None = None
    if finished is not None:
        output, _ = bounded(finished.output, spec.output_bound)
        status = "failed" if finished.is_error else "completed"
        if finished.is_error:
            error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output}]}
    return McpCallItem(
        id=item_id("mcp", run, seq),
        server_label=server_label(spec),
        name=call.name,
        arguments=call.arguments,
        output=output,
        error=error,
        approval_request_id=None,
        status=status,
    )


def plain_output(item: OutputItem) -> OutputItem:
    """The same item as a JSON body shows it: a call's output as a plain string (C9)."""
    if not isinstance(item, FunctionCallOutputItem) or isinstance(item.output, str):
        return item
    return replace(item, output="".join(str(part["text"]) for part in item.output))


def as_input(item: OutputItem) -> Item:
    """The same item as a caller sends it back."""
    shown: Item = to_builtins(plain_output(item))
    return shown
