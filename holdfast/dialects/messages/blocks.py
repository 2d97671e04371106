"""The content blocks of a message. Owns: how text, a thought, a tool call and its result are written, for frames and
bodies alike, so that they cannot disagree. Tools that this server ran are mcp_tool_use and mcp_tool_result: the one
pair of this API that takes any tool's name and any output, and that no client runs itself. Refuses to know: in which
order blocks come."""

from __future__ import annotations

from holdfast.core import events as e
from holdfast.core.ids import item_id
from holdfast.core.spec import Spec
from holdfast.dialects.shared import arguments_object, bounded

Block = dict[str, object]
SERVER_NAME = "holdfast"


def text(told: str) -> Block:
    """A piece of answer."""
    return {"type": "text", "text": told}


def thinking(told: str, signature: str) -> Block:
    """A thought. Its signature is only a name: nobody checks it when the block comes back."""
    return {"type": "thinking", "thinking": told, "signature": signature}


def signature(run: str, seq: int) -> str:
    """The signature of the thought that began at `seq`."""
    return item_id("sig", run, seq)


def server_call(call: e.Call) -> Block:
    """A call that this server makes, whole from the start: some clients refuse input deltas for this kind of block."""
    return {
        "type": "mcp_tool_use",
        "id": call.id,
        "name": call.name,
        "server_name": SERVER_NAME,
        "input": arguments_object(call.arguments),
    }


def server_result(finished: e.ToolFinished, spec: Spec) -> Block:
    """What such a call gave."""
    output, _ = bounded(finished.output, spec.output_bound)
    return {
        "type": "mcp_tool_result",
        "tool_use_id": finished.call_id,
        "is_error": finished.is_error,
        "content": [text(output)],
    }


def client_call(call: e.Call) -> Block:
    """A call that the caller must carry out. Its input is an object, whatever the model wrote."""
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call.arguments)}


def shows_thinking(spec: Spec) -> bool:
    """Thoughts are shown to those who asked for them, as the API says."""
    return bool(spec.echo.get("thinking"))


def shows_tools(spec: Spec) -> bool:
    """False where the caller wants an answer without blocks of server tools (X-Tool-Progress: off)."""
    return spec.tool_progress != "off"


def usage_object(usage: e.Usage) -> Block:
    """Tokens as this API tells them: those read from a cache are not among input_tokens."""
    return {
        "input_tokens": max(usage.input_tokens - usage.cached_tokens, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
