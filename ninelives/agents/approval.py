"""Whether a person must approve a call (D4). Owns: the policy, which is a mode for all tools, rules for single tools
and commands, and what a person granted before. It comes from the configuration of the server alone. What a tool or an
MCP server says of itself is never a reason not to ask. Refuses to know: how a question reaches a person."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct

from ninelives.core.events import ApprovalRequested, Call, Effect
from ninelives.core.state import RunState

Mode = Literal["never", "on-write", "always"]


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """When to ask about calls of one tool (or `*`) whose arguments match. The first rule that fits counts."""

    tool: str
    ask: Mode
    match: str = ""
    """A regular expression that is searched in the arguments. Empty fits all."""


def digest_of(call: Call) -> str:
    """A hash that binds an answer to the tool and its exact arguments."""
    return hashlib.sha256(f"{call.name}\0{call.arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Approvals:
    """Decides whether a call needs an approval."""

    def __init__(
        self,
        mode: Mode,
        rules: Sequence[Rule],
        granted: Callable[[str, str, str], Awaitable[bool]],
        new_code: Callable[[], str],
        now_ms: Callable[[], int],
        ttl_s: float,
    ) -> None:
        self.mode: Mode = mode
        self._rules = [(rule, re.compile(rule.match)) for rule in rules]
        self._granted = granted
        self._new_code = new_code
        self._now_ms = now_ms
        self._ttl_ms = int(ttl_s * 1000)

    def mode_for(self, call: Call) -> Mode:
        """The mode for this call."""
        for rule, pattern in self._rules:
            if rule.tool in ("*", call.name) and pattern.search(call.arguments):
                return rule.ask
        return self.mode

    async def question(self, state: RunState, call: Call, effect: Effect) -> ApprovalRequested | None:
        """The question to ask before this call; None where none is needed."""
        mode = self.mode_for(call)
        if mode == "never" or (mode == "on-write" and effect != "write"):
            return None
        accepted = state.facts.accepted
        if await self._granted(accepted.owner, accepted.resolved.session or "", call.name):
            return None
        return self.ask(call)

    def ask(self, call: Call) -> ApprovalRequested:
        """A new question about this call."""
        expires_at = self._now_ms() + self._ttl_ms
        return ApprovalRequested(call=call, digest=digest_of(call), code=self._new_code(), expires_at=expires_at)
