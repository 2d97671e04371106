"""holdfast drill. Owns: its flags, exit codes and where its result goes. Refuses to know: how a server is killed and
judged; that is holdfast/drill."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.drill.own import Own
    from holdfast.drill.report import Facts
    from holdfast.drill.rig import Tally


class CannotDrill(click.ClickException):
    """There is no result: not the exit code of a broken promise."""

    exit_code = 2


@click.command(short_help="Kill your own server again and again: what is lost?")
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file (default: ./holdfast.toml).")
@click.option("--kills", type=click.IntRange(min=0), default=50, show_default=True, help="Kills at random times.")
@click.option("--seed", type=int, help="Draw the same loads and moments again (default: a fresh one, printed).")
@click.option("--in-flight", type=click.IntRange(1, 100), default=4, show_default=True, help="Runs per kill.")
@click.option(
    "--boundaries/--no-boundaries",
    default=None,
    help="Kill before and after every write of a reference run (default: yes; with --real no).",
)
@click.option("--shell", is_flag=True, help="Also use terminal, read_file and write_file, as your sandbox has them.")
@click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="NAME:{JSON}",
    help="Also call this tool of yours, FOR REAL and many times. Repeatable.",
)
@click.option("--real", is_flag=True, help="Ask your own model, not a scripted one; needs --prompt. Costs tokens.")
@click.option("--prompt", "prompts", multiple=True, help="What to ask the real model. Repeatable.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--report", type=click.Path(dir_okay=False), help="Also write a page (Markdown) with the result.")
@click.option("--keep", type=click.Path(file_okay=False), help="Keep the data directory and the logs here.")
def drill(report: str | None, as_json: bool, keep: str | None, **given: Any) -> None:
    """Kill your own server again and again, and see whether it keeps its promises.

    Starts `holdfast serve` with your configuration on a data directory and a port of its own, with a scripted model and
    with probe tools that leave traces; kills it with SIGKILL before and after every write of its journal and at random
    times; restarts it, and compares what clients had received with what the server says afterwards.

    Your tool modules are imported and your MCP servers started, but none of your tools is called unless you name it
    with --call. Such a call is made for real, many times, and is interrupted in the middle: name only tools that may.

    Exit code: 0 all promises were kept, 1 one was broken, 2 the drill could not be made."""
    _check(given)
    given["seed"] = random.SystemRandom().randrange(1 << 32) if given["seed"] is None else given["seed"]
    with _folder(keep) as folder:
        tally, facts = _drill(folder, given)
    _tell(tally, facts, as_json)
    if report:
        from holdfast.drill.report import page

        Path(report).write_text(page(tally, facts), "utf-8")
    raise SystemExit(1 if tally.found else 0)


def _check(given: dict[str, Any]) -> None:
    if given["boundaries"] is None:
        given["boundaries"] = not given["real"]
    if given["real"] != bool(given["prompts"]):
        raise click.UsageError("--real and --prompt go together: a real model needs something to answer.")
    if given["real"] and (given["calls"] or given["shell"]):
        raise click.UsageError("--call and --shell are for the scripted model; a real one decides by itself.")
    if not given["kills"] and not given["boundaries"]:
        raise click.UsageError("--kills 0 with --no-boundaries kills nothing.")


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-drill-") as folder:
            yield Path(folder)
        return
    path = Path(keep).absolute()
    if path.exists() and any(path.iterdir()):
        raise CannotDrill(f"--keep {keep} is not empty: name a directory that is, or that is not there.")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    yield path


def _drill(folder: Path, given: dict[str, Any]) -> tuple[Tally, Facts]:
    from holdfast.cli import settings_from
    from holdfast.drill.own import Impossible, Wish, own_server
    from holdfast.drill.processes import Broken
    from holdfast.drill.program import Extent
    from holdfast.drill.program import drill as run

    wish = Wish(given["config"], given["calls"], given["shell"], given["prompts"])
    prompt = given["prompts"][0] if given["prompts"] else ""
    extent = Extent(given["kills"], given["seed"], given["in_flight"], given["boundaries"], prompt)
    began = time.monotonic()
    try:
        own = own_server(wish, settings_from(given["config"]), folder)
        tally = asyncio.run(run(own, extent, folder))
    except (click.ClickException, Impossible, Broken) as error:
        raise CannotDrill(str(error)) from error
    return tally, _facts(given, own, time.monotonic() - began)


def _facts(given: dict[str, Any], own: Own, seconds: float) -> Facts:
    from datetime import UTC, datetime

    from holdfast.drill.report import Facts

    words = ["holdfast", "drill", "--kills", str(given["kills"]), "--seed", str(given["seed"])]
    words += ["--config", given["config"]] if given["config"] else []
    words += ["--in-flight", str(given["in_flight"])] if given["in_flight"] != 4 else []
    words += ["--no-boundaries"] if not given["boundaries"] and not given["real"] else []
    words += ["--boundaries"] if given["boundaries"] and given["real"] else []
    words += ["--shell"] if given["shell"] else []
    words += ["--real"] if given["real"] else []
    words += [word for call in given["calls"] for word in ("--call", call)]
    words += [word for prompt in given["prompts"] for word in ("--prompt", prompt)]
    return Facts(
        seed=given["seed"],
        command=shlex.join(words),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        model="the configured one" if given["real"] else "scripted",
        changed=own.changed,
        seconds=seconds,
    )


def _tell(tally: Tally, facts: Facts, as_json: bool) -> None:
    from holdfast.drill.report import as_object, table

    click.echo(json.dumps(as_object(tally, facts)) if as_json else table(tally, facts))
