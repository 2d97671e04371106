"""The verdicts of the client matrix for people. Owns: the table on the terminal and the page in docs/."""

from __future__ import annotations

from typing import Any

MARKS = {"ok": "ok", "limit": "ok*", "gap": "GAP", "fail": "FAIL", "skip": "SKIP"}
KILLED = """## Killed in mid-answer

A server with default settings runs one tool, begins its answer and is killed with `kill -9`. It is started again on the
same port and data directory. Killed in mid-answer, the client had the beginning of the answer. Killed before the first
byte, it had nothing: a proxy kept the beginning back. An answer that is not streamed has no beginning. Where a client
gives up, its user asks the same again.

- tool: how often the tool ran. runs: how many `/v1/runs` had for this question.
- Whole, after the part that broke off: a [Responses](api/responses.md) stream has the broken message first, as an item
  with status `incomplete`. The final response has its text once.
- GAP: not yet as it should be, below.
"""


def printed(verdicts: list[Any], deaths: list[Any]) -> str:
    """One line per cell, then the counts; what is not simply ok says why."""
    lines = _columns([((v.client, v.version, v.way, v.case), v) for v in verdicts])
    if deaths:
        lines += ["", "killed:"]
        lines += _columns([((d.client, d.version, d.way, d.when, f"asked again by {d.again}"), d) for d in deaths])
    counts = {name: sum(row.result == name for row in (*verdicts, *deaths)) for name in MARKS}
    lines.append("")
    lines.append(
        f"{counts['ok']} ok, {counts['limit']} ok within a limit of the client's own (*), "
        f"{counts['gap']} KNOWN GAPS, {counts['fail']} failed, {counts['skip']} SKIPPED"
    )
    return "\n".join(lines)


def _columns(rows: list[tuple[tuple[str, ...], Any]]) -> list[str]:
    """Cells of one width, then the mark and the reason."""
    width = [max(len(cell) for cell in column) for column in zip(*(cells for cells, _ in rows), strict=True)]
    return [
        f"{'  '.join(map(str.ljust, cells, width))}  {MARKS[row.result]:4}  {row.why}".rstrip() for cells, row in rows
    ]


def page(verdicts: list[Any], deaths: list[Any]) -> str:
    """The page in docs/: a table of clients and cases, then what is a client's own limit and what was left out."""
    lines = ["# Clients that were tested", ""]
    lines += ["Made by `make test-clients ARGS='--docs docs/clients-tested.md'`: real clients against a real server."]
    lines += [
        "",
        "ok: as it should be, in every way that the client has; ok*: ok within a limit of the client's own, below.",
    ]
    lines += [""]
    cases = list(dict.fromkeys(v.case for v in verdicts if v.case))
    lines += ["| client | version | ways | " + " | ".join(cases) + " |", "|---" * (len(cases) + 3) + "|"]
    for client in dict.fromkeys(v.client for v in verdicts):
        mine = [v for v in verdicts if v.client == client]
        ways = ", ".join(dict.fromkeys(v.way for v in mine if v.way and v.result != "skip"))
        cells = [_cell([v.result for v in mine if v.case == case]) for case in cases]
        lines.append(f"| {client} | {mine[0].version} | {ways} | " + " | ".join(cells) + " |")
    lines += ["", *KILLED.splitlines(), *_killed(deaths)]
    titles = {"fail": "Failures", "gap": "Known gaps", "limit": "Limits of the clients", "skip": "Skipped"}
    for result, title in titles.items():
        told = dict.fromkeys(f"- {v.client}, {_places(verdicts, v)}: {v.why}" for v in verdicts if v.result == result)
        told |= dict.fromkeys(
            f"- {d.client}, {f'{d.way} killed {d.when}' if d.way else 'killed'}: {d.why}"
            for d in deaths
            if d.result == result
        )
        lines += ["", f"## {title}", "", *(told or ["None."])]
    return "\n".join(lines) + "\n"


def _killed(deaths: list[Any]) -> list[str]:
    """One row per kill."""
    names = (
        "client",
        "version",
        "way",
        "killed",
        "what the client does",
        "asked again by",
        "tool",
        "runs",
        "answer",
        "",
    )
    lines = ["", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for d in deaths:
        facts = (d.did, d.again, d.lines, d.runs, d.answer) if d.way else ("", "", "", "", "")
        cells = (d.client, d.version, d.way, d.when, *facts, MARKS[d.result])
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def _cell(results: list[str]) -> str:
    for worst in ("fail", "limit", "ok"):
        if worst in results:
            return {"fail": "FAIL", "limit": "ok*", "ok": "ok"}[worst]
    return "-"


def _places(verdicts: list[Any], like: Any) -> str:
    """Where else the same is said of the same client."""
    same = (v for v in verdicts if (v.client, v.result, v.why) == (like.client, like.result, like.why))
    return "; ".join(f"{v.way} {v.case}".strip() or "all" for v in same)
