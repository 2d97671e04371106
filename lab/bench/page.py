"""A report as a page (Markdown) with its charts, and as JSON to compare with. Owns: what the folder holds. Refuses to
know: how anything is measured, judged or drawn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from lab.bench.figures import Report
from lab.bench.plots import draw
from lab.bench.tables import cells

PAGE, JSON = "results.md", "bench.json"
MADE = '<!-- Made by `make bench ARGS="--report docs/performance"`. Do not edit. -->\n'
INTRO = """Each load went through all targets in turn, the server under test on one core, upstream and clients on the
others. *direct* is the upstream itself, *floor* a Starlette + aiohttp proxy without a store that decodes and encodes
each chunk; CPU is that of the server's whole process tree. Trust ratios within this run: absolute numbers move by
20-40 % between runs and machines. A figure whose load direct could not carry is void."""
AGAIN = """Loads that the machine disturbed were taken again; of their rounds the calmest counts, by what the server
under test hardly causes (tokens that the upstream made late, the share of the server's core that others had), whatever
it says. All others are in bench.json too, under `disturbed`."""


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def _verdicts(report: Report) -> Iterator[str]:
    yield from ("## Promises", "", "| line | promise | bound | measured | verdict |", "|---|---|---|---|---|")
    for verdict in report.verdicts:
        yield _row([verdict.line, verdict.says, verdict.bound, verdict.value or "-", verdict.state])
    yield ""


def _tables(report: Report) -> Iterator[str]:
    yield from ("## Figures", "")
    for load, group in groupby(report.figures, key=lambda figure: figure.load):
        figures = list(group)
        head, *rows = cells(figures[0].kind, figures)
        yield from (f"### {load}", "", _row(head), "|" + "---|" * len(head), *map(_row, rows), "")


def text(report: Report, charts: list[str]) -> str:
    """The page."""
    about = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    asked = ", ".join(f"{name} {value}" for name, value in report.options.items() if value not in ("", "False", "None"))
    lines = [
        MADE,
        "# Results",
        "",
        INTRO,
        *((AGAIN,) if report.disturbed else ()),
        "",
        f"{report.at}: {about}." + (f" Asked for: {asked}." if asked else ""),
        "",
    ]
    lines += [*_verdicts(report), *(f"![{name.removesuffix('.svg')}]({name})\n" for name in charts), *_tables(report)]
    return "\n".join(lines).rstrip() + "\n"


def write(report: Report, folder: Path) -> list[Path]:
    """Page, charts and JSON; what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = dict(draw(report))
    files = {**charts, PAGE: text(report, list(charts))}
    files[JSON] = msgspec.json.format(msgspec.json.encode(report), indent=1).decode()
    for name, content in files.items():
        (folder / name).write_text(content, "utf-8")
    return [folder / name for name in files]
