"""ninelives keys. Owns: create, list, revoke and rotate. They use only the public HTTP API, with an admin key. Refuses
to know: the store."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click

from ninelives.cli.remote import Remote, remote_options
from ninelives.cli.shared import Answer, echo_text, json_option

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SPAN = re.compile(r"(\d{1,9})([smhdwy])")


class Span(click.ParamType[int]):
    """A time such as 90d, 12h or 30m, in seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click."""
        found = _SPAN.fullmatch(str(value))
        if isinstance(value, int):
            return value
        if found is None:
            self.fail(f"{value!r} is no time such as 90d, 12h, 30m or 45s.", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.group()
def keys() -> None:
    """Make, list, revoke and rotate keys. Needs an admin key."""


@keys.command("create")
@click.argument("name")
@click.option("--owner", help="Whose runs, files and notes the key reaches (default: those of the admin key).")
@click.option("--scope", "scopes", multiple=True, help="What it may do; repeat it. Default: all but approve and admin.")
@click.option("--profile", help="Its default profile.")
@click.option("--model", "models", multiple=True, help="A profile that it may use; repeat it. Default: all.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=N", help="Such as runs=4; repeat it. See docs/users.md."
)
@click.option("--acts-for", is_flag=True, help="For a front end: each request names its end user.")
@click.option("--acts-for-optional", is_flag=True, help="The same, but requests without an end user are allowed.")
@click.option("--expires", type=Span(), help="When it ends, such as 90d.")
@remote_options
@json_option
def create(name: str, url: str | None, key: str | None, as_json: bool, **given: Any) -> None:
    """Make a key, and print its secret once."""
    body = {
        "name": name,
        "owner": given["owner"],
        "scopes": list(given["scopes"]),
        "profile": given["profile"],
        "models": list(given["models"]),
        "limits": dict(map(_limit, given["limits"])),
        "acts_for": "optional" if given["acts_for_optional"] else "yes" if given["acts_for"] else None,
        "expires_in_s": given["expires"],
    }
    sent = {field: value for field, value in body.items() if value}
    _print_new(Remote(url, key).get("/api/keys", "POST", sent), as_json)


def _limit(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        value = float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=NUMBER, such as runs=4.") from None
    return name, int(value) if value.is_integer() else value


def _print_new(made: Answer, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(made))
        return
    click.echo(made["key"])
    words = f"Key {made['id']} of owner {made['owner']}: {', '.join(made['scopes'])}. It is shown only now: keep it."
    click.echo(words, err=True)


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Revoked and expired keys too.")
@remote_options
@json_option
def list_keys(everything: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """List keys, the newest first. Their secrets are not stored."""
    remote, rows, after = Remote(url, key), list[Answer](), ""
    while True:
        page = remote.get(f"/api/keys?limit=1000{after}")
        rows += [row for row in page["data"] if everything or row["status"] == "active"]
        if not page["has_more"]:
            break
        after = f"&after={quote(page['last_id'], safe='')}"
    if as_json:
        click.echo(json.dumps({"object": "list", "data": rows}))
        return
    for row in rows:
        times = f"used {_day(row['last_used_at'])}" + (
            f", until {_day(row['expires_at'])}" if row["expires_at"] else ""
        )
        acts = "" if row["acts_for"] == "no" else ", acts for end users"
        echo_text(f"{row['id']}  {row['status']:8} {row['owner']:16} {row['name']}")
        echo_text(f"  {', '.join(row['scopes'])}{acts}; {times}")
    if not rows:
        click.echo("no keys")


def _day(seconds: float | None) -> str:
    return "never" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


@keys.command("revoke")
@click.argument("name", metavar="ID")
@remote_options
@json_option
def revoke(name: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Revoke a key. Its open streams end within 15 seconds."""
    gone = Remote(url, key).get(f"/api/keys/{quote(name, safe='')}", "DELETE")
    click.echo(json.dumps(gone) if as_json else f"{gone['id']}: revoked")


@keys.command("rotate")
@click.argument("name", metavar="ID")
@click.option("--grace", type=Span(), default=0, help="How long the old key stays valid, such as 1h.")
@remote_options
@json_option
def rotate(name: str, grace: int, url: str | None, key: str | None, as_json: bool) -> None:
    """Make a new key with the same rights, and end the old one."""
    made = Remote(url, key).get(f"/api/keys/{quote(name, safe='')}/rotate", "POST", {"grace_s": grace})
    _print_new(made, as_json)
