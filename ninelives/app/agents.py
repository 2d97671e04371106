"""Builds the agents. Owns: models, tools, sandbox, approvals and profiles, made from settings and extensions. Refuses
to know: which backend the store is, HTTP, and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ninelives.agents.adapters import Surroundings
from ninelives.agents.approval import ApprovalPolicy, Approvals
from ninelives.agents.base import Agent, Turn
from ninelives.agents.loop import CallEnvironment, LoopAgent, LoopSettings
from ninelives.agents.rules import Mode, Rule
from ninelives.app.errors import ConfigError
from ninelives.app.extensions import (
    NO_EXTENSIONS,
    Extensions,
    extension_agents,
    installed_agents,
    installed_model,
    model_scheme,
    own_agent,
)
from ninelives.app.settings import ApprovalRule, ProfileTable, Settings
from ninelives.app.store import quota_limits
from ninelives.core import events as e
from ninelives.core.context import estimated_tokens
from ninelives.core.history import ask_messages
from ninelives.core.limits import Price
from ninelives.core.spec import Message, Spec
from ninelives.core.state import RunState
from ninelives.dialects.asking import Profile
from ninelives.engine.base import patiently
from ninelives.journal.base import Pending
from ninelives.models.base import Ask, Model
from ninelives.models.find import find_model, first_name
from ninelives.models.net.kept import ConnectionHolder
from ninelives.models.openai import OpenAIModel, Upstream
from ninelives.models.scripted import ScriptedModel
from ninelives.tools.base import Threads, Tool, approval_class
from ninelives.tools.builtin.process import Processes
from ninelives.tools.builtin.web_search import search_provider, search_tool
from ninelives.tools.decorator import ToolsError, load_tools, tool_of
from ninelives.tools.homes import Homes
from ninelives.tools.mcp.tools import McpServer, McpTools, Notify, ignore
from ninelives.tools.output import OutputFiles
from ninelives.tools.outside import ToolHoldings
from ninelives.tools.quota import Quotas
from ninelives.tools.registry import SHELL_TOOLS, Toolbox, builtin_tools
from ninelives.tools.sandbox.docker import DockerOptions
from ninelives.tools.sandbox.kinds import Sandbox, choose
from ninelives.tools.sandbox.reaper import end_leftover
from ninelives.tools.workspace import Places

T = TypeVar("T")
PROMPT = (
    "You are a helpful agent. You have tools that work in a workspace which keeps its files between conversations. "
    "Use them when they help, and say briefly what you did."
)

_OF_ENGINES = ("DOCKER_", "CONTAINER", "PODMAN_", "XDG_")
_NEEDED = ("HOME", "PATH", "USER", "TMPDIR", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS")


def choose_sandbox(settings: Settings, env: Mapping[str, str]) -> Sandbox:
    """The sandbox that is set. Blocks."""
    tools = settings.tools
    docker = DockerOptions(
        image=tools.docker_image,
        folder=settings.server.data_path.absolute() / "containers",
        program=tools.docker_program,
        network=tools.docker_network,
        memory_bytes=tools.docker_memory_bytes,
        environ={name: text for name, text in env.items() if name in _NEEDED or name.startswith(_OF_ENGINES)},
    )
    return choose(tools.sandbox, docker)


class AgentEnvironment(Struct, frozen=True):
    """What agents take from outside: randomness, the clock and the homes of workspaces."""

    new_code: Callable[[], str]
    now_ms: Callable[[], int]
    homes: Homes | None = None
    """None: all workspaces are on this machine."""
    mcp_notify: Notify = ignore
    connections: ConnectionHolder | None = None
    """Makes connections to models that outlive this process."""


class ProfileAgent(Struct, frozen=True):
    """The agent of one profile. An agent of the user brings its own tools."""

    agent: Agent
    model: str = ""
    """The name of its model at the upstream."""
    loop: LoopAgent | None = None
    toolbox: Toolbox | None = None
    approvals: Approvals | None = None


class Agents(Struct, kw_only=True):
    """All agents of a server, and what they are made of."""

    default: Profile
    others: dict[str, Profile]
    by_profile: dict[str, ProfileAgent]
    sandbox: Sandbox
    models: list[Model]
    threads: Threads
    outputs: OutputFiles
    processes: Processes
    mcp: McpTools
    holdings: ToolHoldings
    prices: Mapping[str, Price]

    async def start(self) -> None:
        """Connect to MCP servers. Waits at most two seconds for slow ones."""
        try:
            await self.mcp.start()
        except ToolsError as error:
            raise ConfigError(str(error)) from error
        await self.mcp.wait_for_servers(2.0)

    async def close(self) -> None:
        """End processes, and close connections and threads."""
        await self.processes.close()
        await self.threads.run(self.sandbox.close)
        await self.mcp.close()
        for model in self.models:
            await model.close()
        self.outputs.close()
        self.threads.close()

    def tokens(self, spec: Spec, history: Sequence[Message]) -> int:
        """See TokenCounts.tokens."""
        loop = self.by_profile[spec.model].loop
        return loop.tokens(spec, history) if loop is not None else estimated_tokens(ask_messages("", spec, history))

    def window(self, model: str) -> int:
        """See TokenCounts.window."""
        loop = self.by_profile[model].loop
        return loop.window if loop is not None else 0

    def price_of(self, profile: str) -> Price | None:
        """What the model of a profile costs: by the name of the profile, else by that of its model."""
        return self.prices.get(profile) or self.prices.get(self.model_of(profile))

    def model_of(self, profile: str) -> str:
        """The name of a profile's model at its upstream."""
        return (self.by_profile.get(profile) or self.by_profile[self.default.name]).model

    def asked(self, state: RunState, history: tuple[Message, ...]) -> Ask | None:
        """See ModelRequests.asked."""
        made = self.by_profile.get(state.facts.accepted.spec.model)
        if made is None or made.loop is None:
            return None
        return Ask(*made.loop.request(Turn(state, history)))

    def describe_rules(self) -> str:
        """The sandbox, the approvals of the default profile, and whether programs can be run: for the start."""
        made = self.by_profile[self.default.name]
        if made.approvals is None or made.toolbox is None:
            mode = f", approval {made.approvals.policy.mode}" if made.approvals is not None else ""
            return f"sandbox {self.sandbox.kind}{mode}; your agent has its own tools"
        shell = "offered" if made.toolbox.get("terminal") is not None else "not offered"
        return f"sandbox {self.sandbox.kind}, approval {made.approvals.policy.mode}, shell tools {shell}"

    def toolsets(self) -> dict[str, list[dict[str, object]]]:
        """The tools of each profile, for GET /v1/toolsets."""
        return {name: list(_described(made)) for name, made in self.by_profile.items()}

    def tools_off(self) -> list[dict[str, object]]:
        """The tools that this machine cannot offer, each with the reason and the remedy."""
        off = SHELL_TOOLS if self.sandbox.kind == "refused" else ()
        return [{"name": name, "why": self.sandbox.says} for name in off]


def _described(made: ProfileAgent) -> Iterable[dict[str, object]]:
    toolbox, approvals = made.toolbox, made.approvals
    if toolbox is None or approvals is None:
        return
    for name in toolbox.names():
        tool = toolbox.get(name)
        if tool is not None:
            shown = {"name": name, "description": tool.description, "effect": tool.effect, "emoji": tool.emoji}
            yield {**shown, "approval": approval_class(tool), "asks": approvals.mode_for(tool)}


def upstream_of(settings: Settings, url: str, name: str, api_key: str) -> Upstream:
    """An upstream with the configured timeouts and retries."""
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


DEMO_URL = "demo:"
"""The model.url that means the demo model, also where a local model could be found."""


async def choose_model(
    settings: Settings, env: Mapping[str, str], connections: ConnectionHolder | None = None
) -> tuple[Model, str]:
    """The model of the default profile, and one phrase that describes it. Where only a URL is set, it is the first
    model that is listed there. Raises ConfigError."""
    m = settings.model
    if not m.url or m.url == DEMO_URL:
        found = await find_model(env) if not m.url else None
        if found is None:
            return ScriptedModel(), "the built-in scripted demo model"
        return OpenAIModel(found.upstream, connections), f"{found.upstream.name} at {found.upstream.url} ({found.by})"
    listed = ""
    if not m.name and not model_scheme(m.url):
        listed = await first_name(m.url, m.api_key or "")
    upstream = upstream_of(settings, m.url, m.name or listed, m.api_key or "")
    model = model_at(upstream, connections)
    return model, f"{model.name} at {upstream.url}{' (the first that is listed there)' if listed else ''}"


def model_at(upstream: Upstream, connections: ConnectionHolder | None) -> Model:
    """The model that a URL names: OpenAI-compatible HTTP, an installed extension, or the demo. Raises ConfigError."""
    if upstream.url == DEMO_URL:
        return ScriptedModel()
    return installed_model(upstream) if model_scheme(upstream.url) else OpenAIModel(upstream, connections)


class ChosenTools:
    """The tools of a provider that a profile names."""

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


class AgentFactory(Struct, frozen=True, kw_only=True):
    """Makes the agent of each profile from what all profiles share."""

    settings: Settings
    store: Pending
    environment: AgentEnvironment
    tools: list[Tool]
    mcp: McpTools
    threads: Threads
    outputs: OutputFiles
    quotas: Quotas
    sandbox: Sandbox
    more_tools: bool
    """There may be tools whose names are not known here: of MCP servers, or of an agent of the user."""
    search_hosts: tuple[str, ...] = ()
    """The host of the search provider, which the operator chose: nobody is asked about it."""

    def agent(self, table: ProfileTable, model: Model) -> ProfileAgent:
        """The agent of one profile."""
        given = self.surroundings(table, model)
        if table.agent:
            return ProfileAgent(own_agent(table.agent, given), model.name, approvals=given.approvals)
        toolbox = self.toolbox(table.tools)
        places = self.places(table.workspace or self.settings.tools.workspace)
        environment = CallEnvironment(places.of, self.end_leftover, self.outputs)
        approvals = self.approvals(table)
        loop = LoopAgent(model, toolbox, given.settings, environment, approvals)
        return ProfileAgent(loop, model.name, loop, toolbox, approvals)

    def surroundings(self, table: ProfileTable, model: Model) -> Surroundings:
        """The model, limits and approvals of a profile."""
        agent = self.settings.agent
        settings = LoopSettings(
            system_prompt=_or(table.system_prompt, agent.system_prompt or PROMPT),
            max_rounds=agent.max_rounds,
            max_message_bytes=agent.max_message_bytes,
            context_tokens=_or(table.context_tokens, agent.context_tokens),
            on_unknown=agent.on_unknown,
        )
        return Surroundings(model, settings, self.approvals(table))

    def toolbox(self, wanted: tuple[str, ...] | None) -> Toolbox:
        """The tools that a profile names; None: all tools."""
        if wanted is None:
            return Toolbox(self.tools, [self.mcp] if self.settings.tables.mcp else [])
        known = {tool.name: tool for tool in self.tools}
        missing = [name for name in wanted if name not in known]
        if missing and not self.settings.tables.mcp:  # else the name may be a tool of an MCP server
            raise ConfigError(f"A profile names the unknown tool {missing[0]}. Tools: {', '.join(known)}.")
        return Toolbox([known[name] for name in wanted if name in known], [ChosenTools(self.mcp, frozenset(wanted))])

    def approvals(self, table: ProfileTable) -> Approvals:
        """When to ask. `auto` is never inside bubblewrap and on-write elsewhere (E4)."""
        configured = self.settings.tools.approval
        auto: Mode = "never" if self.sandbox.kind == "bwrap" else "on-write"
        mode = table.approval or (auto if configured == "auto" else configured)
        rules = tuple(_rule(rule, self.tools, more_tools=self.more_tools) for rule in self.settings.tables.approvals)
        hosts = (*_or(table.web_allow, self.settings.web.allow), *self.search_hosts)
        policy = ApprovalPolicy(mode, rules, hosts)
        environment, ttl_s = self.environment, self.settings.tools.approval_ttl_s
        return Approvals(policy, self._granted, environment.new_code, environment.now_ms, ttl_s)

    async def _granted(self, owner: str, ids: Sequence[str]) -> bool:
        return await patiently(lambda: self.store.granted(owner, ids))

    def places(self, workspace: str) -> Places:
        """Gives each tool call its Place."""
        settings = self.settings
        return Places(
            data=settings.server.data_path,
            by_owner=workspace == "owner",
            apart=frozenset({"delivery"} if settings.store.unstored_hours else {"delivery", "hours"}),
            timeout_s=settings.limits.tool_timeout_s,
            output_bytes=settings.limits.tool_output_bytes,
            homes=self.environment.homes,
            quotas=self.quotas,
        )

    async def end_leftover(self, process: e.Process, call_id: str) -> bool:
        """End a process that a call of an earlier attempt left running."""
        return await self.threads.run(end_leftover, process, call_id)


def build_agents(
    settings: Settings,
    store: Pending,
    model: Model,
    sandbox: Sandbox,
    environment: AgentEnvironment,
    extensions: Extensions = NO_EXTENSIONS,
) -> Agents:
    """The agents of the default profile, of the configured profiles and of extensions. Raises ConfigError."""
    tables = settings.tables
    threads, outputs = Threads(), OutputFiles()
    processes, quotas = Processes(threads), Quotas(quota_limits(settings), threads)
    mcp = McpTools(mcp_servers(settings), threads, environment.mcp_notify)
    search = [provider] if (provider := search_provider(settings.web.searxng_url, settings.web.tavily_key)) else []
    factory = AgentFactory(
        settings=settings,
        store=store,
        environment=environment,
        tools=_all_tools(
            [*builtin_tools(sandbox, threads, processes), *map(search_tool, search)], settings, extensions, threads
        ),
        more_tools=bool(tables.mcp or settings.own_agents or extensions.agents or installed_agents()),
        search_hosts=tuple(provider.host for provider in search),
        mcp=mcp,
        threads=threads,
        outputs=outputs,
        quotas=quotas,
        sandbox=sandbox,
    )
    name = settings.server.model_name
    made, models = _profile_agents(factory, model, extensions)
    profiles = {
        key: _profile(settings, key, tables.profiles.get(key, ProfileTable()), each.toolbox)
        for key, each in made.items()
    }
    default = profiles.pop(name)
    return Agents(
        default=default,
        others=profiles,
        by_profile=made,
        sandbox=sandbox,
        models=models,
        threads=threads,
        outputs=outputs,
        processes=processes,
        mcp=mcp,
        prices=tables.prices,
        holdings=ToolHoldings(settings.server.data_path, quotas, processes, threads, environment.now_ms),
    )


def _profile_agents(
    factory: AgentFactory, model: Model, extensions: Extensions
) -> tuple[dict[str, ProfileAgent], list[Model]]:
    """The agent of each profile, and the models that they use."""
    settings = factory.settings
    made = {settings.server.model_name: factory.agent(ProfileTable(agent=settings.agent.object), model)}
    models = [model]
    for name, table in settings.tables.profiles.items():
        own_model = _model_of(settings, table, factory.environment.connections) or model
        models += [own_model] if own_model is not model else []
        made[name] = factory.agent(table, own_model)
    for name, agent in extension_agents(extensions, factory.surroundings(ProfileTable(), model)).items():
        if name in made:
            raise ConfigError(f"Two agents have the name {name!r}: a profile or server.model_name, and an extension.")
        made[name] = ProfileAgent(agent)
    return made, models


def _all_tools(builtin: list[Tool], settings: Settings, extensions: Extensions, threads: Threads) -> list[Tool]:
    """Built-in tools, then installed and configured ones, then those of the embedding program."""
    try:
        own = [*load_tools(settings.tools.modules, threads), *(_tool(each, threads) for each in extensions.tools)]
    except ToolsError as error:
        raise ConfigError(str(error)) from error
    tools = [*builtin, *own]
    names = [tool.name for tool in tools]
    if double := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"Two tools have the name {double[0]!r}. Rename yours: @tool(name=...).")
    return tools


def _tool(given: object, threads: Threads) -> Tool:
    if hasattr(given, "prepare") and hasattr(given, "schema"):
        return cast(Tool, given)
    if not callable(given):
        raise ToolsError(f"tools has {type(given).__name__}, which is neither a function with @tool nor a Tool.")
    return tool_of(given, threads)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _rule(given: ApprovalRule, tools: Sequence[Tool], *, more_tools: bool) -> Rule:
    """A rule of [[approvals]]. Raises ConfigError for one that would not do what it seems to say."""
    where = f"[[approvals]] with tool = {given.tool!r}"
    known = {tool.name: cast(Mapping[str, object], tool.schema.get("properties", {})) for tool in tools}
    if given.tool not in ("*", *known, *SHELL_TOOLS) and not more_tools:
        raise ConfigError(f"{where}: there is no such tool. Tools: {', '.join(known)}.")
    if given.field and given.tool in known and given.field not in known[given.tool]:
        raise ConfigError(f"{where}: {given.field!r} is no field of it. Fields: {', '.join(known[given.tool])}.")
    return Rule(given.tool, given.ask, given.match, given.field)


def _model_of(settings: Settings, table: ProfileTable, connections: ConnectionHolder | None) -> Model | None:
    if table.model_url is None and table.model_name is None:
        return None
    url = table.model_url or settings.model.url
    if not url:
        raise ConfigError("A profile sets model_name but no model_url, and model.url is not set. Set one of them.")
    name = table.model_name or settings.model.name
    inherited = settings.model.api_key if same_origin(url, settings.model.url) else None
    return model_at(upstream_of(settings, url, name, table.model_api_key or inherited or ""), connections)


def keyless_profiles(settings: Settings) -> list[str]:
    """Profiles that would have inherited model.api_key, were their model_url of the same origin as model.url."""
    return [
        name
        for name, table in settings.tables.profiles.items()
        if settings.model.api_key and table.model_url and not table.model_api_key
        if not same_origin(table.model_url, settings.model.url)
    ]


def same_origin(one: str, two: str) -> bool:
    """True for two URLs with the same scheme, host and port. A key for one may be sent to the other."""
    try:
        return _origin_of(one) == _origin_of(two)
    except ValueError:
        return False


def _origin_of(url: str) -> tuple[str, str, int | None]:
    if scheme := model_scheme(url):
        return scheme, "", None
    parts = urlsplit(url.strip())
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _profile(settings: Settings, name: str, table: ProfileTable, toolbox: Toolbox | None) -> Profile:
    agent = settings.agent
    return Profile(
        name=name,
        owner=table.owner or "",
        tool_items=_or(table.tool_items, agent.tool_items),
        tool_progress=agent.tool_progress,
        output_bound=agent.output_event_bytes,
        store_false=_or(table.store_false, agent.store_false),
        unknown_model=settings.server.unknown_model,
        client_tools=_or(table.client_tools, agent.client_tools),
        on_disconnect=_or(table.on_disconnect, agent.on_disconnect),
        searches=toolbox is not None and "web_search" in toolbox.names(),
        resend_ms=int(agent.resend_window_s * 1000),
        resend_anonymous_ms=int(agent.resend_anonymous_s * 1000),
    )


def mcp_servers(settings: Settings) -> list[McpServer]:
    """The configured MCP servers. Raises ConfigError."""
    return [_mcp_server(name, table) for name, table in settings.tables.mcp.items()]


def _mcp_server(name: str, table: Mapping[str, object]) -> McpServer:
    try:
        return msgspec.convert({"name": name, **table}, McpServer)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"[mcp.{name}] in the configuration file: {error}.") from error
