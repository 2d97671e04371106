"""What several commands share. Owns: reading settings for a command, and options that several
commands have. Refuses to know: any one command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ninelives.app.errors import ConfigError
from ninelives.app.settings import LoadedSettings, load
from ninelives.observe.log import printable

Answer = dict[str, Any]
_KEPT = "\n\t\u00a0\u202f\u200c\u200d"
"""Line breaks, spaces and joiners, which are part of ordinary text."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
BAR_S = 0.1
"""Time between two updates of a progress line."""


class HelpfulGroup(click.Group):
    """A group that names the command which was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group.resolve_command."""
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches  # nearly no command is misspelt

            near = get_close_matches(args[0], known, 1)
            meant = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
            ctx.fail(f"No such command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)


def settings_from(config: str | None, quiet: bool = False, /, **flags: object) -> LoadedSettings:
    """Settings of the flags, the environment and the file. Raises ClickException."""
    try:
        loaded = load(Path(config) if config else None, os.environ, flags)
    except ConfigError as error:
        raise click.ClickException(printable(str(error))) from error
    if loaded.ignored and not quiet:
        _warn_once(f"ninelives: {printable(loaded.ignored)}")
    return loaded


def _warn_once(text: str) -> None:
    """A warning on stderr, once per command: a command may read the settings several times."""
    context = click.get_current_context(silent=True)
    told: set[str] = context.find_root().meta.setdefault("ninelives.told", set()) if context else set()
    if text not in told:
        told.add(text)
        click.echo(text, err=True)


def config_option(command: Any) -> Any:
    """--config."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False),
        help="Configuration file (default: ./ninelives.toml if it is trusted, then ~/.config/ninelives).",
    )(command)


def json_option(command: Any) -> Any:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def age_of(at: float) -> str:
    """How long ago that was, in one unit."""
    return span_of(time.time() - at)


def span_of(seconds: float) -> str:
    """A time in one unit."""
    whole = max(0, int(seconds))
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), (1, "s"))
    return f"{whole // size}{unit}"


def progress_line(what: str) -> Callable[[int, int | None], None]:
    """A function that shows progress on one line of a terminal: (done, total). It prints nothing elsewhere."""
    shown_at = [0.0]

    def show(done: int, total: int | None) -> None:
        if sys.stderr.isatty() and time.monotonic() - shown_at[0] > BAR_S:
            shown_at[0] = time.monotonic()
            of = "" if total is None else f" of {total}"
            click.echo(f"\r  {done}{of} {what}", nl=False, err=True)

    return show


def harmless(text: str) -> str:
    """A text of a server, a model or a file that cannot control the terminal."""
    return printable(text, keep=_KEPT)


def echo_text(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print a text of a server, a model or a file. It cannot control the terminal."""
    click.echo(harmless(text), nl=nl, err=err)


def print_fields(answer: Answer, indent: str = "") -> None:
    """A JSON object as lines of text."""
    for name, value in answer.items():
        if isinstance(value, dict):
            echo_text(f"{indent}{name}:")
            print_fields(value, indent + "  ")
        elif name in ("created_at", "updated_at") and isinstance(value, float):
            echo_text(f"{indent}{name}: {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(value))}")
        else:
            echo_text(f"{indent}{name}: {value}")
