"""Approvals for front ends that only know chat (G11). Owns: the words of the question, how an answer to it is
recognised, and how both are taken out of the history before it goes to a model. Only the owner's own message, "approve
CODE" or "deny CODE" and nothing else, is an answer: codes in a model's or a tool's text do nothing. Refuses to know:
who waits."""

from __future__ import annotations

import re
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.admission import Asked
from holdfast.core.events import ApprovalGiven, ApprovalRequested, Entry
from holdfast.core.history import text_of
from holdfast.core.spec import Message, Spec

_ANSWER = re.compile(r"\s*(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z", re.IGNORECASE)
MARK = "Approval needed"
_QUESTION = re.compile(r"\n*\*\*" + MARK + r"\*\*.*\Z", re.DOTALL)


class Continued:
    """The rest of a run, from the answer to a question on, as an answer of its own (G11): silent until then. Stands
    before a dialect's projection, whose views know `muted`, `asked`, `over` and `held`."""

    name: str

    def __init__(self, code: str, shown_id: str) -> None:
        self.name = f"{self.name} after {code}"
        self.shown_id = shown_id
        self._code = code

    def view0(self, after: int) -> Any:
        """See Projection.view0."""
        return replace(super().view0(after), muted=True)  # type: ignore[misc]

    def step(self, view: Any, entry: Entry) -> tuple[Any, list[bytes]]:
        """See Projection.step."""
        event = entry.event
        if view.muted and isinstance(event, ApprovalGiven) and view.asked == self._code:
            return self._speak(view), []
        after, frames = super().step(view, entry)  # type: ignore[misc]
        if not view.muted:
            return after, frames
        asked = event.code if isinstance(event, ApprovalRequested) else view.asked
        return replace(after, over=False, held=None, asked=asked), []

    def _speak(self, view: Any) -> Any:
        """The view from which the rest is told."""
        raise NotImplementedError


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
