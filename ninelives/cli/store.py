"""ninelives store. Owns: check, upgrade, compact, backup, restore and set-aside, and what they print. Refuses to
know: how a store is built."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninelives.app.errors import ConfigError
from ninelives.cli.shared import HelpfulGroup, json_option, progress_line, settings_from

if TYPE_CHECKING:
    from ninelives.app.settings import Settings
    from ninelives.journal.sqlite.lock import DirectoryLock
    from ninelives.journal.values import Record, Report


@click.group(cls=HelpfulGroup)
def store() -> None:
    """Check, upgrade, compact, back up and restore the store.

    On PostgreSQL only `check` and `upgrade` work. Use the tools of PostgreSQL for the rest."""


def _data_option(command: Any) -> Any:
    return click.option("--data-dir", help="Data directory (default: the configured one).")(command)


def _settings(given: str | None) -> Settings:
    """The settings. A named data directory wins over a configured database."""
    named = {"server.data_dir": given, "store.url": "sqlite"} if given else {}
    return settings_from(None, **named).settings


def _data(given: str | None, instead: str) -> Path:
    settings = _settings(given)
    if settings.store.shared:
        raise click.ClickException(f"the store is on PostgreSQL. Use {instead}. (--data-dir means a SQLite store.)")
    return settings.server.data_path


def _database(data: Path) -> Path:
    from ninelives.journal.sqlite.load import database_in

    database = database_in(data)
    if not database.exists():
        raise click.ClickException(f"there is no store in {data}. Name another directory with --data-dir.")
    return database


def _locked(data: Path) -> DirectoryLock:
    from ninelives.journal.sqlite.lock import DirectoryHeld, DirectoryLock

    try:
        return DirectoryLock(data)
    except DirectoryHeld as error:
        raise click.ClickException(str(error)) from error


def judge(run: str, records: Iterable[Record]) -> None:
    """Raise Damaged where the records of a run are not a valid journal."""
    from ninelives.core.errors import Damaged, IllegalEvent
    from ninelives.core.state import fold
    from ninelives.engine.replay import entry_of

    try:
        fold(entry_of(run, record) for record in records)
    except IllegalEvent as error:
        raise Damaged(f"run {run}: {error}") from error


def _check_sqlite(path: Path, as_json: bool) -> bool:
    from ninelives.journal.sqlite.maintenance import check

    return _print_report(str(path), check(path, judge, progress_line("runs")), as_json)


def _check_postgres(settings: Settings, as_json: bool) -> bool:
    import asyncio

    from ninelives.app.known_secrets import without_secrets
    from ninelives.app.settings import without_password
    from ninelives.app.store import NotPermitted, check_postgres
    from ninelives.journal.values import StoreUnavailable

    url = settings.store.url
    try:
        report = asyncio.run(check_postgres(settings, judge, progress_line("runs")))
    except (StoreUnavailable, ConfigError, NotPermitted) as error:
        why = without_secrets(str(error), url, settings.store.direct_url)
        raise click.ClickException(f"{without_password(url)}: {why}") from error
    return _print_report(without_password(url), report, as_json)


def _print_report(name: str, report: Report, as_json: bool) -> bool:
    if as_json:
        shown = {field: getattr(report, field) for field in ("runs", "entries", "bytes", "schema", "problems")}
        click.echo(json.dumps({"ok": not report.problems, **shown}))
    else:
        said = "no damage" if not report.problems else f"{len(report.problems)} problems"
        click.echo(f"{name}: {report.runs} runs, {report.entries} entries, {report.bytes} bytes: {said}")
        for problem in report.problems:
            click.echo(f"  {problem}")
    return not report.problems


@store.command("upgrade", short_help="Bring the schema of a PostgreSQL store up to date.")
@json_option
def upgrade_store(as_json: bool) -> None:
    """Bring the schema of a PostgreSQL store up to date, and do nothing else.

    `serve` does this too. Run it on its own where the servers use a role that may not change tables: set
    NINELIVES_STORE_URL to the URL of the owner for this one command. Replicas of the release before may be running.

    A SQLite store is upgraded by the server that opens it."""
    import asyncio

    from ninelives.app.known_secrets import without_secrets
    from ninelives.app.settings import without_password
    from ninelives.app.store import NotPermitted, upgrade_postgres
    from ninelives.journal.values import NewerStore, StoreUnavailable

    settings = _settings(None)
    if not settings.store.shared:
        raise click.ClickException("the store is a SQLite file: `ninelives serve` upgrades it when it starts.")
    url = settings.store.url
    try:
        before, after = asyncio.run(upgrade_postgres(settings))
    except (StoreUnavailable, NewerStore, ConfigError, NotPermitted) as error:
        why = without_secrets(str(error), url, settings.store.direct_url)
        raise click.ClickException(f"{without_password(url)}: {why}") from error
    said = f"schema {after}, was {before}" if before != after else f"schema {after}, nothing to do"
    click.echo(json.dumps({"before": before, "after": after}) if as_json else f"{without_password(url)}: {said}")


@store.command("check", short_help="Check the whole store for damage.")
@_data_option
@json_option
def check_store(data_dir: str | None, as_json: bool) -> None:
    """Check the whole store for damage: the file, checksums, every run and references. The server may be running.

    Exit code: 0 without damage, 1 otherwise."""
    settings = _settings(data_dir)
    if settings.store.shared:
        raise SystemExit(0 if _check_postgres(settings, as_json) else 1)
    if not _check_sqlite(_database(settings.server.data_path), as_json):
        click.echo(
            "Nothing was changed. Restore a backup with `ninelives store restore`, or move the store aside with "
            "`ninelives store set-aside`.",
            err=True,
        )
        raise SystemExit(1)


@store.command("backup", short_help="Copy the store while the server runs.")
@click.argument("target", type=click.Path(path_type=Path))
@_data_option
def backup_store(target: Path, data_dir: str | None) -> None:
    """Copy the store to TARGET, a new directory: database, secret and key. The server may be running.

    Workspaces are plain files. Copy them with your usual tools."""
    from ninelives.journal.sqlite.maintenance import backup

    data = _data(data_dir, "pg_dump, or a base backup with its write-ahead log (docs/postgres.md)")
    _database(data)
    try:
        backup(data, target)
    except FileExistsError as error:
        raise click.ClickException(f"{target} exists already. Name a new directory.") from error
    if not _check_sqlite(_database(target), False):
        raise SystemExit(1)


@store.command("restore")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--replace", "replacing", is_flag=True, help="Move the present store aside first.")
@_data_option
def restore_store(source: Path, replacing: bool, data_dir: str | None) -> None:
    """Restore the backup in SOURCE. The server must not be running."""
    from ninelives.journal.sqlite.load import database_in
    from ninelives.journal.sqlite.maintenance import restore, set_aside

    data = _data(data_dir, "pg_restore into a new database, then point store.url at it")
    if not _check_sqlite(_database(source), False):
        raise click.ClickException("the backup is damaged. Nothing was changed.")
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _locked(data)
    try:
        if database_in(data).exists():
            if not replacing:
                raise click.ClickException(f"{data} has a store already. Move it aside with --replace.")
            click.echo(f"the old store is now in {set_aside(data, _stamp('replaced'))}")
        restore(source, data)
    finally:
        lock.release()
    click.echo(f"restored to {data}")


@store.command("compact")
@_data_option
def compact_store(data_dir: str | None) -> None:
    """Return the space of deleted and expired runs to the disk. The server must not be running."""
    from ninelives.journal.sqlite.maintenance import compact

    data = _data(data_dir, "autovacuum, which makes space reusable, or VACUUM FULL, which returns it to the disk")
    path = _database(data)
    lock = _locked(data)
    try:
        before, after = compact(path)
    finally:
        lock.release()
    click.echo(f"{path}: {before} bytes before, {after} after")


@store.command("set-aside", short_help="Move a damaged store aside.")
@_data_option
def aside_store(data_dir: str | None) -> None:
    """Move a damaged store aside, so that the server can start with an empty one. Nothing is deleted."""
    from ninelives.journal.sqlite.maintenance import set_aside

    data = _data(data_dir, "ALTER DATABASE ... RENAME TO ..., then CREATE DATABASE")
    _database(data)
    lock = _locked(data)
    try:
        click.echo(f"moved to {set_aside(data, _stamp('aside'))}")
    finally:
        lock.release()


def _stamp(word: str) -> str:
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S')}"
