"""Who must be asked before a call is carried out. Owns: the policy: a mode for all tools, rules for single tools and
commands, and what a person has granted before. It comes from the server's configuration alone: what a tool or an MCP
server says of itself is never a reason not to ask. Refuses to know: how a question reaches a person."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.core.events import ApprovalRequested, Call, Effect
from holdfast.core.state import RunState

Mode = Literal["never", "on-write", "always"]


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """For one tool (or `*`), where the arguments match: ask never, on-write or always. The first that fits counts."""

    tool: str
    ask: Mode
    match: str = ""
    """A regular expression that is searched in the arguments; empty fits all."""


def digest_of(call: Call) -> str:
    """Binds an answer to the tool and its exact arguments."""
    return hashlib.sha256(f"{call.name}\0{call.arguments}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Approvals:
    """Decides whether a call needs a person."""

    def __init__(
        self,
        mode: Mode,
        rules: Sequence[Rule],
        granted: Callable[[str, str, str], Awaitable[bool]],
        new_code: Callable[[], str],
        now_ms: Callable[[], int],
        ttl_s: float,
    ) -> None:
        self._mode: Mode = mode
        self._rules = [(rule, re.compile(rule.match)) for rule in rules]
        self._granted = granted
        self._new_code = new_code
        self._now_ms = now_ms
        self._ttl_ms = int(ttl_s * 1000)

    def mode_for(self, call: Call) -> Mode:
        """What the configuration says of this call."""
        for rule, pattern in self._rules:
            if rule.tool in ("*", call.name) and pattern.search(call.arguments):
                return rule.ask
        return self._mode

    async def question(self, state: RunState, call: Call, effect: Effect) -> ApprovalRequested | None:
        """The question to ask before this call, if one is needed and not answered yet."""
        mode = self.mode_for(call)
        if mode == "never" or (mode == "on-write" and effect != "write"):
            return None
        accepted = state.facts.accepted
        if await self._granted(accepted.owner, accepted.resolved.session or "", call.name):
            return None
        return self.ask(call)

    def ask(self, call: Call) -> ApprovalRequested:
        """A fresh question."""
        expires_at = self._now_ms() + self._ttl_ms
        return ApprovalRequested(call=call, digest=digest_of(call), code=self._new_code(), expires_at=expires_at)
