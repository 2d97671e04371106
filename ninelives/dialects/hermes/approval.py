"""Approvals as hermes-agent's front ends know them. Owns: the words for an answer, the body that carries it, and the
fields by which a front end shows a question as a card. Refuses to know: engines and HTTP."""

from __future__ import annotations

from msgspec import Struct

from ninelives.core.errors import ClientError
from ninelives.core.events import ApprovalRequested, Choice
from ninelives.dialects.approval import shown_call
from ninelives.dialects.fields import required
from ninelives.dialects.shared import arguments_object

WORDS: dict[str, Choice] = {
    "once": "once",
    "approve": "once",
    "approved": "once",
    "allow": "once",
    "session": "session",
    "always": "always",
    "deny": "deny",
    "denied": "deny",
    "reject": "deny",
}
"""What an answer may say, and what it means."""
_LAYOUT = dict.fromkeys(map(ord, "\n\t"))


class ApprovalAnswer(Struct):
    """A person's answer. It may name the question, so that it fits no other: by `approval_id` (or `request_id`,
    `toolCallId`) and by `digest`. `all` and `resolve_all` answer every open question; a run has one at a time."""

    choice: str | None = None
    toolCallId: str | None = None
    digest: str | None = None
    approval_id: str | None = None
    request_id: str | None = None
    all: bool | None = None
    resolve_all: bool | None = None

    def meaning(self) -> Choice:
        """The choice. Raises ClientError for a word that is none."""
        said = required(self.choice, "choice").strip().lower()
        if said not in WORDS:
            message = f"choice must be one of {', '.join(WORDS)}."
            raise ClientError("invalid_approval_choice", message, param="choice")
        return WORDS[said]

    def fits(self, asked: ApprovalRequested) -> bool:
        """Is it an answer to this question? An id that is empty names none."""
        named = (self.toolCallId, self.approval_id, self.request_id)
        return all(not name or name == asked.call.id for name in named) and self.digest in (None, asked.digest)


def card(asked: ApprovalRequested) -> dict[str, object]:
    """What a front end shows of a question, beside our own fields. A command stands for the call only where it is all
    of it and can be seen: a person must see everything that will run."""
    given = arguments_object(asked.call.arguments)
    command = given.get("command") if len(given) == 1 else None
    seen = isinstance(command, str) and command.translate(_LAYOUT).isprintable()
    return {
        "approval_id": asked.call.id,
        "command": command if seen else shown_call(asked.call),
        "description": f"The tool {asked.call.name} needs your approval.",
        "pattern_key": asked.call.name,
        "pattern_keys": [asked.call.name],
        "allow_permanent": "always" in asked.takes(),
    }
