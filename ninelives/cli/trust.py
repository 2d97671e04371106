"""ninelives trust. Owns: trusting the configuration file of a folder, and what is printed. Refuses to know: how the
list is kept."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ninelives.app.config_file import FILE_NAME, TrustList, digest_of, read_config, trust_place
from ninelives.app.errors import ConfigError
from ninelives.app.settings import without_password
from ninelives.cli.shared import echo_text, json_option

_TELLING = ("model.url", "server.host", "store.url", "tools.modules", "tools.sandbox", "tools.approval")
"""Options that decide what a server runs and whom it talks to."""

_TOLD = ("command", "args", "url", "model_url", "approval")


@click.command(short_help="Trust the configuration file of a folder.")
@click.argument("file", type=click.Path(path_type=Path), default=FILE_NAME)
@click.option("--list", "listed", is_flag=True, help="List the trusted files.")
@click.option("--remove", is_flag=True, help="Trust FILE no longer.")
@json_option
def trust(file: Path, listed: bool, remove: bool, as_json: bool) -> None:
    """Trust FILE (default: ./ninelives.toml) with its present content.

    A server that is started in a folder uses the ninelives.toml there only if you trusted it: the file can run commands
    and choose where keys are sent. A file that changed must be trusted again. A file named with --config or
    NINELIVES_CONFIG needs no trust. Modules and programs that the file names are not covered."""
    known = TrustList(os.environ)
    try:
        if listed:
            _print_list(known, as_json)
        elif remove:
            _print_removed(known, file, as_json)
        else:
            _print_added(known, file, as_json)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _print_list(known: TrustList, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(known.all()))
        return
    for place, digest in known.all().items():
        echo_text(f"{digest[:16]}  {place}")
    if not known.all():
        click.echo("no trusted files")


def _print_removed(known: TrustList, file: Path, as_json: bool) -> None:
    if not known.remove(file):
        raise click.ClickException(f"{file} was not trusted. `ninelives trust --list` shows what is.")
    click.echo(json.dumps({"removed": str(file)}) if as_json else f"{file} is not trusted any more")


def _print_added(known: TrustList, file: Path, as_json: bool) -> None:
    if file.name != FILE_NAME or not file.is_file():
        raise click.ClickException(f"{file} is no file {FILE_NAME}. Other files are named with --config.")
    content = read_config(file)
    place, digest = trust_place(file), digest_of(content)
    known.add(file, content)
    if as_json:
        click.echo(json.dumps({"trusted": place, "sha256": digest}))
        return
    echo_text(f"trusted {place} (sha256 {digest[:16]})")
    for line in _effects(content):
        echo_text(f"  {line}")


def _effects(content: bytes) -> Iterator[str]:
    """What the file runs, and whom it talks to."""
    try:
        document: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:
        yield f"it cannot be read: {error}"
        return
    for key in _TELLING:
        section, name = key.split(".")
        if name in (table := _table(document, section)):
            yield f"{key} = {without_password(str(table[name]))}"
    for kind in ("mcp", "profiles"):
        for name in _table(document, kind):
            table = _table(document[kind], name)
            told = {key: table[key] for key in _TOLD if key in table}
            yield f"[{kind}.{name}] {told}"


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}
