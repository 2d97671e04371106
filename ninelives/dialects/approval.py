"""Approvals for front ends that only know chat (G11). Owns: the text of the question, how an answer is recognised, and
how both are removed from the history before it goes to a model. Only a message of the owner that says "approve CODE" or
"deny CODE", and nothing else, is an answer. Codes in the text of a model or a tool do nothing. Refuses to know: who
waits."""

from __future__ import annotations

import re
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.events import ApprovalGiven, ApprovalRequested, Entry
from ninelives.core.history import text_of
from ninelives.core.spec import Message

_ANSWER = re.compile(r"\A(approve|deny)\s++([A-Z0-9]{4,16})\s*+\.?\Z", re.IGNORECASE)
LONGEST_ANSWER = 100
"""A longer message is no answer. So the time of the expression above is bounded, whatever is sent."""
MARK = "Approval needed"
_QUESTION = f"**{MARK}**"


class RestOfRun:
    """The rest of a run from some entry on, as an answer of its own. It is silent until then. A mixin for a projection
    whose views have `muted`, `asked`, `over` and `held`."""

    name: str

    def __init__(self, after: str, shown_id: str) -> None:
        self.name = f"{self.name} after {after} as {shown_id}"
        self.shown_id = shown_id

    def view0(self, after: int) -> Any:
        """See Projection.view0."""
        return replace(super().view0(after), muted=True)  # type: ignore[misc]

    def step(self, view: Any, entry: Entry) -> tuple[Any, list[bytes]]:
        """See Projection.step."""
        after, frames = super().step(view, entry)  # type: ignore[misc]
        if not view.muted:
            return after, frames
        if self.begins_after(view, entry):
            return self.first_view(after), []
        asked = entry.event.code if isinstance(entry.event, ApprovalRequested) else view.asked
        return replace(after, over=False, held=None, asked=asked), []

    def begins_after(self, view: Any, entry: Entry) -> bool:
        """Is this the last entry before the rest?"""
        raise NotImplementedError

    def first_view(self, view: Any) -> Any:
        """The view with which the rest begins."""
        raise NotImplementedError


class Continued(RestOfRun):
    """The rest of a run after a question was answered (G11)."""

    def __init__(self, code: str, shown_id: str) -> None:
        super().__init__(code, shown_id)
        self._code = code

    def begins_after(self, view: Any, entry: Entry) -> bool:
        """See RestOfRun.begins_after."""
        return isinstance(entry.event, ApprovalGiven) and bool(view.asked == self._code)


class Reply(Struct, frozen=True):
    """A person's answer."""

    choice: Literal["once", "deny"]
    code: str
    quoted: bool = False
    """The question is in the conversation. If it is not, and no run waits, the message is plain text."""


def question(asked: ApprovalRequested) -> str:
    """The text for the person: the exact call, and how to reply."""
    arguments = asked.call.arguments
    shown = arguments if len(arguments) <= 2000 else f"{arguments[:2000]}… ({len(arguments)} characters in all)"
    return (
        f"\n\n**{MARK}** before this call is made:\n\n"
        f"```\n{asked.call.name} {shown}\n```\n\n"
        f"Reply `approve {asked.code}` to allow it once, or `deny {asked.code}`."
    )


def reply_in(messages: list[Message]) -> Reply | None:
    """The answer in the last message, if there is one."""
    last = messages[-1] if messages else {}
    said = text_of(last.get("content")).strip() if last.get("role") == "user" else ""
    found = _ANSWER.match(said) if len(said) <= LONGEST_ANSWER else None
    if found is None:
        return None
    choice: Literal["once", "deny"] = "once" if found.group(1).lower() == "approve" else "deny"
    code = found.group(2).upper()
    quoted = any(_asks(message) and code in text_of(message.get("content")) for message in messages[:-1])
    return Reply(choice, code, quoted)


def without_questions(messages: list[Message]) -> list[Message]:
    """The conversation without questions and answers."""
    kept: list[Message] = []
    torn = False  # the last kept message lost its question, so the next one continues it
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user" and kept and reply_in([message]) and _asks(kept[-1]):
            before, _, _ = text_of(kept[-1].get("content")).partition(_QUESTION)
            kept[-1] = {**kept[-1], "content": before.rstrip("\n")}
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
    return message.get("role") == "assistant" and _QUESTION in text_of(message.get("content"))


def _joins(before: Message, message: Message) -> bool:
    """Are these two halves of one answer, with only the question between them?"""
    both = before.get("role") == message.get("role") == "assistant"
    return both and not before.get("tool_calls") and not message.get("tool_calls")
