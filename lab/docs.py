"""Documentation made from the code. Owns: the pages in docs/reference, and the diagrams and tables in
docs/architecture.md between `<!-- made:NAME -->` and `<!-- /made -->`. `python -m lab.docs DIR` writes them; `--check`
fails where one is stale. Refuses to know: prose."""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from ninelives.app.settings import OPTIONS
from ninelives.core import events
from ninelives.core.table import DELTAS, TABLE, TERMINAL, Next, Phase
from ninelives.dialects.clients import FIELDS as CLIENT_FIELDS
from ninelives.dialects.clients import TABLE as CLIENTS
from ninelives.engine import claim

MADE = "<!-- Made from the code by `make docs`. Do not edit. -->\n\n"


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def events_page() -> str:
    """Every event kind, its fields and what it means."""
    lines = [MADE + "# Events\n", "A run is its journal: these events, in the order they happened, numbered from 0.\n"]
    for kind in get_args(events.AnyEvent):
        info: Any = msgspec.inspect.type_info(kind)
        provisional = " *(provisional)*" if kind in DELTAS else ""
        lines.append(f"## {kind.__name__}{provisional}\n\n`{info.tag}`: {_first_sentence(kind.__doc__)}\n")
        hints = kind.__annotations__
        for field in info.fields:
            lines.append(f"- `{field.name}`: {hints.get(field.name, '')}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def state_page() -> str:
    """The transition table, as a diagram and as a table."""
    lines = [MADE + "# States of a run\n", "An event that has no arrow from a state is refused.\n", "```mermaid"]
    lines += ["stateDiagram-v2", "    [*] --> NEW"]
    for phase, row in zip(Phase, TABLE, strict=True):
        arrows: dict[str, list[str]] = {}
        for kind, cell in row.items():
            targets = ["ACTING", "READY"] if isinstance(cell, Next) else [cell.name]
            for target in targets:
                arrows.setdefault(target, []).append(kind.__name__)
        lines += [f"    {phase.name} --> {target}: {', '.join(kinds)}" for target, kinds in arrows.items()]
    lines += [f"    {phase.name} --> [*]" for phase in sorted(TERMINAL)]
    lines += ["```", "", "| state | event | next |", "|---|---|---|"]
    for phase, row in zip(Phase, TABLE, strict=True):
        for kind, cell in row.items():
            after = "ACTING while calls are due, else READY" if isinstance(cell, Next) else cell.name
            lines.append(f"| {phase.name} | {kind.__name__} | {after} |")
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Every option."""
    lines = [MADE + "# Options\n"]
    lines.append(
        "`ninelives.toml`, the environment and flags set the same options. Flags win over the environment, which"
    )
    lines.append("wins over the file. `ninelives config show` tells where each value came from. An option that may")
    lines.append("hold a secret can be in a file: `NAME_FILE` names it ([secrets](../operations.md#secrets)).\n")
    lines += ["| option | environment | default | allowed | what for |", "|---|---|---|---|---|"]
    for option in OPTIONS.values():
        default = option.show(option.default) or "-"
        allowed = option.allowed.replace("|", "\\|")
        lines.append(f"| `{option.key}` | `{option.env}` | {default} | {allowed} | {option.doc} |")
    return "\n".join(lines) + "\n"


def clients_page() -> str:
    """The table of clients."""
    lines = [
        MADE + "# Clients\n",
        "How a caller is recognised and what is special about it; see [clients](../clients.md).",
    ]
    lines.append("A cell that is empty says nothing; of all rows that fit, the first that says something decides.\n")
    lines += ["| client | recognised by | " + " | ".join(f"`{name}`" for name in CLIENT_FIELDS) + " |"]
    lines.append("|---" * (len(CLIENT_FIELDS) + 2) + "|")
    for client in CLIENTS:
        signs = [f"User-Agent `{client.agent}`"] if client.agent else []
        signs += [f"`{name}: {value}`" if value else f"`{name}`" for name, value in client.headers.items()]
        shown = [getattr(client, name) for name in CLIENT_FIELDS]
        cells = ["" if value is None else str(value).lower() for value in shown]
        by = " and ".join(signs).replace("|", "\\|") or "-"
        lines.append(f"| {client.name} | {by} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


ROOT = Path(__file__).parents[1]
PACKAGE = "ninelives"


def layers() -> list[list[str]]:
    """The rooms from top to bottom, as lint-imports checks them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix(f"{PACKAGE}.") for name in layer.split("|")] for layer in found]


@cache
def _imported(path: Path) -> list[str]:
    """The dotted names that a file imports from the package."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def room_imports(rooms: list[str]) -> dict[str, set[str]]:
    """Which room imports which others."""
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for room in rooms:
        for path in (ROOT / PACKAGE / room).rglob("*.py"):
            parts = [name.split(".") for name in _imported(path) if name.startswith(f"{PACKAGE}.")]
            found[room] |= {part[1] for part in parts if part[1] in found and part[1] != room}
    return found


def _reaches(graph: dict[str, set[str]], start: str, goal: str) -> bool:
    """Is there a way from start to goal over at least one room between them?"""
    seen, todo = {start}, [room for room in graph[start] if room != goal]
    while todo:
        room = todo.pop()
        if goal in graph[room]:
            return True
        if room not in seen:
            seen.add(room)
            todo.extend(graph[room])
    return False


def rooms_diagram() -> str:
    """The import graph of the rooms. An arrow that follows from two others is left out."""
    rows = layers()
    graph = room_imports([room for row in rows for room in row])
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {room}["{room}/"]' for room in graph]
    lines += [
        f"    {room} --> {other}"
        for room, others in graph.items()
        for other in graph
        if other in others and not _reaches(graph, room, other)
    ]
    return "\n".join([*lines, "```"])


CLIENT = "client"
REQUEST: tuple[tuple[str, str, str], ...] = (
    # from, to, what happens. A name is looked up: a request's way cannot name what is gone.
    (CLIENT, "http.edge.gate.Gate", "POST /v1/chat/completions"),
    ("http.edge.gate.Gate", "http.routes.chat.ChatRoutes", "host, origin, key and size are in order"),
    ("http.routes.chat.ChatRoutes", "dialects.chat.parse.parse", "read the body: Spec and Asked"),
    ("http.routes.chat.ChatRoutes", "engine.engine.Engine", "submit"),
    ("engine.engine.Engine", "engine.admission.Admission", "a slot, a place in the queue, or 429"),
    ("engine.admission.Admission", "journal.base.Store", "open: one transaction decides"),
    ("engine.admission.Admission", "engine.workers.Workers", "the run is held: drive it"),
    ("http.routes.chat.ChatRoutes", "engine.subscription.Subscription", "attach a reader"),
    ("engine.workers.Workers", "engine.workers.Worker", "start"),
    ("engine.workers.Worker", "agents.loop.LoopAgent", "here is the folded state: go on"),
    ("agents.loop.LoopAgent", "models.base.Model", "ask"),
    ("agents.loop.LoopAgent", "engine.workers.Worker", "TextDelta ..., MessageCompleted with a call, ToolStarted"),
    ("engine.workers.Worker", "engine.writer.Writer", "events"),
    ("engine.writer.Writer", "journal.base.Store", "append: a batch with the events of all runs"),
    ("engine.writer.Writer", "engine.run.Audience", "committed: step the projection once"),
    ("engine.run.Audience", "engine.subscription.Subscription", "push the same frames to every reader"),
    ("engine.subscription.Subscription", CLIENT, "frames"),
    ("agents.loop.LoopAgent", "tools.base.Execution", "ToolStarted is committed: run the tool"),
    ("agents.loop.LoopAgent", "engine.workers.Worker", "ToolFinished, then the next message, then RunCompleted"),
    ("engine.workers.Worker", "engine.writer.Writer", "events, as before: the last message and the end are one commit"),
    ("engine.subscription.Subscription", CLIENT, "finish chunk, [DONE]"),
)


def request_diagram() -> str:
    """The way of a streamed chat with one tool call."""
    places = list(dict.fromkeys(place for step in REQUEST for place in step[:2]))
    short = {place: place.rpartition(".")[2] for place in places}
    lines = ["```mermaid", "sequenceDiagram"]
    for place in places:
        if place == CLIENT:
            lines.append(f"    participant {CLIENT}")
            continue
        module = place.rpartition(".")[0]
        pkgutil.resolve_name(f"{PACKAGE}.{module}:{short[place]}")
        lines.append(f"    participant {short[place]} as {short[place]}<br/>{module.replace('.', '/')}.py")
    lines += [f"    {short[start]}->>{short[end]}: {what}" for start, end, what in REQUEST]
    return "\n".join([*lines, "```"])


def events_table() -> str:
    """For each kind of event: in which states it may come, and where it leads."""
    lines = ["| event | tag | kind | may come in | leads to |", "|---|---|---|---|---|"]
    for kind in get_args(events.AnyEvent):
        cells = [(phase.name, row[kind]) for phase, row in zip(Phase, TABLE, strict=True) if kind in row]
        after = dict.fromkeys("READY or ACTING" if isinstance(cell, Next) else cell.name for _, cell in cells)
        info: Any = msgspec.inspect.type_info(kind)
        nature = "delta" if kind in DELTAS else "end" if kind in get_args(events.Terminal) else "fact"
        states = ", ".join(name for name, _ in cells)
        lines.append(f"| {kind.__name__} | `{info.tag}` | {nature} | {states} | {', '.join(after)} |")
    return "\n".join(lines)


def claim_diagram() -> str:
    """The life of a claim: every event that changes its phase."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {phase.name}: {what}" for phase, what in BEGINNINGS]
    for phase, cells in claim.LIFE.items():
        ways: dict[str, list[str]] = {}
        for event, after in cells.items():
            if after is not phase:
                ways.setdefault(after.name, []).append(event.value)
        lines += [f"    {phase.name} --> {after}: {', '.join(events)}" for after, events in ways.items()]
    lines += [f"    {phase.name} --> [*]" for phase in (claim.ClaimPhase.RELEASED, claim.ClaimPhase.LOST)]
    return "\n".join([*lines, "```"])


BEGINNINGS = ((claim.ClaimPhase.OPENED, "open"), (claim.ClaimPhase.CLAIMED, "claim"))


def claim_table() -> str:
    """What each event does to a claim in each phase."""
    phases = list(claim.ClaimPhase)
    lines = [f"| event | {' | '.join(phase.value for phase in phases)} |", "|---|" + "---|" * len(phases)]
    for event in claim.ClaimEvent:
        cells = [_cell(claim.LIFE[phase].get(event), phase) for phase in phases]
        lines.append(f"| {event.value} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(after: claim.ClaimPhase | None, phase: claim.ClaimPhase) -> str:
    return "" if after is None else "·" if after is phase else after.value


def signals_table() -> str:
    """What each signal does to a claim in each phase."""
    phases = list(claim.ClaimPhase)
    lines = [f"| signal | {' | '.join(phase.value for phase in phases)} |", "|---|" + "---|" * len(phases)]
    for kind, cells in claim.SIGNALS.items():
        shown = [cells[phase].value if phase in cells else "" for phase in phases]
        lines.append(f"| {kind} | {' | '.join(shown)} |")
    return "\n".join(lines)


MADE_PARTS: dict[str, Callable[[], str]] = {
    "rooms": rooms_diagram,
    "request": request_diagram,
    "events": events_table,
    "claim": claim_diagram,
    "claims": claim_table,
    "signals": signals_table,
}
_PART = re.compile(r"(<!-- made:(\w+) -->\n).*?(<!-- /made -->)", re.DOTALL)


def architecture_page(text: str) -> str:
    """The page with its made parts renewed."""
    if missing := MADE_PARTS.keys() - {part[2] for part in _PART.finditer(text)}:
        raise SystemExit(f"architecture.md has no place <!-- made:{missing.pop()} --> ... <!-- /made -->.")
    return _PART.sub(lambda part: f"{part[1]}{MADE_PARTS[part[2]]()}\n{part[3]}", text)


PAGES = {"events.md": events_page, "state.md": state_page, "options.md": options_page, "clients.md": clients_page}


def pages(docs: Path) -> Iterator[tuple[Path, str]]:
    """Every made page, with the text that it should have."""
    for name, make in PAGES.items():
        yield docs / "reference" / name, make()
    architecture = docs / "architecture.md"
    yield architecture, architecture_page(architecture.read_text("utf-8"))


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    check = "--check" in arguments
    docs = Path(next(name for name in arguments if not name.startswith("--")))
    stale = []
    for path, text in pages(docs):
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if check:
            stale.append(str(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    if stale:
        sys.stderr.write(f"stale: {', '.join(stale)}. Run `make docs`.\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
