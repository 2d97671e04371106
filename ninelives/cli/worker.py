"""ninelives worker. Owns: the check that its store is shared. Refuses to know: how a worker starts."""

from __future__ import annotations

from typing import Any

import click

from ninelives.cli.serve import run, run_options, settings_of


@click.command(short_help="Execute stored runs; answer only /health.")
@run_options
def worker(config: str | None, **given: Any) -> None:
    """Execute stored runs, and answer only /health and /health/detailed.

    Needs a store on PostgreSQL. Requests arrive at `ninelives serve`; with --no-worker it leaves all stored runs to
    workers."""
    loaded = settings_of(config, given)
    if not loaded.settings.store.shared:
        raise click.ClickException("a worker needs a store that servers share. Name it with --store postgresql://...")
    raise SystemExit(run(loaded, serves=False))
