"""The command: `python -m bench`. Chooses loads and targets, measures them side by side, reports.

All targets are up at once, idle but for the one that is measured, and each load goes through all of them
before the next load begins, so that a machine that changes its mood changes it for all.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

from bench import loads, machine, report, targets


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Holdfast beside direct and floor.")
    parser.add_argument("--quick", action="store_true", help="about 20 s: fewer loads, shorter")
    parser.add_argument("--only", default="", help="loads and targets, with commas; paced means all paced-*")
    parser.add_argument("--seconds", type=float, help="length of each paced load (default 8, quick 2)")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    parser.add_argument(
        "--compare", type=Path, metavar="OLD.json", help="exit 1 when a cost is over 1.3x of that report"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 unless every requirement is measured and met")
    parser.add_argument("--control", action="store_true", help="add a floor that wastes 50 µs per event")
    parser.add_argument("--holdfast", default="", metavar="CMD", help="the command before `serve` (another checkout)")
    parser.add_argument("--list", action="store_true", help="list loads and targets, measure nothing")
    return parser.parse_args(argv)


def chosen(only: str, names: list[str]) -> list[str]:
    """Those that a word of `only` names whole or by its part before a dash; all when it names none of them."""
    words = {word.strip() for word in only.split(",") if word.strip()}
    hits = [name for name in names if words & {name, name.partition("-")[0]}]
    return hits or names


def choose(args: argparse.Namespace) -> tuple[list[loads.Load], list[str]]:
    everything = loads.plan(args.quick, args.seconds)
    possible = list(targets.ALL if args.control else targets.DEFAULT)
    load_names = [load.name for load in everything]
    kinds = {name.partition("-")[0] for name in (*load_names, *possible)}
    for word in filter(None, (word.strip() for word in args.only.split(","))):
        if word not in kinds | {*load_names, *possible}:
            raise SystemExit(f"--only: no load or target is called {word}; see --list")
    picked = chosen(args.only, load_names)
    names = chosen(args.only, possible)
    return [load for load in everything if load.name in picked], ["direct", *(n for n in names if n != "direct")]


def run(plan: list[loads.Load], names: list[str], cores: machine.Cores, args: argparse.Namespace) -> report.Report:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = machine.describe()
    options = {"quick": str(args.quick), "only": args.only, "seconds": str(args.seconds), "holdfast": args.holdfast}
    with targets.scratch() as data_dir, machine.Fleet() as fleet:
        on = targets.ground(fleet, cores, args.holdfast, data_dir)
        started, missing = targets.start(on, names)
        result = report.Report(
            at, about, {"server": cores.server, "load": cores.load}, options, started, missing, [], []
        )
        for name, reason in missing.items():
            print(f"{name} is not measured: {reason}")
        for target in started:
            loads.warm_up(on, target)
            if target.pid:
                print(f"{target.name}: up in {target.start_s:.2f} s, {target.rss_idle_mb:.0f} MB idle")
        for load in plan:
            figures: list[loads.Figure] = []
            for target in started:
                figures.append(loads.measure(on, target, load))
                report.mark_void(figures[-1], figures[0])
            result.figures += figures
            print(f"\n{report.table(load, figures)}", flush=True)
    result.verdicts = report.judge(result)
    return result


def write(result: report.Report, extra: Path | None) -> None:
    data = msgspec.json.format(msgspec.json.encode(result), indent=1)
    own = machine.OUT / f"bench-{result.at.replace(':', '')}.json"
    for path in filter(None, (own, machine.OUT / "latest.json", extra)):
        path.write_bytes(data)
    print(f"\nwritten to {own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own}")


def conclude(result: report.Report, old: report.Report | None, check: bool) -> int:
    """Print the verdicts and the comparison; the exit code says whether either is bad and was asked for."""
    print()
    for verdict in result.verdicts:
        print(f"{verdict.state:>12}  {verdict.says}{': ' + verdict.value if verdict.value else ''}")
    bad = check and any(verdict.state != "ok" for verdict in result.verdicts)
    if old is not None:
        flags = list(report.compare(result, old))
        print(f"\nagainst {old.at} ({old.machine.get('commit')}): {len(flags)} costs over {report.FLAG_RATIO}x")
        for text, ours in flags:
            print(f"  {'REGRESSION' if ours else 'machine?  '}  {text}")
        bad = bad or any(ours for _, ours in flags)
    return 1 if bad else 0


def main(argv: list[str]) -> int:
    args = parse(argv)
    plan, names = choose(args)
    if args.list:
        print("\n".join(f"{load.name:12} {load.says}" for load in plan))
        print("targets:", ", ".join(names))
        return 0
    old = msgspec.json.decode(args.compare.read_bytes(), type=report.Report) if args.compare else None
    machine.build_load()
    cores = machine.Cores.pick()
    if cores.shared:
        print("only one core: server and load share it, so no figure here says what the server can do")
    else:
        print(f"server on core {cores.server}, upstream and clients on core {cores.load}")
    os.sched_setaffinity(0, {cores.load})
    try:
        result = run(plan, names, cores, args)
    except KeyboardInterrupt:
        print("\ninterrupted: all that was started has been ended", file=sys.stderr)
        return 130
    write(result, args.json)
    return conclude(result, old, args.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
