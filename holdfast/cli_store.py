"""The commands that look after a store. Owns: check, compact, backup, restore, set-aside and what they print. Refuses
to know: how a store is built."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.config_keys import ConfigError

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.journal.base import Record
    from holdfast.journal.base_care import Report
    from holdfast.journal.lock import DirectoryLock


@click.group()
def store() -> None:
    """Check, compact, back up and restore the store. On PostgreSQL only `check`: for the rest that has tools."""


def _data_option(command: Any) -> Any:
    return click.option("--data-dir", help="Data directory (default: the configured one).")(command)


def _settings(given: str | None) -> Settings:
    """The settings; a named data directory is meant as such, whatever store is configured."""
    from holdfast.cli import settings_from

    named = {"server.data_dir": given, "store.url": "sqlite"} if given else {}
    return settings_from(None, **named).settings


def _data(given: str | None, instead: str) -> Path:
    settings = _settings(given)
    if settings.store.shared:
        raise click.ClickException(f"the store is PostgreSQL: {instead}. (--data-dir means a SQLite store.)")
    return settings.server.data_path


def _database(data: Path) -> Path:
    from holdfast.journal.sqlite_care import NAME

    if not (data / NAME).exists():
        raise click.ClickException(f"there is no store in {data}. Name another with --data-dir.")
    return data / NAME


def _locked(data: Path) -> DirectoryLock:
    from holdfast.journal.lock import DirectoryHeld, DirectoryLock

    try:
        return DirectoryLock(data)
    except DirectoryHeld as error:
        raise click.ClickException(str(error)) from error


def judge(run: str, records: Iterable[Record]) -> None:
    """Do the records of a run make sense?"""
    from holdfast.core.errors import Damaged, IllegalEvent
    from holdfast.core.state import fold
    from holdfast.engine.keeper import entry_of

    try:
        fold(entry_of(run, record) for record in records)
    except IllegalEvent as error:
        raise Damaged(f"run {run}: {error}") from error


def _bar() -> Callable[[int, int], None]:
    """A line that says how far the check is, where somebody looks."""
    seen = [0.0]

    def told(done: int, of: int) -> None:
        if sys.stderr.isatty() and time.monotonic() - seen[0] > 0.1:
            seen[0] = time.monotonic()
            click.echo(f"\r  {done} of {of} runs", nl=False, err=True)

    return told


def _checked(path: Path, as_json: bool) -> bool:
    from holdfast.journal.sqlite_care import check

    return _told(str(path), check(path, judge, _bar()), as_json)


def _checked_postgres(settings: Settings, as_json: bool) -> bool:
    import asyncio

    from holdfast.assemble_store import NotPermitted, check_postgres, without_secrets
    from holdfast.config import without_password
    from holdfast.journal.base import StoreUnavailable

    url = settings.store.url
    try:
        report = asyncio.run(check_postgres(settings, judge, _bar()))
    except (StoreUnavailable, ConfigError, NotPermitted) as error:
        why = without_secrets(str(error), url, settings.store.direct_url)
        raise click.ClickException(f"{without_password(url)}: {why}") from error
    return _told(without_password(url), report, as_json)


def _told(name: str, report: Report, as_json: bool) -> bool:
    if as_json:
        shown = {field: getattr(report, field) for field in ("runs", "entries", "bytes", "schema", "problems")}
        click.echo(json.dumps({"ok": not report.problems, **shown}))
    else:
        said = "no damage" if not report.problems else f"{len(report.problems)} problems"
        click.echo(f"{name}: {report.runs} runs, {report.entries} entries, {report.bytes} bytes: {said}")
        for problem in report.problems:
            click.echo(f"  {problem}")
    return not report.problems


@store.command("check", short_help="Look through the whole store.")
@_data_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check_store(data_dir: str | None, as_json: bool) -> None:
    """Look through the whole store: file, checksums, every run, references. The server may be running."""
    settings = _settings(data_dir)
    if settings.store.shared:
        raise SystemExit(0 if _checked_postgres(settings, as_json) else 1)
    if not _checked(_database(settings.server.data_path), as_json):
        click.echo(
            "Nothing was changed. Restore a backup with `holdfast store restore`, or move it out of the way "
            "with `holdfast store set-aside`.",
            err=True,
        )
        raise SystemExit(1)


@store.command("backup", short_help="Copy the store while the server runs.")
@click.argument("target", type=click.Path(path_type=Path))
@_data_option
def backup_store(target: Path, data_dir: str | None) -> None:
    """Copy the store to TARGET, a new directory, while the server runs: database, secret and key. Workspaces are
    plain files: copy them as such."""
    from holdfast.journal.sqlite_care import backup

    data = _data(data_dir, "pg_dump, or a base backup with its write-ahead log (docs/postgres.md)")
    _database(data)
    try:
        backup(data, target)
    except FileExistsError as error:
        raise click.ClickException(f"{target} exists already: a backup is made in a directory of its own.") from error
    if not _checked(target / "holdfast.db", False):
        raise SystemExit(1)


@store.command("restore")
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--replace", "replacing", is_flag=True, help="Move the store that is there aside first.")
@_data_option
def restore_store(source: Path, replacing: bool, data_dir: str | None) -> None:
    """Put the backup in SOURCE in place. The server must not be running."""
    from holdfast.journal.sqlite_care import NAME, restore, set_aside

    data = _data(data_dir, "pg_restore into a new database, then point store.url at it")
    if not _checked(_database(source), False):
        raise click.ClickException("the backup itself is damaged: nothing was changed.")
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _locked(data)
    try:
        if (data / NAME).exists():
            if not replacing:
                raise click.ClickException(f"{data} has a store. Move it aside with --replace.")
            click.echo(f"the store that was there is now in {set_aside(data, _stamp('replaced'))}")
        restore(source, data)
    finally:
        lock.release()
    click.echo(f"restored to {data}")


@store.command("compact")
@_data_option
def compact_store(data_dir: str | None) -> None:
    """Give the room of deleted and expired runs back to the disk. The server must not be running."""
    from holdfast.journal.sqlite_care import compact

    data = _data(data_dir, "autovacuum gives room back for use; VACUUM FULL or pg_repack to the disk")
    path = _database(data)
    lock = _locked(data)
    try:
        before, after = compact(path)
    finally:
        lock.release()
    click.echo(f"{path}: {before} bytes before, {after} after")


@store.command("set-aside", short_help="Move a damaged store out of the way.")
@_data_option
def aside_store(data_dir: str | None) -> None:
    """Move a damaged store out of the way, so that the server can start with an empty one. Nothing is deleted."""
    from holdfast.journal.sqlite_care import set_aside

    data = _data(data_dir, "ALTER DATABASE ... RENAME TO ..., then CREATE DATABASE")
    _database(data)
    lock = _locked(data)
    try:
        click.echo(f"moved to {set_aside(data, _stamp('aside'))}")
    finally:
        lock.release()


def _stamp(word: str) -> str:
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S')}"
