"""Pages made from the code. Owns: docs/reference/events.md, state.md, options.md and clients.md, so that they cannot be
wrong.
`python -m holdfast.docs DIR` writes them, `--check` fails where one is stale. Refuses to know: prose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import msgspec

from holdfast.config import OPTIONS
from holdfast.core import events
from holdfast.core.table import DELTAS, TABLE, TERMINAL, Next, Phase
from holdfast.dialects.clients import FIELDS as CLIENT_FIELDS
from holdfast.dialects.clients import TABLE as CLIENTS

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
    lines.append("`holdfast.toml`, the environment and flags mean the same; flags win over the environment, which wins")
    lines.append("over the file. `holdfast config show` tells where each value came from.\n")
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


PAGES = {"events.md": events_page, "state.md": state_page, "options.md": options_page, "clients.md": clients_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    check = "--check" in arguments
    root = Path(next(name for name in arguments if not name.startswith("--"))) / "reference"
    stale = []
    for name, make in PAGES.items():
        path, text = root / name, make()
        if check and (not path.exists() or path.read_text() != text):
            stale.append(str(path))
        elif not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        sys.stderr.write(f"stale: {', '.join(stale)}. Run `make docs`.\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
