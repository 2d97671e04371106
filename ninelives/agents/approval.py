"""Whether a person must approve a call (D4). Owns: the policy, which is a mode for all tools, rules for single tools
and commands, hosts that may be visited, and what a person granted before. It comes from the configuration of the server
alone. What a tool or an MCP server says of itself is never a reason not to ask. Refuses to know: how a question reaches
a person."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ninelives.agents.rules import Mode, Rule
from ninelives.core.events import ApprovalRequested, Call, Choice
from ninelives.core.hosts import host_fits
from ninelives.core.spec import is_one_chat
from ninelives.core.state import RunState
from ninelives.journal.values import Grant
from ninelives.tools.arguments import parsed
from ninelives.tools.base import ApprovalClass, Reach, Tool, ToolRefused, approval_class, reach_of


class ApprovalPolicy(Struct, frozen=True):
    """When to ask, from the configuration."""

    mode: Mode
    rules: tuple[Rule, ...] = ()
    """They come before the mode, and before what a person granted."""
    hosts: tuple[str, ...] = ()
    """Host names that may be visited without asking. See host_fits."""


WHY_MODE = "This server asks before every call."
WHY_RULE = "A rule of this server asks before calls like this one."
WHY_UNKNOWN = "The server died while this call ran. It may have taken effect. Approve it to run it again."
_WHY_CLASS: dict[ApprovalClass, str] = {
    "none": "",
    "write": "It changes something that stays.",
    "network": "It visits a host that no message of the user names.",
    "exec": "It runs a program.",
}
GRANT_CHARS = 8000
"""Longest arguments of a call that a standing permission can cover: a person can look through the list of them."""
_ONCE: tuple[Choice, ...] = ("once", "deny")


def canonical(arguments: str) -> str:
    """Arguments in one form, however the model wrote them."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="sorted").decode()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return arguments


def digest_of(call: Call) -> str:
    """A hash that binds an answer to the tool and its exact arguments."""
    return _hash(call.name, canonical(call.arguments))


def tool_digest(tool: Tool) -> str:
    """A hash of what a tool says that it does. A tool that changes has another one."""
    shape = [tool.description, tool.schema, tool.effect, approval_class(tool)]
    return _hash(tool.name, msgspec.json.encode(shape, order="sorted").decode())


def grant_id(session: str, call: str, tool: str) -> str:
    """The id of a standing permission: in which session (empty: in all), for which call, of which tool, as digests."""
    return f"grant_{_hash(session, call, tool)}"


def grant_of(state: RunState, choice: Choice, at: int, by: str) -> Grant | None:
    """The standing permission that an answer gives; None where it is for this call only."""
    asked, accepted = state.facts.asked, state.facts.accepted
    if asked is None or choice not in ("session", "always"):
        return None
    session = (accepted.resolved.session or "") if choice == "session" else ""
    name = grant_id(session, asked.digest, asked.tool_digest)
    return Grant(accepted.owner, name, session, asked.call.name, canonical(asked.call.arguments), at, by)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Approvals:
    """Decides whether a call needs an approval."""

    def __init__(
        self,
        policy: ApprovalPolicy,
        granted: Callable[[str, Sequence[str]], Awaitable[bool]],
        new_code: Callable[[], str],
        now_ms: Callable[[], int],
        ttl_s: float,
    ) -> None:
        self.policy = policy
        self.never_asks = policy.mode == "never" and not policy.rules
        """No call needs an approval."""
        self._granted = granted
        self._new_code = new_code
        self._now_ms = now_ms
        self._ttl_ms = int(ttl_s * 1000)

    def mode_for(self, tool: Tool) -> Mode:
        """The mode for calls of this tool to which no rule about single calls applies."""
        rules = (rule for rule in self.policy.rules if rule.tool in ("*", tool.name) and not rule.match)
        return next((rule.ask for rule in rules), self.policy.mode)

    async def question(
        self, state: RunState, call: Call, tool: Tool, named: Callable[[str], bool]
    ) -> ApprovalRequested | None:
        """The question to ask before this call; None where none is needed. `named`: whether a message of the user
        names a host."""
        try:
            reach, rule = self._judged(call, tool)
        except ToolRefused:
            return None  # nothing will run: Toolbox.prepare refuses the call with the same words
        mode = self.policy.mode if rule is None else rule.ask
        if mode == "never" or (mode == "on-write" and self._is_harmless(reach, named)):
            return None
        asked = self.ask(call, _why(rule, mode, reach))
        if rule is not None:
            return asked
        digests, accepted = (asked.digest, tool_digest(tool)), state.facts.accepted
        session = accepted.resolved.session or ""
        scopes = ("", session) if is_one_chat(session) else ("",)
        if await self._granted(accepted.owner, [grant_id(scope, *digests) for scope in scopes]):
            return None
        return replace(asked, choices=_choices(state, call), tool_digest=digests[1])

    def may_visit(self, call: Call, tool: Tool, named: Callable[[str], bool], host: str) -> bool:
        """Place.may_visit for a call that may be made: where a person would be asked about the host, it is refused."""
        try:
            _, rule = self._judged(call, tool)
        except ToolRefused:
            return False
        if self.policy.mode == "never" if rule is None else rule.ask == "never" and not rule.match:
            return True
        return self._may_visit(host, named)

    def _judged(self, call: Call, tool: Tool) -> tuple[Reach, Rule | None]:
        """What a call may do, and the first rule that fits it. Raises ToolRefused where its arguments are wrong."""
        arguments = parsed(call.arguments, tool.schema)
        reach = reach_of(tool, arguments)
        return reach, next((rule for rule in self.policy.rules if rule.fits(call.name, arguments, reach)), None)

    def _is_harmless(self, reach: Reach, named: Callable[[str], bool]) -> bool:
        """Whether on-write lets the call pass."""
        if reach.approval == "network":
            return bool(reach.host) and self._may_visit(reach.host, named)
        return reach.approval == "none"

    def _may_visit(self, host: str, named: Callable[[str], bool]) -> bool:
        return named(host) or any(host_fits(pattern, host) for pattern in self.policy.hosts)

    def ask(self, call: Call, why: str) -> ApprovalRequested:
        """A new question about this call, whose answer counts for this call only."""
        return ApprovalRequested(
            call=call,
            digest=digest_of(call),
            code=self._new_code(),
            expires_at=self._now_ms() + self._ttl_ms,
            choices=_ONCE,
            why=why,
        )


def _why(rule: Rule | None, mode: Mode, reach: Reach) -> str:
    """The reason for a person. It names no pattern: those are the operator's."""
    if rule is not None and (rule.match or mode == "always"):
        return WHY_RULE
    return WHY_MODE if mode == "always" else _WHY_CLASS[reach.approval]


def _choices(state: RunState, call: Call) -> tuple[Choice, ...]:
    """The answers to offer. A permission shows the call, so a run that will be forgotten gives none (B6)."""
    accepted = state.facts.accepted
    if accepted.spec.kept in ("delivery", "memory") or len(canonical(call.arguments)) > GRANT_CHARS:
        return _ONCE
    one_chat = is_one_chat(accepted.resolved.session or "")
    return ("once", "session", "always", "deny") if one_chat else ("once", "always", "deny")
