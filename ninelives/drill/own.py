"""Drilling the user's own server. Owns: which of the user's settings the drill changes and why, and the setup:
their file, environment, tools and MCP servers, on a data directory of the drill's own. All other settings stay as they
are. Refuses to know: what is killed when."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ninelives.app.settings import OPTIONS, ApprovalRule, LoadedSettings
from ninelives.drill import TRACES_ENV
from ninelives.drill.loads import PROBES, SHELL, draw_prompt, draw_with
from ninelives.drill.processes import Launch, Server
from ninelives.drill.wire import KEY
from ninelives.drill.witness import Setup

PROBE_TOOLS = {"drill_write": "write", "drill_idempotent": "idempotent", "drill_read": "read"}
PROBE_MODULE = "ninelives.drill.probes"
EVERYWHERE: dict[str, object] = {
    "store.max_responses": 0,
    "store.max_days": 0.0,
    "store.owner_bytes": 0,
    "store.total_bytes": 0,
    "server.worker": True,
}
"""A run must not be evicted before it is checked."""
SCRIPTED: dict[str, object] = {
    "agent.max_rounds": 50,
    "agent.max_message_bytes": 4_194_304,
    "agent.context_tokens": 0,
    "agent.on_unknown": "tell",
    "tools.approval": "never",
}
"""The scripted model's requests must be possible, and nobody answers approvals."""
REAL_RECOVERY_S = 300.0
REAL_WINDOW_S = 4.0
NAMED_CALL = re.compile(r"\A\s*+([A-Za-z0-9_-]{1,64}):\s*+(\{.*\})\s*", re.DOTALL)


class Impossible(Exception):
    """The drill cannot run as requested. The text says what to do."""


@dataclass(frozen=True)
class Wish:
    """What the user requested."""

    config: str | None = None
    calls: tuple[str, ...] = ()
    """Calls of the user's tools: NAME:{JSON}."""
    shell: bool = False
    prompts: tuple[str, ...] = ()
    """For the user's real model. Without any, the model is scripted."""
    agent: str = ""
    """An agent of the user's own, as module:object. It gets the prompts."""


@dataclass(frozen=True)
class Own:
    """The user's server, ready to be drilled."""

    setup: Setup
    changed: Mapping[str, str] = field(default_factory=dict)
    """Options that were changed for the drill."""
    calls: tuple[str, ...] = ()
    tools: frozenset[str] = frozenset()
    """Tools that the server must have."""


def own_server(wish: Wish, loaded: LoadedSettings, folder: Path) -> Own:
    """The setup for the user's server."""
    arguments = ("--host", "127.0.0.1", *(("--config", wish.config) if wish.config else ()))
    if wish.prompts:
        arguments += (wish.agent,) if wish.agent else ()
        changed = _changes(loaded, EVERYWHERE)
        launch = Launch(arguments, _environ(changed), Path.cwd())
        draw = partial(draw_prompt, wish.prompts)
        calm = replace(Setup(launch, draw=draw), recovery_s=REAL_RECOVERY_S, window_s=REAL_WINDOW_S)
        return Own(replace(calm, scripted=False, counted=frozenset()), changed)
    _must_not_ask(loaded)
    calls = tuple(named_call(text) for text in wish.calls)
    modules = (*loaded.settings.tools.modules, PROBE_MODULE)
    changed = {**_changes(loaded, {**EVERYWHERE, **SCRIPTED}), "tools.modules": ",".join(modules)}
    traces = folder / "traces"
    hands = (PROBES, SHELL) if wish.shell else (PROBES,)
    counted = frozenset(PROBE_TOOLS) | ({"terminal"} if wish.shell else set())
    setup = Setup(
        launch=Launch(arguments, {**_environ(changed), TRACES_ENV: str(traces)}, Path.cwd()),
        draw=partial(draw_with, hands, calls),
        counted=counted,
        repeatable=frozenset(name for name, effect in PROBE_TOOLS.items() if effect != "write"),
        traces=traces,
    )
    named = {call.partition(":")[0] for call in calls}
    files = {"read_file", "write_file"} if wish.shell else set()
    return Own(setup, changed, calls, counted | named | files)


def _changes(loaded: LoadedSettings, wanted: Mapping[str, object]) -> dict[str, str]:
    """Options whose value differs from the wanted one."""

    def value(key: str) -> object:
        option = OPTIONS[key]
        return getattr(getattr(loaded.settings, option.section), option.name)

    return {key: str(want) for key, want in wanted.items() if value(key) != want}


def _environ(changed: Mapping[str, str]) -> dict[str, str]:
    ours = {OPTIONS[key].env: value for key, value in changed.items()}
    return {**os.environ, "API_SERVER_KEY": KEY, "NINELIVES_SERVER_KEY": KEY, **ours}


def _must_not_ask(loaded: LoadedSettings) -> None:
    """Refuse a configuration whose approval rules match a probe. The drill cannot change rules, as they come from the
    file only."""
    for tool in PROBE_TOOLS:
        first = next((rule for rule in loaded.tables.approvals if rule.tool in ("*", tool) and _fits(rule)), None)
        if first is not None and first.ask != "never":
            raise Impossible(
                f"a rule of [[approvals]] (tool = {first.tool!r}, ask = {first.ask!r}) requires an approval for "
                f'the probe {tool} of the drill. Put a rule with tool = "{tool}" and ask = "never" before it.'
            )


def _fits(rule: ApprovalRule) -> bool:
    """See agents/rules.py. The arguments of a probe are {"seconds": 0.01}."""
    if rule.ask == "never":
        return not rule.match or (rule.field == "seconds" and re.fullmatch(rule.match, "0.01") is not None)
    texts = ("0.01",) if rule.field == "seconds" else () if rule.field else ("seconds", "0.01")
    return not rule.match or any(re.search(rule.match, text) for text in texts)


def named_call(text: str) -> str:
    """Check NAME:{JSON}, and normalize it for the scripted upstream."""
    found = NAMED_CALL.fullmatch(text)
    try:
        if found is None or not isinstance(arguments := json.loads(found[2]), dict):
            raise ValueError
    except ValueError:
        raise Impossible(f"--call {text!r} is not NAME:{{JSON object}}, as in 'lookup:{{\"id\": 7}}'.") from None
    return f"{found[1]}:{json.dumps(arguments)}"


async def tools_are_there(server: Server, wanted: frozenset[str]) -> None:
    """Fail early where a tool is missing. Otherwise its calls would look like lost effects."""
    offered = {tool["name"] for tool in await _offered(server)}
    if missing := sorted(wanted - offered):
        why = " The terminal needs a sandbox: see `ninelives doctor`." if "terminal" in missing else ""
        raise Impossible(f"the server has no tool {', '.join(missing)}.{why} It has: {', '.join(sorted(offered))}.")


async def _offered(server: Server) -> Sequence[Mapping[str, str]]:
    """The tools of the default profile, which is the one that is drilled."""
    sets = (await server.shown("/v1/toolsets"))["data"]
    tools: Sequence[Mapping[str, str]] = sets[0]["details"]
    return tools
