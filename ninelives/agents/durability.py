"""NinelivesDurability: a pydantic-ai agent in a program of its own, without a server, goes on after kill -9. Owns: the
backend for the durable execution of pydantic-ai, and what makes one of its operations the same operation. Refuses to
know: the journal (local.py), and how steps are replayed (steps.py).

    durable = NinelivesDurability("trips")
    agent = Agent("openai:gpt-5.2", name="trips", capabilities=[durable])

    async with durable.run("trip-42"):
        result = await agent.run("Plan a trip to Oslo.")

pydantic-ai hands each request to a model and each call of a tool to the backend, which makes it a step. A tool says
what it does with `metadata={"effect": "read"}`; without it, it is a write."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    conversation_id_from_run_id,
)
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.models import Model
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import from_json, to_json

from ninelives.agents.adapters import effect_of
from ninelives.agents.local import LocalJournal, LocalRun
from ninelives.agents.steps import CallPlan, Made, StepUnknown
from ninelives.core.context import shortened
from ninelives.core.events import Effect

_CHANGING = frozenset({"timestamp", "run_id", "conversation_id"})
"""Fields of messages that differ between two runs of the same code."""
EXCERPT = 300
"""Characters of a request that an error about a difference shows."""
_current: ContextVar[tuple[LocalRun, count[int]] | None] = ContextVar("durable run", default=None)
"""The run that this code is part of, and the numbers of the agent's runs in it."""


class NinelivesDurability(BaseDurabilityCapability[Any]):
    """A capability of a pydantic-ai agent. `folder` gets the journal."""

    engine_spec = DurabilityEngineSpec(
        engine_name="Ninelives",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-always", "dynamic": "enter-never"},
    )

    def __init__(
        self, folder: str | Path, *, models: Mapping[str, Model] | None = None, name: str | None = None
    ) -> None:
        """`models` and `name`: see the durability capabilities of pydantic-ai."""
        super().__init__(models=models, name=name)
        self._journal = LocalJournal(folder)

    @asynccontextmanager
    async def run(self, name: str) -> AsyncIterator[None]:
        """What the agent does inside is recorded under this name. After a crash, enter it again and do the same: what
        was finished is not done again. Left without an error, the run is complete."""
        async with LocalRun(self._journal, name) as made:
            before = _current.set((made, count()))
            try:
                yield
            finally:
                _current.reset(before)

    @property
    def in_durable_context(self) -> bool:
        """See BaseDurabilityCapability."""
        return _current.get() is not None

    def get_default_run_id(self) -> str | None:
        """See AbstractCapability."""
        current = _current.get()
        return f"{current[0].name}:{next(current[1])}" if current is not None else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """See AbstractCapability."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """See AbstractCapability. A time limit counts from the first attempt."""
        current = _current.get()
        return datetime.fromtimestamp(current[0].started_at_ms / 1000, UTC) if current is not None else None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Effect]:
        """See BaseDurabilityCapability."""
        return StepBackend(agent_name=self.name, default_model_id=self.default_model_id, config=_effects())


class StepBackend(JournalCallableOperationBackend[Effect]):
    """Operations of pydantic-ai as steps."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Effect,
    ) -> object:
        """See CallableOperationBackend. The model is told of an unknown outcome, and goes on."""
        current = _current.get()
        if current is None:
            return await body()

        async def made(_: str) -> Made:
            record = to_json(await body()).decode()
            return Made(shortened(record), record)

        plan = CallPlan(name=name, arguments=_arguments(operation_id, cache_key), effect=config)
        try:
            return from_json((await current[0].make(plan, made)).record)
        except StepUnknown as error:
            if not isinstance(operation_id, ToolsetCallToolId):
                raise
            raise ToolFailed(error.message) from error


def _effects() -> RoleBasedOperationConfig[Effect]:
    """A request to a model may be made again, and so may what only looks."""

    def of_tool(operation_id: DurableOperationId, tool: object | None, tool_name: str) -> Effect:
        metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
        return effect_of((metadata or {}).get("effect")) if isinstance(operation_id, ToolsetCallToolId) else "read"

    return RoleBasedOperationConfig(
        model="idempotent", event="idempotent", capability="write", tool="write", resolve_tool=of_tool
    )


def _arguments(operation_id: DurableOperationId, cache_key: tuple[object, ...]) -> str:
    """What makes two operations of one name the same. People read it in an error about a difference."""
    inputs = [_steady(from_json(to_json(each, fallback=_kind))) for each in cache_key if not _is_around(each)]
    if isinstance(operation_id, ToolsetCallToolId):
        return to_json(inputs[1]).decode()  # the arguments of the tool, whose name is in that of the operation
    text = to_json(inputs).decode()
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    if not isinstance(operation_id, ModelRequestId):
        return to_json({"inputs": digest}).decode()
    return to_json({"request": digest, "messages": to_json(inputs[1]).decode()[-EXCERPT:]}).decode()


def _is_around(value: object) -> bool:
    """What surrounds an operation and is not part of it."""
    return isinstance(value, RunContext | ToolsetTool)


def _kind(value: object) -> str:
    return type(value).__qualname__


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(each) for name, each in value.items() if name not in _CHANGING}
    return [_steady(each) for each in value] if isinstance(value, list) else value
