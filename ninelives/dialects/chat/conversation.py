"""The messages of a chat request. Owns: their checks, and their parts: prompts, history and new turn. Refuses to know:
the other fields of a request.

A chat resends its whole conversation, so there may be thousands of messages, most often plain texts. Those are read
into PlainText, which checks and encodes them in C. The history is encoded once: fingerprint, journal and model all get
those bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Raw, Struct

from ninelives.core.errors import ClientError
from ninelives.core.history import SYSTEM_ROLES, split_turn, text_of
from ninelives.core.spec import NO_MESSAGES, Message, Piece, canonical_json, json_list, messages_json
from ninelives.dialects.approval import QUESTION, Reply, asks_for_approval, reply_in, without_questions

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ASKS = QUESTION.encode()


class PlainText(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message with a role and a text. The fields are in the order of canonical JSON."""

    content: str
    role: Literal["assistant", "developer", "function", "system", "user"]

    def as_message(self) -> Message:
        """The same in the general form."""
        return {"role": self.role, "content": self.content}


class SentMessages(Struct, frozen=True, kw_only=True):
    """The messages of a request, checked and taken apart."""

    system: str | None
    history: Raw
    turn: tuple[Message, ...]
    first_said: str
    """The text of the first user message."""
    reply: Reply | None
    """The last message answers a question (G11)."""
    has_results: bool = False
    """There are results of calls."""
    given: tuple[Raw, ...] = ()
    """All messages as they were sent are these lists, and `rest`."""
    rest: Sequence[PlainText] | Sequence[Message] = ()

    def canonical(self, *, repeats: bool) -> list[Piece]:
        """All messages as canonical JSON, in pieces, with or without repeats of the last one."""
        rest, end = self.rest, len(self.rest)
        while not repeats and end > 1 and rest[end - 1] == rest[end - 2] and _role(rest[end - 1]) == "user":
            end -= 1
        return json_list(*self.given, messages_json(rest[:end]))


def _role(message: PlainText | Message) -> object:
    return message.role if isinstance(message, PlainText) else message.get("role")


def read_messages(given: list[PlainText] | list[Message], max_parts: int) -> SentMessages:
    """Check the messages of a request and take them apart. Raises ClientError where one is not valid."""
    if not given:
        raise ClientError("invalid_value", "messages must not be empty.", param="messages")
    if not isinstance(given[0], PlainText):
        return _general(given, max_parts)
    return _plain(given) or _general([message.as_message() for message in given], max_parts)


def _plain(given: list[PlainText]) -> SentMessages | None:
    """None where there is more to do: prompts between other messages, and questions for approval."""
    roles = [message.role for message in given]
    prompts, begins = _places(roles)
    if not roles[prompts:] or not set(SYSTEM_ROLES).isdisjoint(roles[prompts:]):
        return None
    encoded, rest = canonical_json(given[prompts:begins]), given[begins:]
    if _ASKS in encoded or any(QUESTION in message.content for message in rest):
        return None
    history = Raw(encoded) if begins > prompts else NO_MESSAGES
    turn = tuple(message.as_message() for message in rest)
    return SentMessages(
        system="\n\n".join(message.content for message in given[:prompts] if message.content) or None,
        history=history,
        turn=turn,
        first_said=given[roles.index("user")].content if "user" in roles else "",
        reply=reply_in([turn[-1]]),
        given=(messages_json(given[:prompts]), history),
        rest=rest,
    )


def _places(roles: Sequence[str]) -> tuple[int, int]:
    """How many prompts come first, and where the new turn begins: see split_turn()."""
    prompts = next((n for n, role in enumerate(roles) if role not in SYSTEM_ROLES), len(roles))
    begins = len(roles)
    while begins > prompts and roles[begins - 1] != "assistant":
        begins -= 1
    return prompts, min(begins, len(roles) - 1)


def _general(given: list[Message], max_parts: int) -> SentMessages:
    parts = sum(_check_message(n, message) for n, message in enumerate(given))
    if parts > max_parts:
        message_text = f"There are {parts} content parts; the limit is {max_parts}."
        raise ClientError("too_many_parts", message_text, param="messages")
    messages = without_questions(given) if any(map(asks_for_approval, given)) else given
    system, history, turn = split_turn(messages)
    encoded = messages_json(history)
    prompts = given[: len(given) - len(history) - len(turn)]
    in_order = messages is given and all(message["role"] in SYSTEM_ROLES for message in prompts)
    return SentMessages(
        system=system,
        history=encoded,
        turn=tuple(turn),
        first_said=first_said(messages),
        reply=reply_in(given),
        has_results=any(message["role"] == "tool" for message in given),
        given=(messages_json(prompts), encoded) if in_order else (),
        rest=turn if in_order else given,
    )


def _check_message(n: int, message: Message) -> int:
    """Check a message. Returns how many parts it has."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        known = ", ".join(ROLES)
        raise ClientError("invalid_value", f"messages[{n}].role must be one of {known}.", param="messages")
    if not isinstance(content, str | list | None):
        raise ClientError("invalid_value", f"messages[{n}].content must be text or parts.", param="messages")
    if content is None and role in ("user", "system", "developer", "tool"):
        raise ClientError("invalid_value", f"messages[{n}].content is missing.", param="messages")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise ClientError("invalid_value", f"messages[{n}].tool_call_id is missing.", param="messages")
    if not isinstance(content, list):
        return 0
    _check_parts(content, n)
    return len(content)


def _check_parts(content: list[object], n: int) -> None:
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ClientError("invalid_value", f"messages[{n}].content has a part without a type.", param="messages")


def first_said(messages: list[Message]) -> str:
    """The text of the first user message."""
    return next((text_of(message.get("content")) for message in messages if message.get("role") == "user"), "")
