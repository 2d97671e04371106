"""make bench. Owns: its flags, exit codes and where its result goes. Refuses to know: how anything is measured, judged
or drawn; the other files of this folder do that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.bench.figures import Report
    from lab.bench.program import Wish


class CannotBench(click.ClickException):
    """There is no result: not the exit code of a promise that was missed."""

    exit_code = 2


@click.command(short_help="Measure this server beside a proxy without a store.")
@click.option("--quick", is_flag=True, help="About a minute: fewer loads, shorter.")
@click.option("--only", default="", metavar="A,B", help="Loads and targets; paced means all paced-*. See --list.")
@click.option("--seconds", type=click.FloatRange(0.2, 300), help="Length of each paced load (default 5, quick 1.5).")
@click.option("--peer", "peers", multiple=True, metavar="NAME=URL,KEY", help="Also measure this server. Repeatable.")
@click.option("--upstream-port", type=int, default=0, help="Port of the upstream, so that a peer can be pointed at it.")
@click.option("--check", is_flag=True, help="Judge every promise; exit 1 unless all are measured and kept.")
@click.option("--compare", type=click.Path(exists=True, dir_okay=False), help="Earlier JSON; exit 1 when a cost rose.")
@click.option("--control", is_flag=True, help="Take the negative control (50 µs planted) through all loads.")
@click.option("--report", type=click.Path(file_okay=False), help="Also write page, plots and JSON to this folder.")
@click.option("--json", "as_json", type=click.Path(dir_okay=False), help="Also write the JSON to this file.")
@click.option(
    "--out", type=click.Path(file_okay=False), default="bench-out", show_default=True, help="Folder of results."
)
@click.option("--server", "command", default="", metavar="CMD", help="Measure CMD serve (another checkout).")
@click.option("--before", default="", metavar="CMD", help="Measure CMD serve (an earlier release) in the same run.")
@click.option("--supervised", is_flag=True, help="Also measure it under its supervisor, with what that can keep.")
@click.option("--beside-others", "beside", is_flag=True, help="Do not wait for another benchmark on this machine.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help="Take a load up to N times while the machine disturbs it; the calmest counts.",
)
@click.option("--first", is_flag=True, help="Before other work on a shared machine (needs root).")
@click.option("--list", "listed", is_flag=True, help="List loads and targets, measure nothing.")
def bench(**given: Any) -> None:
    """Measure this server: beside the upstream itself and beside a proxy without a store.

    Starts an upstream that speaks at a given pace, a minimal pass-through proxy (the floor) and `ninelives serve` on a
    data directory of its own, the server under test on one core, all else on the others, and takes each load through
    all of them in turn. CPU time is that of the server's process tree. Trust the ratios within one run: absolute
    numbers move by 20-40 % between runs and machines.

    A peer is any OpenAI-compatible server, given as NAME=http://HOST:PORT/v1,KEY[,MODEL]. Point it at the upstream with
    --upstream-port, and start it on the first core (taskset -c 0).

    Exit code: 0 well, 1 a promise was missed (--check) or a cost rose (--compare), 2 there is no result."""
    wish = _wish(given)
    if given["listed"]:
        _list(wish)
        return
    before = _earlier(Path(given["compare"])) if given["compare"] else None
    report = _run(wish, Path(given["out"]))
    paths = [Path(given["as_json"])] if given["as_json"] else []
    _write(report, Path(given["out"]), paths, Path(given["report"]) if given["report"] else None)
    missed = _judged(report, everything=given["check"])
    rose = _compared(report, before) if before else False
    raise SystemExit(1 if rose or (given["check"] and missed) else 0)


def _wish(given: dict[str, Any]) -> Wish:
    from lab.bench.program import Wish
    from lab.bench.targets import Peer

    try:
        peers = tuple(map(Peer.parse, given["peers"]))
    except ValueError as error:
        raise click.UsageError(f"--peer {error}") from error
    return Wish(
        only=tuple(word.strip() for word in given["only"].split(",") if word.strip()),
        quick=given["quick"],
        seconds=given["seconds"],
        peers=peers,
        control=given["control"],
        command=given["command"],
        before=given["before"],
        supervised=given["supervised"],
        upstream_port=given["upstream_port"],
        beside=given["beside"],
        first=given["first"],
        rounds=given["rounds"],
        say=click.echo,
    )


def _list(wish: Wish) -> None:
    from lab.bench.program import Impossible, choose

    try:
        loads, names = choose(wish)
    except Impossible as error:
        raise CannotBench(str(error)) from error
    for load in loads:
        click.echo(f"{load.name:14} {load.says}")
    click.echo(f"targets        {', '.join(names)}")


def _run(wish: Wish, out: Path) -> Report:
    from lab.bench.machine import NotStarted
    from lab.bench.program import Impossible, run

    out.mkdir(parents=True, exist_ok=True)
    try:
        return run(wish, out.absolute())
    except (Impossible, NotStarted) as error:
        raise CannotBench(str(error)) from error


def _write(report: Report, out: Path, paths: list[Path], page: Path | None) -> None:
    import msgspec

    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    own = out / f"bench-{report.at.replace(':', '')}.json"
    for path in [own, out / "latest.json", *paths]:
        path.write_bytes(data)
    click.echo(f"\nwritten to {own}")
    if page is not None:
        from lab.bench.page import write

        click.echo("\n".join(f"written to {path}" for path in write(report, page)))


def _judged(report: Report, *, everything: bool) -> bool:
    """Print the verdicts, without --check only those that something was measured for; whether one is not well."""
    shown = [verdict for verdict in report.verdicts if everything or verdict.state != "not measured"]
    click.echo()
    for verdict in shown:
        value = verdict.value or "-"
        click.echo(f"{verdict.state:>12}  {verdict.line}  {verdict.says}: {value}  (bound {verdict.bound})")
    return any(verdict.state != "ok" for verdict in report.verdicts)


def _earlier(path: Path) -> Report:
    """The report to compare with, read before minutes are spent on another."""
    import msgspec

    from lab.bench.figures import Report

    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CannotBench(f"{path} is not a report that this version of the benchmark can read: {error}") from error


def _compared(report: Report, old: Report) -> bool:
    """Print what rose since an earlier report; whether one of them is ours."""
    from lab.bench import compare

    rises = list(compare.compare(report, old))
    click.echo(f"\nagainst {old.at} ({old.machine.get('commit')}): {len(rises)} costs rose over {compare.RISE}x")
    if report.machine["instructions"] != "counted":
        click.echo(f"  instructions were not compared: {report.machine['instructions']}")
    for rise in rises:
        click.echo(f"  {'REGRESSION' if rise.ours else 'machine?  '}  {rise.says}")
    return any(rise.ours for rise in rises)
