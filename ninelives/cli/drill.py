"""ninelives drill. Owns: its flags, its exit codes and where the result goes. Refuses to know: how a server is killed
and checked (ninelives/drill)."""

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

from ninelives.cli.shared import config_option, json_option, settings_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ninelives.drill.own import Own
    from ninelives.drill.report import Facts
    from ninelives.drill.rig import Tally


class CannotDrill(click.ClickException):
    """The drill has no result. Its exit code differs from that of a broken promise."""

    exit_code = 2


@click.command(short_help="Kill your own server many times, and check that nothing is lost.")
@click.argument("agent", required=False, metavar="[MODULE:OBJECT]")
@config_option
@click.option("--kills", type=click.IntRange(min=0), default=50, show_default=True, help="Kills at random times.")
@click.option("--seed", type=int, help="Repeat the loads and kills of an earlier drill (default: a new seed, printed).")
@click.option("--in-flight", type=click.IntRange(1, 100), default=4, show_default=True, help="Runs per kill.")
@click.option(
    "--boundaries/--no-boundaries",
    default=None,
    help="Also kill before and after every write of a reference run (default: yes; with --real: no).",
)
@click.option("--shell", is_flag=True, help="Also use terminal, read_file and write_file in your sandbox.")
@click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="NAME:{JSON}",
    help="Also call this tool of yours, for real and many times. Repeatable.",
)
@click.option("--real", is_flag=True, help="Use your own model. Needs --prompt and costs tokens.")
@click.option("--prompt", "prompts", multiple=True, help="A prompt for the real model. Repeatable.")
@json_option
@click.option("--report", type=click.Path(dir_okay=False), help="Also write the result to this Markdown file.")
@click.option("--keep", type=click.Path(file_okay=False), help="Keep the data and the logs in this new directory.")
def drill(report: str | None, as_json: bool, keep: str | None, **given: Any) -> None:
    """Kill your own server many times, and check that it keeps its promises.

    Starts `ninelives serve` with your configuration, with its own data directory and port, a scripted model, and probe
    tools that record each call. Kills the server with SIGKILL before and after every write of its journal and at random
    times. Restarts it, and compares what clients received with what the server says afterwards.

    Your tool modules are imported and your MCP servers started. Your tools are called only if you name them with
    --call. These calls are real, happen many times and are interrupted, so name only tools that tolerate this.

    MODULE:OBJECT (or path/file.py:OBJECT) is an agent of your own, which is drilled as it is. It needs --prompt, and it
    asks its own model.

    Exit code: 0 when all promises were kept, 1 when one was broken, 2 when the drill could not run."""
    _check(given)
    given["seed"] = random.SystemRandom().randrange(1 << 32) if given["seed"] is None else given["seed"]
    with _folder(keep) as folder:
        tally, facts = _drill(folder, given)
    _print_result(tally, facts, as_json)
    if report:
        from ninelives.drill.report import page

        Path(report).write_text(page(tally, facts), "utf-8")
    raise SystemExit(1 if tally.found else 0)


def _check(given: dict[str, Any]) -> None:
    if given["boundaries"] is None:
        given["boundaries"] = not given["real"] or bool(given["agent"])
    given["real"] = given["real"] or bool(given["agent"])
    if given["real"] != bool(given["prompts"]):
        raise click.UsageError("--real and an agent of your own need --prompt, and --prompt needs one of them.")
    if given["real"] and (given["calls"] or given["shell"]):
        raise click.UsageError("--call and --shell need the scripted model and the built-in agent.")
    if not given["kills"] and not given["boundaries"]:
        raise click.UsageError("--kills 0 with --no-boundaries kills nothing. Change one of them.")


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="ninelives-drill-") as folder:
            yield Path(folder)
        return
    path = Path(keep).absolute()
    if path.exists() and any(path.iterdir()):
        raise CannotDrill(f"--keep {keep} is not empty. Name an empty or a new directory.")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    yield path


def _drill(folder: Path, given: dict[str, Any]) -> tuple[Tally, Facts]:
    from ninelives.drill.own import Impossible, Wish, own_server
    from ninelives.drill.processes import Broken
    from ninelives.drill.program import Extent
    from ninelives.drill.program import drill as run

    wish = Wish(given["config"], given["calls"], given["shell"], given["prompts"], given["agent"] or "")
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

    from ninelives.drill.report import Facts

    return Facts(
        seed=given["seed"],
        command=shlex.join(_command(given)),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        model=given["agent"] or ("the configured one" if given["real"] else "scripted"),
        changed=own.changed,
        seconds=seconds,
    )


def _command(given: dict[str, Any]) -> list[str]:
    """The command that repeats this drill."""
    usual = not given["real"] or bool(given["agent"])
    flags: list[tuple[bool, list[str]]] = [
        (bool(given["config"]), ["--config", str(given["config"])]),
        (given["in_flight"] != 4, ["--in-flight", str(given["in_flight"])]),
        (given["boundaries"] != usual, ["--boundaries" if given["boundaries"] else "--no-boundaries"]),
        (given["shell"], ["--shell"]),
        (given["real"] and not given["agent"], ["--real"]),
    ]
    words = ["ninelives", "drill", *([given["agent"]] if given["agent"] else [])]
    words += ["--kills", str(given["kills"]), "--seed", str(given["seed"])]
    words += [word for is_given, part in flags if is_given for word in part]
    words += [word for call in given["calls"] for word in ("--call", call)]
    return words + [word for prompt in given["prompts"] for word in ("--prompt", prompt)]


def _print_result(tally: Tally, facts: Facts, as_json: bool) -> None:
    from ninelives.drill.report import as_object, table

    click.echo(json.dumps(as_object(tally, facts)) if as_json else table(tally, facts))
