"""Approvals for front ends that only know chat (G11). Owns: the text of the question, how an answer is recognised, and
how both are removed from the history before it goes to a model. Only a message of the owner that says "approve CODE" or
"deny CODE", and nothing else, is an answer. Codes in the text of a model or a tool do nothing. Refuses to know: who
waits."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ninelives.core.errors import ClientError
from ninelives.core.events import ApprovalGiven, ApprovalRequested, Call, Entry
from ninelives.core.history import text_of
from ninelives.core.ids import wire_id
from ninelives.core.spec import Message

ANSWERS = ("approve", "deny")
"""How an answer begins, in any case."""
_ANSWER = re.compile(r"\A(approve|deny)\s++([A-Z0-9]{4,16})\s*+\.?\Z", re.IGNORECASE)
LONGEST_ANSWER = 100
"""A longer message is no answer. So the time of the expression above is bounded, whatever is sent."""
CHAT_CHARS = 8000
"""The longest call that is shown whole in a chat, and can be approved there."""
EDGE_CHARS = 1500
"""What is shown of the beginning and the end of a longer one."""
OLD_CHARS = 2000
_UNUSUAL = re.compile(r"[^\x20-\x7e]")
MARK = "Approval needed"
QUESTION = f"**{MARK}**"


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


def shown_call(call: Call) -> str:
    """A call as a person reads it: the decoded arguments, all of them, on one line. What cannot be seen is escaped."""
    try:
        arguments = msgspec.json.encode(msgspec.json.decode(call.arguments or "{}")).decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        arguments = call.arguments
    return f"{call.name} {_UNUSUAL.sub(_escaped, arguments)}"


def _escaped(found: re.Match[str]) -> str:
    sign = found[0]
    return sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()


def is_too_long(asked: ApprovalRequested) -> bool:
    """Whether the question in a chat leaves out a part of the call, so that a reply there cannot approve it."""
    return len(asked.call.arguments) > OLD_CHARS if _is_old(asked) else len(shown_call(asked.call)) > CHAT_CHARS


def _is_old(asked: ApprovalRequested) -> bool:
    """Asked by a release whose question showed the first 2,000 characters. Its frames stay as they are (R1)."""
    return not asked.tool_digest and "always" in asked.choices


def question(asked: ApprovalRequested, run: str) -> str:
    """The text for the person: the exact call, and how to reply."""
    if _is_old(asked):
        arguments = asked.call.arguments
        cut = f"{arguments[:OLD_CHARS]}… ({len(arguments)} characters in all)"
        return _short_question(asked, f"{asked.call.name} {cut if is_too_long(asked) else arguments}")
    shown, named = shown_call(asked.call), wire_id("runs", run)
    if is_too_long(asked):
        return _long_question(asked, shown, named)
    page = f" Or answer on the server's page: `{page_of(named)}`." if asked.why else ""
    return _short_question(asked, shown) + page


def page_of(run: str) -> str:
    """Where the web page of the server shows the open question of a run. The server does not know its public name."""
    return f"/#/approvals/{run}"


def _short_question(asked: ApprovalRequested, shown: str) -> str:
    return (
        f"\n\n**{MARK}** before this call is made{_reason(asked)}\n\n"
        f"```\n{shown}\n```\n\n"
        f"Reply `approve {asked.code}` to allow it once, or `deny {asked.code}`."
    )


def _reason(asked: ApprovalRequested) -> str:
    return f". {asked.why}" if asked.why else ":"


def _long_question(asked: ApprovalRequested, shown: str, run: str) -> str:
    left_out = len(shown) - 2 * EDGE_CHARS
    page = f"on the server's page `{page_of(run)}`, " if asked.why else ""
    return (
        f"\n\n**{MARK}** before this call is made. It is too long to be approved in a chat{_reason(asked)}\n\n"
        f"```\n{shown[:EDGE_CHARS]}\n… {left_out} characters are left out …\n{shown[-EDGE_CHARS:]}\n```\n\n"
        f"See all of it {page}with `ninelives runs show {run}` or `GET /v1/runs/{run}`. Then approve it with "
        f"`ninelives approvals answer {run} once` or `POST /v1/runs/{run}/approval`. To refuse it, reply "
        f"`deny {asked.code}`."
    )


def too_long(run: str) -> ClientError:
    """The error for a reply that would approve what its question did not show."""
    shown = wire_id("runs", run)
    return ClientError(
        "approval_too_long",
        f"This call is too long to be approved in a chat. See it with `ninelives runs show {shown}`, then answer with "
        f"`ninelives approvals answer {shown} once` or POST /v1/runs/{shown}/approval. The question is still open.",
        status=409,
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
    quoted = any(asks_for_approval(message) and code in text_of(message.get("content")) for message in messages[:-1])
    return Reply(choice, code, quoted)


def without_questions(messages: list[Message]) -> list[Message]:
    """The conversation without questions and answers."""
    kept: list[Message] = []
    torn = False  # the last kept message lost its question, so the next one continues it
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user" and kept and reply_in([message]) and asks_for_approval(kept[-1]):
            before, _, _ = text_of(kept[-1].get("content")).partition(QUESTION)
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


def asks_for_approval(message: Message) -> bool:
    """Is there a question in this message?"""
    return message.get("role") == "assistant" and QUESTION in text_of(message.get("content"))


def _joins(before: Message, message: Message) -> bool:
    """Are these two halves of one answer, with only the question between them?"""
    both = before.get("role") == message.get("role") == "assistant"
    return both and not before.get("tool_calls") and not message.get("tool_calls")
