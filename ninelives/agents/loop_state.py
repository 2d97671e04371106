"""A run as the loop needs it. Owns: what the model is told and offered, which calls are due, and how a run ends; all of
it follows from the committed facts. Refuses to know: how calls are executed, and where events go."""

from __future__ import annotations

from collections.abc import Sequence

from ninelives.agents.base import Turn
from ninelives.core import events as e
from ninelives.core.history import ask_messages, output_messages, text_of
from ninelives.core.hosts import hosts_in
from ninelives.core.spec import Message, Spec
from ninelives.core.state import Facts, RunState, apply


def tool_name(tool: dict[str, object]) -> str:
    """The name in a tool's schema."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def offered_tools(own: Sequence[dict[str, object]], spec: Spec) -> tuple[dict[str, object], ...]:
    """What the model may call: the server's tools and the caller's. The caller's tool wins where both have a name. A
    list of allowed tools is a hard bound."""
    if spec.chore:
        return ()
    if not spec.client_tools and spec.allowed_tools is None:
        return tuple(own)
    theirs = {tool_name(tool) for tool in spec.client_tools}
    tools = (*(tool for tool in own if tool_name(tool) not in theirs), *spec.client_tools)
    allowed = spec.allowed_tools
    return tools if allowed is None else tuple(tool for tool in tools if tool_name(tool) in allowed)


class LoopState:
    """One attempt at one run. Its run state is the fold of core/state.py, with each fact added once it is committed.

    Deltas are left out, because nothing here needs a draft and there are thousands of them. So the numbers in this run
    state are lower than those in the journal."""

    def __init__(self, turn: Turn, system_prompt: str) -> None:
        self.run_state: RunState = turn.state
        self.deltas = turn.deltas
        self.scratch: dict[str, bytes] | None = {} if turn.state.facts.accepted.spec.kept == "memory" else None
        """See Place.scratch. A run in memory has one attempt."""
        self.holds_claim = turn.holds_claim
        self.spec = turn.state.facts.accepted.spec
        self.client_tools = frozenset(tool_name(tool) for tool in offered_tools((), self.spec))
        prompt = "" if self.spec.chore else system_prompt
        self._before = ask_messages(prompt, self.spec, turn.history)
        self._named: frozenset[str] | None = None

    @property
    def facts(self) -> Facts:
        """The committed facts."""
        return self.run_state.facts

    def add(self, fact: e.AnyEvent) -> None:
        """A fact was committed."""
        self.run_state = self._after(fact)

    def _after(self, fact: e.AnyEvent) -> RunState:
        state, facts = self.run_state, self.facts
        return apply(state, e.Entry(facts.run, state.seq + 1, facts.updated_at, facts.attempt, fact))

    def due_calls(self) -> list[e.Call]:
        """The calls that this server must execute and that have no result yet, in the order of the message."""
        return [due.call for due in self.facts.due.values()]

    def messages(self) -> tuple[Message, ...]:
        """What the model is told."""
        return (*self._before, *output_messages(self.facts.messages, self.facts.results))

    def names_host(self, host: str) -> bool:
        """Whether a message of the user names this host, with or without `www.`."""
        if self._named is None:
            said = (text_of(message.get("content")) for message in self._before if message.get("role") == "user")
            self._named = hosts_in("\n".join(said))
        return host in self._named or host.removeprefix("www.") in self._named

    def options(self) -> dict[str, object]:
        """The options of the next model call. The token budget is over the whole run (C10)."""
        options = dict(self.spec.sampling)
        if self.spec.max_output_tokens is not None:
            options["max_tokens"] = self.spec.max_output_tokens - self.facts.usage.output_tokens
        choice = self.spec.tool_choice
        # A choice that forces a call counts for the first message only: it would force one in every round.
        if choice == "none" or (choice is not None and not self.facts.messages):
            options["tool_choice"] = choice
        return options

    def tools(self, own: tuple[dict[str, object], ...]) -> tuple[dict[str, object], ...]:
        """What the model may call now: no tool of the server once max_tool_calls is used up."""
        limit = self.spec.max_tool_calls
        used_up = limit is not None and len(self._server_calls()) >= limit
        return offered_tools(() if used_up else own, self.spec)

    def _server_calls(self) -> list[str]:
        return [call.id for said in self.facts.messages for call in said.calls if not call.client]

    def refusal(self, call: e.Call) -> str | None:
        """Why the request itself forbids this call, in words for the model; None where it does not."""
        spec = self.spec
        if spec.allowed_tools is not None and call.name not in spec.allowed_tools:
            known = ", ".join(spec.allowed_tools)
            return f"The tool {call.name!r} may not be used here; this call was not made. Allowed are: {known}."
        if spec.max_tool_calls is not None and call.id not in self._server_calls()[: spec.max_tool_calls]:
            words = f"All {spec.max_tool_calls} tool calls of this request are used up"
            return f"{words}; this call was not made. Answer with what you have."
        return None

    def end_after(self, said: e.MessageCompleted, max_rounds: int) -> e.RunCompleted | e.RunInterrupted | None:
        """How the run ends with this message; None where calls of it must be executed first."""
        if any(not call.client for call in said.calls):
            return None
        return _end_of(self._after(said).facts, max_rounds)

    def end(self, max_rounds: int) -> e.RunCompleted | e.RunInterrupted | None:
        """How the run ends now; None where it goes on. Ask only while no call is due."""
        return _end_of(self.facts, max_rounds)


def _end_of(facts: Facts, max_rounds: int) -> e.RunCompleted | e.RunInterrupted | None:
    budget = facts.accepted.spec.max_output_tokens
    if facts.messages:
        last = facts.messages[-1]
        if last.finish == "length":
            return e.RunInterrupted("max_output_tokens")
        if last.finish == "content_filter":
            return e.RunInterrupted("content_filter")
        if not last.calls or any(call.client for call in last.calls):
            return e.RunCompleted()
    if budget is not None and facts.usage.output_tokens >= budget:
        return e.RunInterrupted("max_output_tokens")
    return e.RunInterrupted("max_messages") if len(facts.messages) >= max_rounds else None
