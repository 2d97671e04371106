"""What is settled of a run, as the loop needs it. Owns: what the model is told and offered, what is due, and how a run
ends. Refuses to know: how any of it is carried out."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from holdfast.agents.base import Turn
from holdfast.core import events as e
from holdfast.core.history import ask_messages, output_messages
from holdfast.core.spec import Message, Spec


def tool_name(tool: dict[str, object]) -> str:
    """The name in a tool's schema."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def offered(own: Sequence[dict[str, object]], spec: Spec) -> tuple[dict[str, object], ...]:
    """What the model may call: ours and the caller's; the caller's wins where both have a name. A list of allowed tools
    is a hard bound."""
    if spec.chore:
        return ()
    if not spec.client_tools and spec.allowed_tools is None:
        return tuple(own)
    theirs = {tool_name(tool) for tool in spec.client_tools}
    tools = (*(tool for tool in own if tool_name(tool) not in theirs), *spec.client_tools)
    allowed = spec.allowed_tools
    return tools if allowed is None else tuple(tool for tool in tools if tool_name(tool) in allowed)


class Talk:
    """What is settled so far, as the loop needs it."""

    def __init__(self, turn: Turn, system_prompt: str) -> None:
        facts = turn.state.facts
        self.state = turn.state
        self.ours = turn.ours
        self.spec = facts.accepted.spec
        self.said = list(facts.messages)
        self.results = dict(facts.results)
        self.calls = facts.calls
        self.spent = facts.usage.output_tokens
        self.ended = False
        self.ahead = turn.ahead
        self.client_tools = frozenset(tool_name(tool) for tool in offered((), self.spec))
        prompt = "" if self.spec.chore else system_prompt
        self._before = ask_messages(prompt, self.spec, turn.history)

    def note(self, event: e.AnyEvent) -> None:
        """A fact was committed."""
        match event:
            case e.MessageCompleted():
                self.said.append(event)
                self.calls += len(event.calls)
                self.spent += event.usage.output_tokens
            case e.ToolFinished():
                self.results[event.call_id] = event
            case e.RunCompleted() | e.RunInterrupted():
                self.ended = True

    def due(self) -> list[e.Call]:
        """Calls of the last message that this server must carry out and that have no result yet."""
        calls = self.said[-1].calls if self.said else ()
        return [call for call in calls if not call.client and call.id not in self.results]

    def messages(self) -> tuple[Message, ...]:
        """What the model is to be told."""
        return (*self._before, *output_messages(self.said, self.results))

    def options(self) -> dict[str, object]:
        """What the upstream is asked with; the token budget is over the whole run (C10)."""
        options = dict(self.spec.sampling)
        if self.spec.max_output_tokens is not None:
            options["max_tokens"] = self.spec.max_output_tokens - self.spent
        choice = self.spec.tool_choice
        if choice == "none" or (choice is not None and not self.said):  # a forced call is forced once, not for ever
            options["tool_choice"] = choice
        return options

    def tools(self, own: tuple[dict[str, object], ...]) -> tuple[dict[str, object], ...]:
        """What the model may call now: none of ours any more where max_tool_calls is used up."""
        limit = self.spec.max_tool_calls
        used_up = limit is not None and len(self._server_calls()) >= limit
        return offered(() if used_up else own, self.spec)

    def _server_calls(self) -> list[str]:
        return [call.id for said in self.said for call in said.calls if not call.client]

    def forbids(self, call: e.Call) -> str | None:
        """Why the request itself does not let this call be made, in words for the model."""
        spec = self.spec
        if spec.allowed_tools is not None and call.name not in spec.allowed_tools:
            known = ", ".join(spec.allowed_tools)
            return f"The tool {call.name!r} may not be used here; this call was not made. Allowed are: {known}."
        if spec.max_tool_calls is not None and call.id not in self._server_calls()[: spec.max_tool_calls]:
            words = f"All {spec.max_tool_calls} tool calls of this request are used up"
            return f"{words}; this call was not made. Answer with what you have."
        return None

    def end_after(self, said: e.MessageCompleted, max_rounds: int) -> e.RunCompleted | e.RunInterrupted | None:
        """How the run would end with this message; nothing where calls of it must be carried out first."""
        if any(not call.client for call in said.calls):
            return None
        after = copy(self)
        after.said = [*self.said, said]
        after.spent = self.spent + said.usage.output_tokens
        return after.end(max_rounds)

    def end(self, max_rounds: int) -> e.RunCompleted | e.RunInterrupted | None:
        """How the run ends now, if it does."""
        last = self.said[-1] if self.said else None
        if last is not None and last.finish == "length":
            return e.RunInterrupted("max_output_tokens")
        if last is not None and last.finish == "content_filter":
            return e.RunInterrupted("content_filter")
        if last is not None and (not last.calls or any(call.client for call in last.calls)):
            return e.RunCompleted()
        if self.spec.max_output_tokens is not None and self.spent >= self.spec.max_output_tokens:
            return e.RunInterrupted("max_output_tokens")
        return e.RunInterrupted("max_messages") if len(self.said) >= max_rounds else None
