"""ninelives import-hermes. Owns: the flags, the plan and the report. Refuses to know: what the files of hermes-agent
look like, and how a store is written."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from ninelives.app.config_file import FILE_NAME, config_folder
from ninelives.cli.shared import echo_text, json_option, settings_from

if TYPE_CHECKING:
    from ninelives.app.hermes.configuration import NewConfig
    from ninelives.app.hermes.reading import HermesData
    from ninelives.app.hermes.writing import ImportReport
    from ninelives.app.settings import Settings

SHOWN = 20
"""How many lines of a list are printed. --json has all."""


@click.command("import-hermes", short_help="Import responses, sessions and settings of hermes-agent.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--apply", is_flag=True, help="Import. Without it, only the plan is printed.")
@click.option("--owner", default="default", show_default=True, help="Owner of what is imported.")
@click.option("--data-dir", help="Data directory of the store (default: the configured store).")
@click.option("--write-config", type=click.Path(path_type=Path), help="Configuration file to create.")
@json_option
def import_hermes(
    directory: Path, apply: bool, owner: str, data_dir: str | None, write_config: Path | None, as_json: bool
) -> None:
    """Import a data directory of hermes-agent, such as ~/.hermes: responses and conversations (response_store.db),
    sessions (state.db), settings (config.yaml, .env).

    Without --apply, nothing is changed. An import can be repeated: what is there already stays as it is. Stop the
    server first, if its store is SQLite. A file with settings is only created, never replaced."""
    from ninelives.app.hermes.configuration import as_toml, converted
    from ninelives.app.hermes.reading import ImportRefused, read_hermes

    named = {"server.data_dir": data_dir, "store.url": "sqlite"} if data_dir else {}
    settings = settings_from(None, **named).settings
    try:
        data = read_hermes(directory.expanduser())
    except ImportRefused as error:
        raise click.ClickException(f"nothing was imported: {error}.") from error
    report = asyncio.run(_import(settings, owner, data, apply))
    new = converted(data)
    place = write_config or config_folder(os.environ) / FILE_NAME
    wrote = _write_config(place, as_toml(new), apply) if new.options or new.mcp else ""
    if as_json:
        click.echo(json.dumps(_as_json(report, new, wrote, apply)))
    else:
        _print(report, new, wrote, apply)


async def _import(settings: Settings, owner: str, data: HermesData, apply: bool) -> ImportReport:
    from ninelives.app.errors import ConfigError, StartError
    from ninelives.core.errors import Damaged
    from ninelives.journal.sqlite.lock import DirectoryHeld
    from ninelives.journal.values import NewerStore, StoreUnavailable

    try:
        if apply or settings.store.shared:
            settings.server.data_path.mkdir(parents=True, exist_ok=True, mode=0o700)
            return await _with_store(settings, owner, data, apply)
        return await _planned(settings, owner, data)
    except DirectoryHeld as error:
        raise click.ClickException(f"nothing was imported: {error} Stop the server first.") from error
    except (ConfigError, StartError, Damaged, NewerStore, StoreUnavailable, OSError) as error:
        raise click.ClickException(f"the import failed: {error}. Run it again: what was imported stays.") from error


async def _with_store(settings: Settings, owner: str, data: HermesData, apply: bool) -> ImportReport:
    from ninelives.app.hermes.writing import HermesImport
    from ninelives.app.store import ProcessRole, open_store
    from ninelives.observe.log import Log

    opened = await open_store(settings, ProcessRole(serves=False, name="import-hermes"), Log(str, None))
    try:
        return await HermesImport(opened.store, owner, opened.holder, data, apply=apply).run()
    finally:
        await opened.close()


async def _planned(settings: Settings, owner: str, data: HermesData) -> ImportReport:
    """The plan for a SQLite store. It is made with a copy, so that a server may run and an old store stays old."""
    from ninelives.app.hermes.writing import HermesImport
    from ninelives.journal.memory.store import MemoryStore
    from ninelives.journal.sqlite.load import database_in
    from ninelives.journal.sqlite.maintenance import backup

    source = settings.server.data_path
    if not database_in(source).exists():
        return await HermesImport(MemoryStore(lambda: 0.0), owner, "import", data, apply=False).run()
    with tempfile.TemporaryDirectory(prefix="ninelives-import-") as folder:
        copy = Path(folder) / "data"
        await asyncio.to_thread(backup, source, copy)
        server = replace(settings.server, data_dir=str(copy))
        return await _with_store(replace(settings, server=server), owner, data, apply=False)


def _write_config(place: Path, text: str, apply: bool) -> str:
    """Create the configuration file. Returns what became of it."""
    if place.exists():
        same = place.read_bytes() == text.encode()
        return (
            f"{place} has these settings already" if same else f"{place} is there and stays as it is: compare the two"
        )
    if not apply:
        return f"{place} would be created"
    place.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return f"{place} was created"


def _as_json(report: ImportReport, new: NewConfig, wrote: str, apply: bool) -> dict[str, object]:
    counts = {name: getattr(report, name) for name in ("responses", "conversations", "sessions", "present")}
    lists = {"changed": report.changed, "left": [*report.left, *new.left]}
    return {"applied": apply, **counts, "options": sorted(new.options), "config": wrote, **lists}


def _print(report: ImportReport, new: NewConfig, wrote: str, apply: bool) -> None:
    from ninelives.app.hermes.configuration import SECRETS

    done = "imported" if apply else "would be imported"
    click.echo(
        f"{done}: {report.responses} responses, {report.conversations} conversations, {report.sessions} sessions"
    )
    click.echo(f"there already: {report.present}")
    for option, value in new.options.items():
        echo_text(f"  {option} = {'(a secret)' if option in SECRETS else value}")
    for name in new.mcp:
        echo_text(f"  [mcp.{name}]")
    if wrote:
        echo_text(wrote)
    for title, lines in (("changed", report.changed), ("left", [*report.left, *new.left])):
        for line in lines[:SHOWN]:
            echo_text(f"{title}: {line}")
        if len(lines) > SHOWN:
            click.echo(f"{title}: {len(lines) - SHOWN} more (--json has all)")
    if not apply:
        click.echo("Nothing was changed. Run it again with --apply.")
