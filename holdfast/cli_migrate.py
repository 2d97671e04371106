"""holdfast migrate. Owns: the command that moves a store between a data directory and PostgreSQL, and what it prints.
Refuses to know: how a store is read or written."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.config import Settings, without_password
from holdfast.config_keys import ConfigError

if TYPE_CHECKING:
    from holdfast.journal.base_carry import Carried
    from holdfast.journal.moving import Moved


@click.command(short_help="Move a store from SQLite to PostgreSQL or back.")
@click.option("--from", "source", help="Data directory or postgresql://... (default: the configured store).")
@click.option("--to", "target", help="Data directory or postgresql://... (default: the configured store).")
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def migrate(source: str | None, target: str | None, config: str | None, as_json: bool) -> None:
    """Move a store from SQLite to PostgreSQL or back: every run with all its records, keys, conversations, sessions,
    permissions and the secret.

    No server may use either side, and the target must be empty. All of it is read back and compared before anything is
    kept; then the old store is put out of use, so that no unfinished run is carried out twice. Workspaces are files
    and stay where they are."""
    from holdfast.cli import settings_from

    settings = settings_from(config).settings
    ends = [source or _configured(settings), target or _configured(settings)]
    if ends[0] == ends[1]:
        raise click.ClickException("a store cannot move to where it is: name the other side with --from or --to.")
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
    from holdfast.assemble_store import NotPermitted, carrier_of, permitted, without_secrets
    from holdfast.core.errors import Damaged
    from holdfast.journal.base import StoreUnavailable
    from holdfast.journal.base_carry import HalfMoved, InUse
    from holdfast.journal.moving import move
    from holdfast.journal.sqlite_load import NewerStore

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
        raise click.ClickException(f"nothing was moved: {error}. `holdfast store check` says more.") from error
    except HalfMoved as error:
        raise click.ClickException(without_secrets(str(error), source, target)) from error
    except (InUse, NewerStore, ConfigError, NotPermitted, StoreUnavailable, OSError) as error:
        raise click.ClickException(f"nothing was moved: {without_secrets(str(error), source, target)}") from error


def _notes(settings: Settings, source: str, target: str, lived: set[tuple[str, str]]) -> list[str]:
    """What is left to be done."""
    from holdfast.assemble_store import is_postgres, settle_workspaces, without_secrets
    from holdfast.journal.base import StoreUnavailable

    if is_postgres(source) or not is_postgres(target):
        return []
    data = Path(source).expanduser()
    notes = []
    try:
        count = asyncio.run(settle_workspaces(settings, data, target, lived))
    except StoreUnavailable as error:
        notes.append(
            f"that workspaces are at home in {data} could not be noted ({without_secrets(str(error), target)}): serve "
            f"with --data-dir {data} before any other replica, and let their tools be used there first"
        )
    else:
        if count:
            notes.append(f"{count} workspaces are at home in {data}: serve them with --data-dir {data}, or share it")
    if (data / "key").exists():
        notes.append(f"the key is in {data / 'key'}: give it to all replicas (API_SERVER_KEY)")
    return notes


class _Seen:
    """What went by: a line that says how far it is, where somebody looks, and whose sessions there were."""

    def __init__(self) -> None:
        from holdfast.journal.base_carry import Run

        self._run = Run
        self._rows = 0
        self._told_at = 0.0
        self.lived: set[tuple[str, str]] = set()

    def row(self, row: Carried) -> None:
        """The next row."""
        self._rows += 1
        if isinstance(row, self._run):
            self.lived.add((row.owner, row.session))
        if sys.stderr.isatty() and time.monotonic() - self._told_at > 0.1:
            self._told_at = time.monotonic()
            click.echo(f"\r  {self._rows} rows", nl=False, err=True)
