"""The verdicts of the client matrix for people. Owns: the table on the terminal and the page in docs/."""

from __future__ import annotations

from typing import Any


def printed(verdicts: list[Any]) -> str:
    """One line per cell, then the counts; what is not simply ok says why."""
    names = ("client", "version", "way", "case")
    width = [max([len(str(getattr(v, name))) for v in verdicts] or [0]) for name in names]
    lines = []
    for v in verdicts:
        cells = (text.ljust(n) for text, n in zip((v.client, v.version, v.way, v.case), width, strict=True))
        mark = {"ok": "ok", "limit": "ok*", "fail": "FAIL", "skip": "SKIP"}[v.result]
        lines.append(f"{'  '.join(cells)}  {mark:4}  {v.why}".rstrip())
    counts = {name: sum(v.result == name for v in verdicts) for name in ("ok", "limit", "fail", "skip")}
    lines.append("")
    lines.append(
        f"{counts['ok']} ok, {counts['limit']} ok within a limit of the client's own (*), "
        f"{counts['fail']} failed, {counts['skip']} SKIPPED"
    )
    return "\n".join(lines)


def page(verdicts: list[Any]) -> str:
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
    for title, result in (("Failures", "fail"), ("Limits of the clients", "limit"), ("Skipped", "skip")):
        told = dict.fromkeys(f"- {v.client}, {_places(verdicts, v)}: {v.why}" for v in verdicts if v.result == result)
        lines += ["", f"## {title}", "", *(told or ["None."])]
    return "\n".join(lines) + "\n"


def _cell(results: list[str]) -> str:
    for worst in ("fail", "limit", "ok"):
        if worst in results:
            return {"fail": "FAIL", "limit": "ok*", "ok": "ok"}[worst]
    return "-"


def _places(verdicts: list[Any], like: Any) -> str:
    """Where else the same is said of the same client."""
    same = (v for v in verdicts if (v.client, v.result, v.why) == (like.client, like.result, like.why))
    return "; ".join(f"{v.way} {v.case}".strip() or "all" for v in same)
