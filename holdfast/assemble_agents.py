"""Where agents are put together. Owns: models, tools, sandbox, approvals and profiles, made from settings. Only
assemble.py imports it. Refuses to know: the store's kind, HTTP, and the command line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from holdfast.agents.approval import Approvals, Mode, Rule
from holdfast.agents.base import Agent
from holdfast.agents.loop import LoopAgent, LoopSettings
from holdfast.agents.profiles import ByProfile
from holdfast.config import Loaded, Settings
from holdfast.config_keys import ConfigError
from holdfast.config_tables import Profile as ProfileTable
from holdfast.core import events as e
from holdfast.core.spec import Message, Spec
from holdfast.core.state import RunState
from holdfast.dialects.asking import Profile
from holdfast.engine.writer import patiently
from holdfast.journal.base import Pending
from holdfast.models.base import Model
from holdfast.models.openai import OpenAIModel, Upstream
from holdfast.models.scripted import ScriptedModel
from holdfast.tools.base import Place, Tool
from holdfast.tools.decorator import ToolsError, load_tools
from holdfast.tools.mcp import McpServer, McpTools
from holdfast.tools.process import Processes
from holdfast.tools.reaper import end_leftover
from holdfast.tools.registry import Toolbox, builtin_tools
from holdfast.tools.sandbox import Sandbox
from holdfast.tools.threads import Threads
from holdfast.tools.workspace import workspace_for

T = TypeVar("T")
PROMPT = (
    "You are a helpful agent. You have tools that work in a workspace which keeps its files between conversations. "
    "Use them when they help, and say briefly what you did."
)


class Chance(Struct, frozen=True):
    """Randomness and time, as values."""

    new_code: Callable[[], str]
    now_ms: Callable[[], int]


class Agents(Struct, kw_only=True):
    """All agents of a server, and what they are made of."""

    agent: Agent
    default: Profile
    others: dict[str, Profile]
    loops: dict[str, LoopAgent]
    toolboxes: dict[str, Toolbox]
    approvals: dict[str, Approvals]
    sandbox: Sandbox
    secrets: set[str]
    models: list[Model]
    threads: Threads
    processes: Processes
    mcp: McpTools

    async def start(self) -> None:
        """Connect to MCP servers; a slow one does not hold up the start for long."""
        try:
            await self.mcp.start()
        except ToolsError as error:
            raise ConfigError(str(error)) from error
        await self.mcp.settled(2.0)

    async def close(self) -> None:
        """Let go of processes, connections and threads."""
        await self.processes.close()
        await self.mcp.close()
        for model in self.models:
            await model.close()
        self.threads.close()

    def tokens(self, spec: Spec, history: Sequence[Message]) -> int:
        """See calls.Scales."""
        return self.loops[spec.model].tokens(spec, history)

    def window(self, model: str) -> int:
        """See calls.Scales."""
        return self.loops[model].window

    def toolsets(self) -> dict[str, list[dict[str, object]]]:
        """The tools of each profile, for those who ask (A3)."""
        return {name: list(self._described(name, box)) for name, box in self.toolboxes.items()}

    def _described(self, profile: str, box: Toolbox) -> Iterable[dict[str, object]]:
        for name in box.names():
            tool = box.get(name)
            if tool is not None:
                asks = self.approvals[profile].mode_for(e.Call("", name, ""))
                shown = {"name": name, "description": tool.description, "effect": tool.effect, "emoji": tool.emoji}
                yield {**shown, "approval": asks}


def upstream_of(settings: Settings, url: str, name: str, api_key: str) -> Upstream:
    """An upstream with the configured patience."""
    m = settings.model
    return Upstream(
        url=url,
        name=name or "default",
        api_key=api_key,
        connect_s=m.connect_s,
        first_byte_s=m.first_byte_s,
        stall_s=m.stall_s,
        total_s=m.total_s,
        retries=m.retries,
    )


def choose_model(settings: Settings, found: Upstream | None) -> tuple[Model, str]:
    """The model of the default profile, and how to speak of it."""
    m = settings.model
    if m.url:
        upstream = upstream_of(settings, m.url, m.name, m.api_key or "")
        return OpenAIModel(upstream), f"{upstream.name} at {upstream.url}"
    if found is not None:
        return OpenAIModel(found), f"{found.name} at {found.url} (found by itself)"
    return ScriptedModel(), "the built-in scripted demo model"


class Chosen:
    """Those tools of a provider that a profile names."""

    def __init__(self, provider: McpTools, names: frozenset[str]) -> None:
        self._provider = provider
        self._names = names
        self._seen: tuple[Tool, ...] = ()
        self._kept: tuple[Tool, ...] = ()

    def tools(self) -> tuple[Tool, ...]:
        """See Provider.tools."""
        now = self._provider.tools()
        if now is not self._seen:
            self._seen, self._kept = now, tuple(tool for tool in now if tool.name in self._names)
        return self._kept

    def expected(self, name: str) -> Tool | None:
        """See Provider.expected."""
        return self._provider.expected(name) if name in self._names else None


class Workshop(Struct, frozen=True, kw_only=True):
    """What all profiles share."""

    settings: Settings
    data: Path
    store: Pending
    chance: Chance
    tools: list[Tool]
    mcp: McpTools
    threads: Threads
    sandbox: Sandbox
    rules: tuple[Rule, ...]
    settings_mcp: bool
    """MCP servers are configured: a name may be one of theirs."""

    def toolbox(self, wanted: tuple[str, ...] | None) -> Toolbox:
        """All tools, or those that a profile names."""
        if wanted is None:
            return Toolbox(self.tools, [self.mcp])
        known = {tool.name: tool for tool in self.tools}
        missing = [name for name in wanted if name not in known]
        if missing and not self.settings_mcp:
            raise ConfigError(f"A profile names the tool {missing[0]}, which there is not. Tools: {', '.join(known)}.")
        return Toolbox([known[name] for name in wanted if name in known], [Chosen(self.mcp, frozenset(wanted))])

    def approvals(self, chosen: Mode | None) -> Approvals:
        """auto: never inside bubblewrap, on-write otherwise (E4)."""
        configured = self.settings.tools.approval
        auto: Mode = "never" if self.sandbox.kind == "bwrap" else "on-write"
        mode = chosen or (auto if configured == "auto" else configured)
        chance, ttl_s = self.chance, self.settings.tools.approval_ttl_s
        return Approvals(mode, self.rules, self._granted, chance.new_code, chance.now_ms, ttl_s)

    async def _granted(self, owner: str, session: str, tool: str) -> bool:
        return await patiently(lambda: self.store.granted(owner, session, tool))

    def places(self, workspace: str) -> Callable[[RunState, str], Place]:
        """Where calls of a profile happen (D3)."""
        limits = self.settings.limits

        def place(state: RunState, call_id: str) -> Place:
            accepted = state.facts.accepted
            session = accepted.resolved.session or ""
            name = accepted.owner if workspace == "owner" else f"{accepted.owner}/{session}"
            return Place(
                owner=accepted.owner,
                session=session,
                call_id=call_id,
                workspace=workspace_for(self.data / "workspaces", name),
                state=workspace_for(self.data / "tools", accepted.owner),
                memory_scope=accepted.spec.memory_scope,
                timeout_s=limits.tool_timeout_s,
                output_bytes=limits.tool_output_bytes,
            )

        return place

    def ender(self) -> Callable[[e.Process, str], Awaitable[bool]]:
        """Ends what an earlier attempt left running."""

        async def end(process: e.Process, call_id: str) -> bool:
            return await self.threads.run(end_leftover, process, call_id)

        return end


def build_agents(loaded: Loaded, store: Pending, model: Model, sandbox: Sandbox, chance: Chance) -> Agents:
    """The default profile and all others."""
    settings, tables = loaded.settings, loaded.tables
    threads = Threads()
    processes = Processes(threads)
    mcp = McpTools([_mcp_server(name, table) for name, table in tables.mcp.items()], threads)
    try:
        own = load_tools(settings.tools.modules, threads)
    except ToolsError as error:
        raise ConfigError(str(error)) from error
    shop = Workshop(
        settings=settings,
        data=settings.server.data_path,
        store=store,
        chance=chance,
        tools=[*builtin_tools(sandbox, threads, processes), *own],
        mcp=mcp,
        threads=threads,
        sandbox=sandbox,
        settings_mcp=bool(tables.mcp),
        rules=tuple(Rule(rule.tool, rule.ask, rule.match) for rule in tables.approvals),
    )
    name = settings.server.model_name
    made = {name: _agent(shop, ProfileTable(), model)}
    models = [model]
    for other, table in tables.profiles.items():
        own_model = _model_of(settings, table) or model
        models += [own_model] if own_model is not model else []
        made[other] = _agent(shop, table, own_model)
    profiles = {key: _profile(settings, key, tables.profiles.get(key, ProfileTable())) for key in made}
    default = profiles.pop(name)
    keys = {settings.model.api_key, *(table.model_api_key for table in tables.profiles.values())}
    keys |= {value for table in tables.mcp.values() for value in _secret_values(table)}
    return Agents(
        agent=ByProfile(made[name][0], {key: agent for key, (agent, _, _) in made.items() if key != name}),
        default=default,
        others=profiles,
        loops={key: agent for key, (agent, _, _) in made.items()},
        toolboxes={key: box for key, (_, box, _) in made.items()},
        approvals={key: approvals for key, (_, _, approvals) in made.items()},
        sandbox=sandbox,
        secrets={key for key in keys if key},
        models=models,
        threads=threads,
        processes=processes,
        mcp=mcp,
    )


def _agent(shop: Workshop, table: ProfileTable, model: Model) -> tuple[LoopAgent, Toolbox, Approvals]:
    agent = shop.settings.agent
    toolbox, approvals = shop.toolbox(table.tools), shop.approvals(table.approval)
    settings = LoopSettings(
        system_prompt=_or(table.system_prompt, agent.system_prompt or PROMPT),
        max_rounds=agent.max_rounds,
        max_message_bytes=agent.max_message_bytes,
        context_tokens=_or(table.context_tokens, agent.context_tokens),
        on_unknown=agent.on_unknown,
    )
    place = shop.places(table.workspace or shop.settings.tools.workspace)
    return LoopAgent(model, toolbox, settings, place, shop.ender(), approvals), toolbox, approvals


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _model_of(settings: Settings, table: ProfileTable) -> Model | None:
    if table.model_url is None and table.model_name is None:
        return None
    url = table.model_url or settings.model.url
    if not url:
        raise ConfigError("A profile names a model but no model_url, and there is no model.url.")
    name = table.model_name or settings.model.name
    return OpenAIModel(upstream_of(settings, url, name, table.model_api_key or settings.model.api_key or ""))


def _profile(settings: Settings, name: str, table: ProfileTable) -> Profile:
    agent = settings.agent
    return Profile(
        name=name,
        tool_items=_or(table.tool_items, agent.tool_items),
        tool_progress=agent.tool_progress,
        output_bound=agent.output_event_bytes,
        durable_chat=_or(table.durable_chat, agent.durable_chat),
        unknown_model=settings.server.unknown_model,
        client_tools=_or(table.client_tools, agent.client_tools),
        on_disconnect=_or(table.on_disconnect, agent.on_disconnect),
        resend_ms=int(agent.resend_window_s * 1000),
    )


def _secret_values(table: Mapping[str, object]) -> Iterable[str]:
    """What must not be logged of an MCP server's table: long values of its environment and headers."""
    for name in ("env", "headers"):
        given = table.get(name)
        if isinstance(given, dict):
            yield from (str(value) for value in given.values() if len(str(value)) >= 12)


def _mcp_server(name: str, table: Mapping[str, object]) -> McpServer:
    try:
        return msgspec.convert({"name": name, **table}, McpServer)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"[mcp.{name}] in the configuration file: {error}.") from error
