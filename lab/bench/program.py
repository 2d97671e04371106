"""The benchmark itself: chooses loads and targets, measures them side by side, judges.

All targets are up at once, idle but for the one that is measured, and each load goes through all of them before the
next load begins, so that a machine that changes its mood changes it for all. One benchmark at a time runs on a machine.
Refuses to know: flags, files and how a result is shown."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path

from lab.bench import client, cost, counters, generator, history, idle, length, machine, readers, targets
from lab.bench.figures import BEFORE, CONTROL, DIRECT, FLOOR, SUPERVISED, Figure, Report, Subject, disturbance
from lab.bench.judge import judge, mark_void
from lab.bench.loads import Load, plan
from lab.bench.tables import table
from lab.bench.targets import CONTROL_BURN_US, DEFAULT, Ground, Peer, Target
from lab.bench.wire import Unexpected

Measure = Callable[[Ground, Target, Load], Figure]
MEASURES: dict[str, Measure] = {
    "tiny": client.measure,
    "first": client.measure,
    "flood": client.measure,
    "paced": client.measure,
    "control": client.measure,
    "readers": readers.measure,
    "length": length.measure,
    "history": history.measure,
    "resend": history.measure_resent,
    "idle": idle.measure,
}


CALM = 0.01
"""A round that was disturbed less than this is not taken again."""


class Impossible(Exception):
    """There can be no result; the text says why."""


@dataclass(frozen=True)
class Wish:
    """What was asked for. `only` are names of loads and targets; a name's part before its dash means all of that
    kind."""

    only: tuple[str, ...] = ()
    quick: bool = False
    seconds: float | None = None
    peers: tuple[Peer, ...] = ()
    control: bool = False
    command: str = ""
    before: str = ""
    supervised: bool = False
    upstream_port: int = 0
    beside: bool = False
    rounds: int = 1
    """How often a load is taken at most, while the machine disturbs it."""
    first: bool = False
    """Before all other work on the machine, where we may."""
    compilers: tuple[str, ...] = generator.COMPILERS
    say: Callable[[str], None] = field(default=lambda _: None)


def _hits(words: tuple[str, ...], names: list[str]) -> list[str]:
    """Those that a word names, whole or by the part before the dash; all where no word names any of them."""
    hits = [name for name in names if {name, name.partition("-")[0]} & set(words)]
    return hits or names


def choose(wish: Wish) -> tuple[list[Load], list[str]]:
    """The loads, and the targets that take part in any of them, direct first."""
    loads = plan(wish.quick, wish.seconds, CONTROL_BURN_US)
    more = [*(BEFORE if wish.before else ()), *(SUPERVISED if wish.supervised else ())]
    names = [*DEFAULT, CONTROL, *more, *(peer.name for peer in wish.peers)]
    load_names = [load.name for load in loads]
    known = {part for name in [*load_names, *names] for part in (name, name.partition("-")[0])}
    for word in wish.only:
        if word not in known:
            raise Impossible(f"--only: no load or target is called {word}; see --list.")
    picked = set(_hits(wish.only, load_names))
    chosen = [load for load in loads if load.name in picked]
    wanted = set(_hits(wish.only, [name for name in names if name != CONTROL])) | {DIRECT}
    if wish.control or any(load.kind == "control" for load in chosen):
        wanted |= {CONTROL, FLOOR}
    taking_part = [name for name in names if any(_goes(load, name, wish.control) for load in chosen)]
    return chosen, [name for name in taking_part if name in wanted]


def _goes(load: Load, name: str, everywhere: bool) -> bool:
    """Whether this target takes part in this load."""
    if name == CONTROL:
        return load.kind == "control" or (everywhere and not load.only)
    return not load.only or name in load.only


@contextlib.contextmanager
def alone(wish: Wish) -> Iterator[None]:
    """One benchmark at a time on this machine: two would measure each other."""
    with (Path(tempfile.gettempdir()) / f"ninelives-bench-{os.getuid()}.lock").open("a") as lock:
        if not wish.beside:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                wish.say("another benchmark is at work on this machine: waiting for its end (--beside-others does not)")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _measured(on: Ground, target: Target, load: Load) -> Figure:
    """A figure, void where the target failed: the others are measured all the same."""
    try:
        return MEASURES[load.kind](on, target, load)
    except (Unexpected, OSError, HTTPException, machine.NotStarted) as error:
        why = str(error) or type(error).__name__
        return Figure(load.name, load.kind, target.name, {}, 1, why[:300], void="it failed")


def _through(on: Ground, started: list[Target], load: Load, everywhere: bool) -> list[Figure]:
    """One load through all targets that take part in it."""
    figures: list[Figure] = []
    for target in started:
        if _goes(load, target.name, everywhere):
            cost.rested([pid for one in started for pid in one.pids])
            figures.append(_measured(on, target, load))
            direct = next((figure for figure in figures if figure.target == DIRECT), None)
            mark_void(figures[-1], direct)
    return figures


def calmest(take: Callable[[], list[Figure]], most: int) -> tuple[list[Figure], list[Figure]]:
    """The round of a load in which the machine was calmest, whatever it says, and the figures of the others."""
    rounds = [take()]
    while len(rounds) < most and disturbance(rounds[-1]) > CALM:
        rounds.append(take())
    best = min(rounds, key=disturbance)
    return best, [figure for other in rounds if other is not best for figure in other]


def _where(cores: machine.Cores) -> str:
    if cores.shared:
        return "only one core: server and load share it, so no figure here says what the server can do"
    return f"server on core {cores.server}, upstream and clients on {', '.join(map(str, cores.load))}"


def _ready(wish: Wish) -> machine.Cores:
    """Take the load's cores, all the open files that we may have and, if asked, the first place, for our children
    too."""
    if not hasattr(os, "sched_setaffinity"):
        raise Impossible("The benchmark needs Linux: it pins processes to cores and reads their cost from /proc.")
    cores = machine.Cores.pick()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.sched_setaffinity(0, cores.load)
    if wish.first:
        try:
            machine.go_first(os.getpid())
        except PermissionError as error:
            raise Impossible("--first needs the right to raise a priority (root, or CAP_SYS_NICE).") from error
    return cores


def run(wish: Wish, out: Path) -> Report:
    """Measure; the folder takes logs, the generator and, while it lasts, the store."""
    loads, names = choose(wish)
    cores, made = _ready(wish), generator.find(out, wish.compilers)
    counted = counters.why_not()
    for line in (_where(cores), made.warning, f"instructions are not counted: {counted}" if counted else ""):
        if line:
            wish.say(line)
    with alone(wish), targets.scratch(out) as data, machine.Fleet(out, made.wrap, wish.first) as fleet:
        about = machine.describe(out) | {"instructions": counted or "counted", "generator": made.warning or "load.c"}
        on = targets.ground(fleet, cores, made, wish.command, data, wish.upstream_port)
        on.peers = {peer.name: peer for peer in wish.peers}
        on.before = shlex.split(wish.before)
        started, missing = targets.start(on, names)
        report = Report(
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            machine=about,
            cores={"server": str(cores.server), "load": ",".join(map(str, cores.load))},
            options={
                **targets.SETTINGS,
                "quick": str(wish.quick),
                "only": ",".join(wish.only),
                "seconds": str(wish.seconds),
                "first": str(wish.first),
                "rounds": str(wish.rounds) if wish.rounds > 1 else "",
            },
            targets=[Subject(target.name, target.start_s, target.rss_idle_mb) for target in started],
            missing=missing,
            figures=[],
            verdicts=[],
        )
        for name, reason in missing.items():
            wish.say(f"{name} is not measured: {reason}")
        for target in started:
            client.warm_up(on, target)
        for load in loads:
            most = wish.rounds if MEASURES[load.kind] is client.measure else 1
            figures, others = calmest(partial(_through, on, started, load, wish.control), most)
            report.figures += figures
            report.disturbed += others
            if figures:
                wish.say(f"\n{table(load, figures)}")
    report.verdicts = judge(report)
    return report
