"""Agents of your own: which adapter takes which object. Owns: ADAPTERS, one row per kind of object, and `adapted`. An
adapter is imported when an object of its kind is served, so no framework is needed that you do not use. Refuses to
know: where an object comes from (app/extensions.py)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from inspect import isasyncgenfunction, iscoroutinefunction, isroutine, signature
from typing import cast, get_args

from msgspec import Struct

from ninelives.agents.approval import Approvals, canonical
from ninelives.agents.base import Agent
from ninelives.agents.loop import LoopSettings
from ninelives.core.events import Call, Effect
from ninelives.models.base import Model
from ninelives.tools.base import Execution, Place, ToolRefused


class Surroundings(Struct, frozen=True):
    """What an adapted agent takes from the server that runs it."""

    model: Model
    """The configured model. A function can ask it; a framework brings its own."""
    settings: LoopSettings
    approvals: Approvals | None = None


class Adapter(Struct, frozen=True):
    """One kind of object."""

    kind: str
    module: str
    """Below ninelives.agents.adapters. It has `adapt(found, surroundings)`."""
    classes: tuple[str, ...] = ()
    """Full names of classes. An object whose class has one of them among its bases is of this kind."""
    makes: bool = False
    """Such a class itself is of this kind too, and a functools.partial of it: one object is made for each run."""
    parameters: tuple[str, ...] = ()
    """A function with a parameter of one of these names is of this kind."""


ADAPTERS = (
    Adapter("a pydantic-ai Agent", "pydantic_ai", ("pydantic_ai.agent.abstract.AbstractAgent",)),
    Adapter("an agent of the OpenAI Agents SDK", "openai_agents", ("agents.agent.Agent",)),
    Adapter("a LangGraph graph", "langgraph", ("langgraph.pregel.main.Pregel", "langgraph.graph.state.StateGraph")),
    Adapter(
        "an AIAgent of hermes-agent, or a function with its callbacks",
        "hermes",
        ("run_agent.AIAgent",),
        makes=True,
        parameters=("tool_start_callback", "tool_progress_callback"),
    ),
    Adapter("an async function or async generator", "function"),
)


class FrameworkTool(Struct):
    """A tool of a framework, as the approval policy sees it. The framework carries it out."""

    name: str
    description: str
    schema: dict[str, object]
    effect: Effect = "write"
    label: str = ""
    emoji: str = ""

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """See Tool.prepare."""
        raise ToolRefused(f"{self.name} is carried out by the framework of its agent.")


class FrameworkCalls:
    """The calls that models of a run asked for and that are not made yet, by the ids of the framework. Agents inside
    tools may use the same ids, so a call is found by its name too, and once."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}

    def add(self, ids: Iterable[str | None], calls: Iterable[Call]) -> None:
        """Calls of an answer, in order."""
        self._calls |= {known: call for known, call in zip(ids, calls, strict=False) if known}

    def take(self, known: str | None, name: str) -> Call | None:
        """The call to make; None where no message of the run asked for it."""
        call = self._calls.get(known or "")
        return self._calls.pop(known or "") if call is not None and call.name == name else None

    def take_equal(self, name: str, arguments: str) -> Call | None:
        """The call to make, where code of the user makes it and does not say for which call of a message."""
        wanted = canonical(arguments)
        for known, call in self._calls.items():
            if call.name == name and canonical(call.arguments) == wanted:
                return self._calls.pop(known)
        return None


def effect_of(given: object) -> Effect:
    """The effect that a tool declares; a write where it declares none."""
    return cast(Effect, given) if given in get_args(Effect) else "write"


class NotAnAgent(Exception):
    """The object is of no known kind. The text says which kinds there are."""


def adapted(found: object, surroundings: Surroundings) -> Agent:
    """The object as an Agent. Raises NotAnAgent."""
    if all(hasattr(found, name) for name in ("run", "end_leftovers", "resumable")):
        return cast(Agent, found)
    for row in ADAPTERS:
        if _is_of(found, row):
            return cast(Agent, import_module(f"{__name__}.{row.module}").adapt(found, surroundings))
    kinds = "; ".join(row.kind for row in ADAPTERS)
    raise NotAnAgent(
        f"is {type(found).__name__}, which cannot be served. It can be: an Agent (docs/api/python.md); {kinds}"
    )


def _is_of(found: object, row: Adapter) -> bool:
    if row.parameters and isroutine(found):
        return any(name in row.parameters for name in signature(found).parameters)
    if not row.classes:
        return _is_function(found)
    made = found.func if isinstance(found, partial) else found
    kind = made if row.makes and isinstance(made, type) else type(found)
    return any(f"{base.__module__}.{base.__qualname__}" in row.classes for base in kind.__mro__)


def _is_function(found: object) -> bool:
    call = getattr(found, "__call__", None)  # noqa: B004 - the method itself is looked at
    return any(iscoroutinefunction(each) or isasyncgenfunction(each) for each in (found, call))
