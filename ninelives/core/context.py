"""What fits into a model's window. Owns: how much of a tool output the model sees, and leaving out messages of a
conversation that is too long. The oldest tool outputs go first, then the oldest turns; system prompts and the last turn
never go. The journal keeps every output, and a file in the workspace has the whole of a long one. Tokens are estimated:
four bytes are one token, a picture is a thousand. Refuses to know: any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ninelives.core.errors import AgentError
from ninelives.core.spec import Message

HEAD, TAIL = 24_000, 8_000
SHOWN = HEAD + TAIL
"""Most characters of an output that the model sees. Of a longer one it gets an extract."""
IMAGE_TOKENS = 1_000
"""Estimate for a picture, whatever the length of its data URL."""
GONE = "[This tool output was left out to make room.]"


OUTPUTS = ".ninelives/outputs"
"""The folder of long outputs, relative to the workspace."""


def output_path(call_id: str) -> str:
    """The file of a long output, relative to the workspace."""
    return f"{OUTPUTS}/{call_id}.txt"


def shortened(output: str) -> str:
    """A long output without a file that has all of it: its beginning and its end. It is not long any more."""
    head = HEAD - 200  # room for the note
    left_out = len(output) - head - TAIL
    note = f"[... {left_out} characters left out; this run leaves no file with all of them ...]"
    return f"{output[:head]}\n{note}\n{output[-TAIL:]}"


def estimated_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens these messages have."""
    return sum(_cost(message) for message in messages)


def text_tokens(*texts: str) -> int:
    """About how many tokens these texts have; at least one where there is any text."""
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return -(-size // 4)


def estimated_tool_tokens(tools: Sequence[dict[str, object]]) -> int:
    """About how many tokens the descriptions of these tools have."""
    return sum(len(msgspec.json.encode(tool)) // 4 for tool in tools)


def _cost(message: Message) -> int:
    content = message.get("content")
    if not isinstance(content, list):
        return len(msgspec.json.encode(message)) // 4 + 4
    texts = [part for part in content if not (isinstance(part, dict) and part.get("type") == "image_url")]
    images = len(content) - len(texts)
    rest = {**message, "content": texts} if images else message
    return len(msgspec.json.encode(rest)) // 4 + 4 + IMAGE_TOKENS * images


def fit(messages: Sequence[Message], budget: int, truncation: str) -> Sequence[Message]:
    """The messages, shortened to the budget. Raises AgentError where that is impossible or was not asked for."""
    costs = [_cost(message) for message in messages]
    if sum(costs) <= budget:
        return messages
    if truncation != "auto":
        raise AgentError(
            "context_length_exceeded",
            f"The conversation is longer than the {budget} tokens of this model. Send less, or truncation=auto.",
            status=400,
        )
    kept, costs = _without_outputs(list(messages), costs, budget)
    kept, costs = _without_turns(kept, costs, budget)
    if sum(costs) > budget:
        raise AgentError(
            "context_length_exceeded",
            f"The last turn alone is longer than the {budget} tokens of this model.",
            status=400,
        )
    return tuple(kept)


def _last_turn(messages: Sequence[Message]) -> int:
    """The index of the last user message, where the last turn begins."""
    users = [n for n, message in enumerate(messages) if message.get("role") == "user"]
    return users[-1] if users else 0


def _without_outputs(messages: list[Message], costs: list[int], budget: int) -> tuple[list[Message], list[int]]:
    """Replace the oldest tool outputs. Each message is measured once, because a chain may have thousands."""
    total = sum(costs)
    for n in range(_last_turn(messages)):
        if total <= budget:
            break
        shorter: Message = {**messages[n], "content": GONE}
        if messages[n].get("role") == "tool" and _cost(shorter) < costs[n]:
            total += _cost(shorter) - costs[n]
            messages[n], costs[n] = shorter, _cost(shorter)
    return messages, costs


def _without_turns(messages: list[Message], costs: list[int], budget: int) -> tuple[list[Message], list[int]]:
    """Drop whole turns, oldest first. So no call loses its result."""
    users = [n for n, message in enumerate(messages) if message.get("role") == "user"]
    total, first = sum(costs), users[0] if users else 0
    begin = first
    for turn in users[1:]:
        if total <= budget:
            break
        total -= sum(costs[begin:turn])
        begin = turn
    return messages[:first] + messages[begin:], costs[:first] + costs[begin:]
