"""The result of a drill, for people and programs. Owns: the table, the JSON object and the Markdown page. Refuses to
know: how anything was found."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ninelives import __version__
from ninelives.drill.rig import Tally

Row = int | float | str
SHOWN = 20
"""How many violations are shown in full."""
MEANING = {
    "kills": "SIGKILLs of the server",
    "at boundaries": "of those, right before or right after a write of the journal, for every write of a reference run",
    "at random": "of those, at random times: under mixed load, during restarts and during recoveries",
    "runs": "runs that were started before a kill and checked after the restart",
    "events seen": "events that clients had received",
    "events lost": "received, but not in the replay after the restart",
    "events changed": "received, but different in the replay, or in another order",
    "tool calls": "calls that the model requested",
    "tool executions counted": "how often the drill's own tools really ran, by the lines that they leave in a file",
    "finished tools re-run": "tools that ran again after their result was committed, and writes that ran twice",
    "unknown outcomes": "writes that a kill interrupted: reported as unknown, never repeated. Not a fault",
    "runs stuck": "runs that had not ended in time after the restart (30 s; a real model: 300 s)",
    "other violations": "numbers, ends, resumes, GET against stream, outcomes, what the model is sent",
    "waited for a person": "runs that waited for an approval; the drill stopped them. Not a fault",
    "restart p50 (s)": "from the start of the process until it listens",
    "recovery p50 (s)": "from the start of the process until every run has ended, remaining work included",
    "recovery max (s)": "the longest of those",
}


@dataclass(frozen=True)
class Facts:
    """The conditions of a drill."""

    seed: int
    command: str
    """Repeats it."""
    date: str
    model: str
    changed: Mapping[str, str]
    seconds: float


def rows(tally: Tally) -> dict[str, Row]:
    """The result, row by row."""
    named = ("lost", "changed", "rerun", "stuck")
    found: dict[str, Row] = {
        "kills": tally.kills,
        "at boundaries": tally.boundaries,
        "at random": tally.kills - tally.boundaries,
        "runs": tally.runs,
        "events seen": tally.events,
        "events lost": tally.count("lost"),
        "events changed": tally.count("changed"),
        "tool calls": tally.calls,
        "tool executions counted": tally.executed,
        "finished tools re-run": tally.count("rerun"),
        "unknown outcomes": tally.unknown,
        "runs stuck": tally.count("stuck"),
        "other violations": len(tally.found) - tally.count(*named),
    }
    if tally.waited:
        found["waited for a person"] = tally.waited
    recoveries, restarts = sorted(tally.recoveries) or [0.0], sorted(tally.restarts) or [0.0]
    found["restart p50 (s)"] = round(restarts[len(restarts) // 2], 2)
    found["recovery p50 (s)"] = round(recoveries[len(recoveries) // 2], 2)
    found["recovery max (s)"] = round(recoveries[-1], 2)
    return found


def table(tally: Tally, facts: Facts) -> str:
    """For a terminal."""
    shown: dict[str, Row] = {"seed": facts.seed, **rows(tally), "time (s)": round(facts.seconds, 1)}
    lines = [f"{name:<26}{value:>12}" for name, value in shown.items()]
    lines += ["", verdict(tally)]
    lines += [f"  {str(finding)[:2000]}" for finding in tally.found[:SHOWN]]
    if len(tally.found) > SHOWN:
        lines.append(f"  and {len(tally.found) - SHOWN} more")
    if tally.found:
        lines.append(f"To repeat it: {facts.command} --keep DIR (DIR then has the store and the log)")
    return "\n".join(lines)


def verdict(tally: Tally) -> str:
    """In one line."""
    if tally.found:
        return f"BROKEN: {len(tally.found)} violations in {tally.runs} runs."
    return f"No promise was broken by {tally.kills} kills in {tally.runs} runs."


def as_object(tally: Tally, facts: Facts) -> dict[str, object]:
    """For programs. The rows have names with underscores."""
    signs = str.maketrans({" ": "_", "-": "_", "(": "", ")": ""})
    plain = {name.translate(signs): value for name, value in rows(tally).items()}
    return {
        "object": "ninelives.drill",
        "ok": not tally.found,
        "version": __version__,
        "date": facts.date,
        "seed": facts.seed,
        "command": facts.command,
        "model": facts.model,
        **plain,
        "time_s": round(facts.seconds, 1),
        "changed_settings": dict(facts.changed),
        "violations": [{"kind": found.kind, "run": found.run, "text": found.text[:2000]} for found in tally.found],
    }


def page(tally: Tally, facts: Facts) -> str:
    """The page docs/proof.md."""
    lines = [
        "<!-- Made by `ninelives drill --report`. Do not edit. -->\n",
        "# Proof\n",
        "The result of `ninelives drill`. It starts a real server, kills it (SIGKILL) at every write of its journal",
        "and at random times, restarts it, and compares what clients had received with what the server says then.\n",
        f"**{verdict(tally)}**\n",
        "| | | what it means |",
        "|---|---:|---|",
        *(f"| {name} | {value} | {MEANING[name]} |" for name, value in rows(tally).items()),
        "",
        f"{facts.date}, Ninelives {__version__}, seed {facts.seed}, {facts.seconds:.0f} s, model: {facts.model}.\n",
        f"Machine: {machine()}.\n",
    ]
    if facts.changed:
        changed = ", ".join(f"`{key} = {value}`" for key, value in facts.changed.items())
        lines.append(f"Settings that the drill changed, besides port, key and data directory: {changed}.\n")
    lines += [
        "To repeat it on your machine and with your own configuration (the seed draws the same loads and moments, but",
        "not the timing of the machine):\n",
        f"```sh\n{facts.command}\n```\n",
        "[How it works](testing.md#ninelives-drill)",
    ]
    lines += [f"- {str(finding)[:500]}" for finding in tally.found[:SHOWN]]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """The machine and the versions."""
    cpu = ""
    names = Path("/proc/cpuinfo")
    if names.exists():
        found = (line.partition(":")[2].strip() for line in names.read_text().splitlines() if "model name" in line)
        cpu = next(found, "")
    words = [
        f"{os.cpu_count()} cores" + (f" ({cpu})" if cpu else ""),
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"apsw {version('apsw')}",
        f"load average {os.getloadavg()[1]:.1f}",
    ]
    return ", ".join(words)
