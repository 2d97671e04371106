"""What story tests say of /v1/conversations again and again. Owns: asking in one, and seeing it from both ends."""

from __future__ import annotations

from typing import Any

import openai

from tests.story.server import Upstream

MODEL = "hermes-agent"
BASE = "/v1/conversations"


def said(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": text}


def told(upstream: Upstream, marker: str) -> list[tuple[str, Any]]:
    """Role and content of what the upstream was told last with this marker, without the server's own prompt."""
    messages = upstream.asked(marker)[-1]["messages"][1:]
    return [(message["role"], message["content"]) for message in messages]


def texts(items: Any) -> list[str]:
    """The texts of messages, the kinds of all other items."""
    return [item.content[0].text if item.type == "message" else item.type for item in items]


def ask(sdk: openai.OpenAI, talk: str, text: str, answer: str, **fields: Any) -> Any:
    return sdk.responses.create(model=MODEL, conversation=talk, input=f"{text} [[text={answer}]]", **fields)


def ordered(sdk: openai.OpenAI, talk: str) -> list[Any]:
    return list(sdk.conversations.items.list(talk, order="asc", limit=100))
