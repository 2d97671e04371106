"""ninelives audit. Owns: tail and export. They use only the public HTTP API, with an admin key. Refuses to know: the
store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click

from ninelives.cli.remote import Remote, remote_options
from ninelives.cli.shared import Answer, echo_text, json_option

FOLLOW_S = 1.0


@click.group()
def audit() -> None:
    """Read who did what. Needs an admin key."""


def _filters(command: Any) -> Any:
    for option, words in {
        "--target": "Only about the object with this id.",
        "--action": "Only this action, such as key.create, or a group of them: key.",
        "--by": "Only by the key with this id.",
        "--owner": "Only by this owner.",
    }.items():
        command = click.option(option, default="", help=words)(command)
    return command


def _query(wanted: Mapping[str, str], **more: object) -> str:
    given = {"key" if name == "by" else name: value for name, value in wanted.items()}
    return "/api/audit?" + urlencode({name: value for name, value in {**given, **more}.items() if value})


@audit.command("tail")
@click.option("-n", "--lines", default=20, type=click.IntRange(1, 1000), help="How many entries.")
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries until interrupted.")
@_filters
@remote_options
@json_option
def tail(lines: int, follow: bool, url: str | None, key: str | None, as_json: bool, **wanted: str) -> None:
    """Print the newest entries, the newest last."""
    remote, show = Remote(url, key), _json_line if as_json else _line
    entries = remote.get(_query(wanted, limit=lines))["data"][::-1]
    for entry in entries:
        show(entry)
    last = entries[-1]["id"] if entries else _newest(remote)
    while follow:
        time.sleep(FOLLOW_S)
        last = _print_from(remote, last, wanted, show)


def _newest(remote: Remote) -> str:
    return next((entry["id"] for entry in remote.get("/api/audit?limit=1")["data"]), "0")


def _print_from(remote: Remote, last: str, wanted: Mapping[str, str], show: Callable[[Answer], None]) -> str:
    """Print all entries after one, the oldest first. Returns the last one."""
    while True:
        page = remote.get(_query(wanted, limit=1000, order="asc", after=last))
        for entry in page["data"]:
            show(entry)
        last = page["last_id"] or last
        if not page["has_more"]:
            return last


@audit.command("export")
@_filters
@remote_options
def export(url: str | None, key: str | None, **wanted: str) -> None:
    """Print all entries as lines of JSON, the oldest first."""
    _print_from(Remote(url, key), "0", wanted, _json_line)


def _json_line(entry: Answer) -> None:
    click.echo(json.dumps(entry))


def _line(entry: Answer) -> None:
    at = datetime.fromtimestamp(entry["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    who = entry["key"] or "server"
    detail = f" ({entry['detail']})" if entry["detail"] else ""
    echo_text(
        f"{at}  {entry['owner']:16} {who:12} {entry['remote'] or '-':15} "
        f"{entry['action']:16} {entry['target']} {entry['result']}{detail}"
    )
