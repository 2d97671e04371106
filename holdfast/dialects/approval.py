"""Approvals for front ends that only know chat (G11). Owns: the words of the question, how an answer to it is
recognised, and how both are taken out of the history before it goes to a model. Only the owner's own message, "approve
CODE" or "deny CODE" and nothing else, is an answer: codes in a model's or a tool's text do nothing. Refuses to know:
who waits."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from holdfast.core.admission import Asked
from holdfast.core.events import ApprovalRequested
from holdfast.core.history import text_of
from holdfast.core.spec import Message, Spec

_ANSWER = re.compile(r"\s*(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z", re.IGNORECASE)
MARK = "Approval needed"
_QUESTION = re.compile(r"\n*\*\*" + MARK + r"\*\*.*\Z", re.DOTALL)


class Reply(Struct, frozen=True):
    """A person's answer."""

    choice: Literal["once", "deny"]
    code: str
    quoted: bool = False
    """The question stands in the conversation. If not, and nobody waits, these are just words."""


class Talk(Struct, frozen=True):
    """A request in which a person talks, understood: on chat and on messages."""

    spec: Spec
    asked: Asked
    stream: bool
    reply: Reply | None = None
    """The last message answers a question."""


def question(asked: ApprovalRequested) -> str:
    """What the person reads: the exact call, and what to reply."""
    arguments = asked.call.arguments
    shown = arguments if len(arguments) <= 2000 else f"{arguments[:2000]}… ({len(arguments)} characters in all)"
    return (
        f"\n\n**{MARK}** before this call is made:\n\n"
        f"```\n{asked.call.name} {shown}\n```\n\n"
        f"Reply `approve {asked.code}` to allow it once, or `deny {asked.code}`."
    )


def reply_in(messages: list[Message]) -> Reply | None:
    """The answer in the last message, if it is one."""
    last = messages[-1] if messages else {}
    found = _ANSWER.match(text_of(last.get("content"))) if last.get("role") == "user" else None
    if found is None:
        return None
    choice: Literal["once", "deny"] = "once" if found.group(1).lower() == "approve" else "deny"
    code = found.group(2).upper()
    quoted = any(_asks(message) and code in text_of(message.get("content")) for message in messages[:-1])
    return Reply(choice, code, quoted)


def without_questions(messages: list[Message]) -> list[Message]:
    """The conversation as if nobody had been asked: question and answer are left out."""
    kept: list[Message] = []
    torn = False  # the last kept message lost its question: the next one is its other half
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user" and kept and reply_in([message]) and _asks(kept[-1]):
            kept[-1] = {**kept[-1], "content": _QUESTION.sub("", text_of(kept[-1].get("content")))}
            torn = bool(kept[-1]["content"])
            if not torn:
                kept.pop()
            continue
        if torn and _joins(kept[-1], message):
            kept[-1] = {**kept[-1], "content": f"{text_of(kept[-1].get('content'))}\n\n{text_of(content)}"}
        else:
            kept.append(message)
        torn = False
    return kept


def _asks(message: Message) -> bool:
    return message.get("role") == "assistant" and bool(_QUESTION.search(text_of(message.get("content"))))


def _joins(before: Message, message: Message) -> bool:
    """Two halves of one answer, with nothing but the question between them."""
    both = before.get("role") == message.get("role") == "assistant"
    return both and not before.get("tool_calls") and not message.get("tool_calls")
