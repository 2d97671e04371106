"""holdfast migrate. Owns: the command that moves a store between a data directory and PostgreSQL, and what it prints.
Refuses to know: how a store is read or written."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from holdfast.config import Settings, without_password
from holdfast.config_keys import ConfigError

if TYPE_CHECKING:
    from holdfast.journal.moving import Moved


@click.command()
@click.option("--from", "source", help="Data directory or postgresql://... (default: the configured store).")
@click.option("--to", "target", help="Data directory or postgresql://... (default: the configured store).")
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def migrate(source: str | None, target: str | None, config: str | None, as_json: bool) -> None:
    """Move a store from SQLite to PostgreSQL or back: every run with all its records, keys, conversations, sessions,
    permissions and the secret.

    No server may use either side, and the target must be empty. All of it is read back and compared before anything is
    kept; then the old store is put out of use, so that no unfinished run is carried out twice. Workspaces are files: they
    stay where they are."""
    from holdfast.cli import settings_from

    settings = settings_from(config).settings
    ends = [source or _configured(settings), target or _configured(settings)]
    if ends[0] == ends[1]:
        raise click.ClickException("a store cannot move to where it is: name the other side with --from or --to.")
    moved = asyncio.run(_move(settings, ends[0], ends[1]))
    if as_json:
        click.echo(json.dumps({"checksum": moved.checksum, "counts": moved.counts, "source": moved.source}))
        return
    click.echo(f"moved {without_password(ends[0])} to {without_password(ends[1])}")
    click.echo("  " + ", ".join(f"{count} {kind}" for kind, count in moved.counts.items() if kind != "secrets"))
    click.echo(f"  checksum of both sides  {moved.checksum}")
    click.echo(f"  {moved.source}")


def _configured(settings: Settings) -> str:
    return settings.store.url if settings.store.shared else str(settings.server.data_path)


async def _move(settings: Settings, source: str, target: str) -> Moved:
    from holdfast.assemble_store import StoreDown, carrier_of
    from holdfast.core.errors import Damaged
    from holdfast.journal.base import StoreUnavailable
    from holdfast.journal.base_carry import InUse
    from holdfast.journal.moving import move
    from holdfast.journal.sqlite_load import NewerStore

    try:
        here = await carrier_of(settings, source)
        try:
            there = await carrier_of(settings, target)
            try:
                return await move(here, there, _bar())
            finally:
                await there.close()
        finally:
            await here.close()
    except Damaged as error:
        raise click.ClickException(f"nothing was moved: {error}. `holdfast store check` says more.") from error
    except (InUse, NewerStore, ConfigError, StoreDown, StoreUnavailable, OSError) as error:
        raise click.ClickException(f"nothing was moved: {error}") from error


def _bar() -> Callable[[int], None]:
    """A line that says how far it is, where somebody looks."""
    seen = [0.0]

    def told(rows: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - seen[0] > 0.1:
            seen[0] = time.monotonic()
            click.echo(f"\r  {rows} rows", nl=False, err=True)

    return told
