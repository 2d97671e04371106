"""The user's own server as the object of a drill. Owns: what the drill changes of the user's settings and why, and the
setup that comes of it: their file, environment, tools and MCP servers, on a data directory of the drill's own. Refuses
to know: what is killed when. Everything else of their settings stays as it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from holdfast.config import OPTIONS, Loaded
from holdfast.drill import TRACES_ENV
from holdfast.drill.loads import PROBES, SHELL, draw_prompt, draw_with
from holdfast.drill.processes import Launch, Server
from holdfast.drill.wire import KEY
from holdfast.drill.witness import Setup

PROBE_TOOLS = {"drill_write": "write", "drill_idempotent": "idempotent", "drill_read": "read"}
PROBE_MODULE = "holdfast.drill.probes"
EVERYWHERE: dict[str, object] = {
    "store.max_responses": 0,
    "store.max_days": 0.0,
    "store.owner_bytes": 0,
    "store.total_bytes": 0,
    "server.worker": True,
}
"""A run must not be evicted before it is judged."""
SCRIPTED: dict[str, object] = {
    "agent.max_rounds": 50,
    "agent.max_message_bytes": 4_194_304,
    "agent.context_tokens": 0,
    "agent.on_unknown": "tell",
    "tools.approval": "never",
}
"""What the scripted model asks for must be possible, and nobody is there to answer questions."""
REAL_RECOVERY_S = 300.0
REAL_WINDOW_S = 4.0
NAMED_CALL = re.compile(r"\s*([A-Za-z0-9_-]{1,64}):\s*(\{.*\})\s*", re.DOTALL)


class Impossible(Exception):
    """This drill cannot be made as it was asked for; the text says what to do."""


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    config: str | None = None
    calls: tuple[str, ...] = ()
    """Tools of theirs that may be called: NAME:{JSON}."""
    shell: bool = False
    prompts: tuple[str, ...] = ()
    """For their real model; none: the scripted one."""


@dataclass(frozen=True)
class Own:
    """Their server, ready to be drilled."""

    setup: Setup
    changed: Mapping[str, str] = field(default_factory=dict)
    """Options that were changed for the drill."""
    calls: tuple[str, ...] = ()
    tools: frozenset[str] = frozenset()
    """Those that must be there."""


def own_server(wish: Wish, loaded: Loaded, folder: Path) -> Own:
    """How to start it, and what to ask of it."""
    arguments = ("--host", "127.0.0.1", *(("--config", wish.config) if wish.config else ()))
    if wish.prompts:
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


def _changes(loaded: Loaded, wanted: Mapping[str, object]) -> dict[str, str]:
    """Those options that are not as they must be."""

    def value(key: str) -> object:
        option = OPTIONS[key]
        return getattr(getattr(loaded.settings, option.section), option.name)

    return {key: str(want) for key, want in wanted.items() if value(key) != want}


def _environ(changed: Mapping[str, str]) -> dict[str, str]:
    ours = {OPTIONS[key].env: value for key, value in changed.items()}
    return {**os.environ, "API_SERVER_KEY": KEY, "HOLDFAST_SERVER_KEY": KEY, **ours}


def _must_not_ask(loaded: Loaded) -> None:
    """Rules come from the file only, so the drill cannot change them."""
    for tool in PROBE_TOOLS:
        first = next((rule for rule in loaded.tables.approvals if rule.tool in ("*", tool) and _fits(rule.match)), None)
        if first is not None and first.ask != "never":
            raise Impossible(
                f"a rule of [[approvals]] (tool = {first.tool!r}, ask = {first.ask!r}) asks a person before the probe "
                f'{tool} of the drill. Put a rule with tool = "{tool}" and ask = "never" before it.'
            )


def _fits(pattern: str) -> bool:
    return re.search(pattern, '{"seconds":0.010}') is not None


def named_call(text: str) -> str:
    """NAME:{JSON} as the scripted upstream reads it."""
    found = NAMED_CALL.fullmatch(text)
    try:
        if found is None or not isinstance(arguments := json.loads(found[2]), dict):
            raise ValueError
    except ValueError:
        raise Impossible(f"--call {text!r} is not NAME:{{JSON object}}, as in 'lookup:{{\"id\": 7}}'.") from None
    return f"{found[1]}:{json.dumps(arguments)}"


async def tools_are_there(server: Server, wanted: frozenset[str]) -> None:
    """Fail early where a tool is missing: a call of it would look like an effect that was lost."""
    offered = {tool["name"] for tool in await _offered(server)}
    if missing := sorted(wanted - offered):
        why = " The terminal needs a sandbox: see `holdfast doctor`." if "terminal" in missing else ""
        raise Impossible(f"the server has no tool {', '.join(missing)}.{why} It has: {', '.join(sorted(offered))}.")


async def _offered(server: Server) -> Sequence[Mapping[str, str]]:
    """By the default profile, which is the one that is drilled."""
    sets = (await server.shown("/v1/toolsets"))["data"]
    tools: Sequence[Mapping[str, str]] = sets[0]["tools"]
    return tools
