"""ninelives migrate. Owns: moving a store between a data directory and PostgreSQL, and what is printed. Refuses to
know: how a store is read or written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ninelives.app.errors import ConfigError
from ninelives.app.settings import Settings, without_password
from ninelives.cli.shared import config_option, json_option, progress_line, settings_from

if TYPE_CHECKING:
    from ninelives.journal.move import Carried, Moved


@click.command(short_help="Move a store from SQLite to PostgreSQL or back.")
@click.option("--from", "source", help="Data directory or postgresql://... (default: the configured store).")
@click.option("--to", "target", help="Data directory or postgresql://... (default: the configured store).")
@config_option
@json_option
def migrate(source: str | None, target: str | None, config: str | None, as_json: bool) -> None:
    """Move a store from SQLite to PostgreSQL or back: runs, idempotency keys, conversations, sessions, permissions and
    the secret.

    Stop all servers on both sides first. The target must be empty. The copy is read back and compared before it is
    committed. Then the old store is disabled, so that no unfinished run is executed twice. Workspaces are files and
    stay where they are."""
    settings = settings_from(config).settings
    ends = [source or _configured(settings), target or _configured(settings)]
    if ends[0] == ends[1]:
        raise click.ClickException("source and target are the same. Name the other side with --from or --to.")
    seen = _Seen()
    moved = asyncio.run(_move(settings, ends[0], ends[1], seen))
    notes = _notes(settings, ends[0], ends[1], seen.lived)
    if as_json:
        click.echo(json.dumps({"checksum": moved.checksum, "counts": moved.counts, "notes": [moved.source, *notes]}))
        return
    click.echo(f"moved {without_password(ends[0])} to {without_password(ends[1])}")
    click.echo("  " + ", ".join(f"{count} {kind}" for kind, count in moved.counts.items() if kind != "secrets"))
    click.echo(f"  checksum of both sides  {moved.checksum}")
    for note in (moved.source, *notes):
        click.echo(f"  {note}")


def _configured(settings: Settings) -> str:
    return settings.store.url if settings.store.shared else str(settings.server.data_path)


async def _move(settings: Settings, source: str, target: str, seen: _Seen) -> Moved:
    from ninelives.app.known_secrets import without_secrets
    from ninelives.app.store import NotPermitted, carrier_of, permitted
    from ninelives.core.errors import Damaged
    from ninelives.journal.move import HalfMoved, InUse, move
    from ninelives.journal.sqlite.load import NewerStore
    from ninelives.journal.values import StoreUnavailable

    try:
        here = carrier_of(settings, source)
        try:
            there = carrier_of(settings, target)
            try:
                with permitted(source, target):
                    return await move(here, there, seen.row)
            finally:
                await there.close()
        finally:
            await here.close()
    except Damaged as error:
        raise click.ClickException(f"nothing was moved: {error}. `ninelives store check` says more.") from error
    except HalfMoved as error:
        raise click.ClickException(without_secrets(str(error), source, target)) from error
    except (InUse, NewerStore, ConfigError, NotPermitted, StoreUnavailable, OSError) as error:
        raise click.ClickException(f"nothing was moved: {without_secrets(str(error), source, target)}") from error


def _notes(settings: Settings, source: str, target: str, lived: set[tuple[str, str]]) -> list[str]:
    """What the user must do next."""
    from ninelives.app.known_secrets import without_secrets
    from ninelives.app.store import is_postgres, settle_workspaces
    from ninelives.journal.values import StoreUnavailable

    if is_postgres(source) or not is_postgres(target):
        return []
    data = Path(source).expanduser()
    notes = []
    try:
        count = asyncio.run(settle_workspaces(settings, data, target, lived))
    except StoreUnavailable as error:
        notes.append(
            f"the home of the workspaces in {data} was not recorded ({without_secrets(str(error), target)}). Start the "
            f"first replica with --data-dir {data}, and use the tools there first"
        )
    else:
        if count:
            notes.append(f"{count} workspaces are in {data}: start a replica there with --data-dir {data}, or share it")
    if (data / "key").exists():
        notes.append(f"the key is in {data / 'key'}: give it to all replicas (API_SERVER_KEY)")
    return notes


class _Seen:
    """Counts the rows that were moved, shows progress, and collects the owners and sessions of runs."""

    def __init__(self) -> None:
        from ninelives.journal.move import CarriedRun

        self._run = CarriedRun
        self._rows = 0
        self._show = progress_line("rows")
        self.lived: set[tuple[str, str]] = set()

    def row(self, row: Carried) -> None:
        """Call for each row."""
        self._rows += 1
        if isinstance(row, self._run):
            self.lived.add((row.owner, row.session))
        self._show(self._rows, None)
