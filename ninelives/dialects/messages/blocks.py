"""The content blocks of a message. Owns: how text, a thought, a tool call and its result are written, for frames and
bodies alike, so that they cannot disagree. Tools that this server ran are mcp_tool_use and mcp_tool_result: the one
pair of this API that takes any tool's name and any output, and that no client runs itself. Refuses to know: in which
order blocks come."""

from __future__ import annotations

from ninelives.core import events as e
from ninelives.core.ids import item_id
from ninelives.core.spec import Spec
from ninelives.dialects.messages.shapes import AnthropicMessage, AnthropicUsage, StopReason
from ninelives.dialects.shared import arguments_object, bounded, server_label

Block = dict[str, object]


def text(content: str) -> Block:
    """A text block."""
    return {"type": "text", "text": content}


def thinking(thought: str, signature: str) -> Block:
    """A thought. Its signature is only a name: it is not checked when the block comes back."""
    return {"type": "thinking", "thinking": thought, "signature": signature}


def signature(run: str, seq: int) -> str:
    """The signature of the thought that began at `seq`."""
    return item_id("sig", run, seq)


def server_call(call: e.Call, spec: Spec) -> Block:
    """A call that this server makes, whole from the start: some clients refuse input deltas for this kind of block."""
    return {
        "type": "mcp_tool_use",
        "id": call.id,
        "name": call.name,
        "server_name": server_label(spec),
        "input": arguments_object(call.arguments),
    }


def server_result(finished: e.ToolFinished, spec: Spec) -> Block:
    """The result of such a call."""
    output, _ = bounded(finished.output, spec.output_bound)
    return {
        "type": "mcp_tool_result",
        "tool_use_id": finished.call_id,
        "is_error": finished.is_error,
        "content": [text(output)],
    }


def client_call(call: e.Call) -> Block:
    """A call for the caller. Its input is an object, whatever the model wrote."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}


def shows_thinking(spec: Spec) -> bool:
    """Thoughts are shown only on request, as the API says."""
    return bool(spec.echo.get("thinking"))


def shows_tools(spec: Spec) -> bool:
    """False if the caller wants no blocks of server tools (X-Tool-Progress: off)."""
    return spec.tool_progress != "off"


def usage_object(usage: e.Usage) -> AnthropicUsage:
    """Usage as this API counts it."""
    return AnthropicUsage(
        input_tokens=max(usage.input_tokens - usage.cached_tokens, 0),
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )


def message(
    shown_id: str, model: str, content: list[Block], stop: StopReason | None, usage: e.Usage
) -> AnthropicMessage:
    """A message: at its start, as message_start shows it, and at its end."""
    return AnthropicMessage(
        id=shown_id,
        type="message",
        role="assistant",
        model=model,
        content=content,
        stop_reason=stop,
        stop_sequence=None,
        usage=usage_object(usage),
    )
