"""ninelives approvals. Owns: ls, approve, deny and revoke. They use only the public HTTP API. Refuses to know: the
store."""

from __future__ import annotations

import json
import sys
from urllib.parse import quote

import click

from ninelives.cli.remote import Remote, remote_options
from ninelives.cli.shared import Answer, HelpfulGroup, age_of, echo_text, json_option
from ninelives.observe.log import printable


@click.group(cls=HelpfulGroup)
def approvals() -> None:
    """Calls that wait for a person, and what was approved for more than one call."""


@approvals.command("ls")
@remote_options
@json_option
def ls(url: str | None, key: str | None, as_json: bool) -> None:
    """List calls that wait for a person, and standing permissions."""
    remote = Remote(url, key)
    waiting, answer = _waiting(remote), remote.get("/v1/approvals")
    if as_json:
        click.echo(json.dumps({**answer, "waiting": waiting}))
        return
    for run in waiting:
        echo_text(f"{run['run_id']}  waits since {age_of(run['updated_at'])}  {run['title']}")
        for line in _call_of(remote, run["run_id"]).splitlines():
            echo_text(f"  {line}")
    if waiting:
        click.echo("Answer with: ninelives approvals approve RUN --yes, or deny RUN")
    for grant in answer["data"]:
        where = f"in session {grant['session_id']}" if grant["session_id"] else "in all sessions"
        shown = json.dumps(json.loads(grant["arguments"]))  # ASCII: nothing in it can move the cursor
        click.echo(f"{grant['id']}  {where}, by {grant['by']}\n  {grant['tool']} {shown}")
    if not waiting:
        click.echo("no call waits for a person", err=True)
    if not answer["data"]:
        click.echo("no standing permissions", err=True)


@approvals.command("approve")
@click.argument("run", required=False)
@click.option("--session", "choice", flag_value="session", help="Approve the same call in this session.")
@click.option("--always", "choice", flag_value="always", help="Approve the same call in all sessions.")
@click.option("--yes", is_flag=True, help="Do not ask again after showing the call.")
@remote_options
@json_option
def approve(run: str | None, choice: str | None, yes: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """Approve the call that RUN waits for (default: the only one that waits). Shows the whole call first."""
    _answer(Remote(url, key), run, choice or "once", sure=yes, as_json=as_json)


@approvals.command("deny")
@click.argument("run", required=False)
@remote_options
@json_option
def deny(run: str | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Refuse the call that RUN waits for (default: the only one that waits)."""
    _answer(Remote(url, key), run, "deny", sure=True, as_json=as_json)


@approvals.command("revoke")
@click.argument("grant")
@remote_options
@json_option
def revoke(grant: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Take a permission back: the next such call asks again."""
    answer = Remote(url, key).get(f"/v1/approvals/{quote(grant, safe='')}", "DELETE")
    click.echo(json.dumps(answer) if as_json else f"{answer['id']}: revoked")


@approvals.command("answer", hidden=True)
@click.argument("run")
@click.argument("choice", type=click.Choice(["once", "session", "always", "deny"]))
@click.option("--yes", is_flag=True, help="Do not ask again after showing the call.")
@remote_options
@json_option
def answer(run: str, choice: str, yes: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """The older name of approve and deny."""
    _answer(Remote(url, key), run, choice, sure=yes or choice == "deny", as_json=as_json)


def _waiting(remote: Remote) -> list[Answer]:
    found: list[Answer] = remote.get("/v1/runs?status=waiting_for_approval&limit=100&output_chars=0")["data"]
    return found


def _call_of(remote: Remote, run: str) -> str:
    asked = remote.get(f"/v1/runs/{quote(run, safe='')}").get("approval")
    return f"{asked['call']}\n{asked.get('why') or ''}".rstrip() if asked else "(answered meanwhile)"


def _answer(remote: Remote, run: str | None, choice: str, *, sure: bool, as_json: bool) -> None:
    if run is None:
        waiting = [each["run_id"] for each in _waiting(remote)]
        if len(waiting) != 1:
            named = f" Name one: {' '.join(waiting)}" if waiting else ""
            raise click.ClickException(f"{len(waiting)} runs wait for a person.{named}")
        run = waiting[0]
    path = f"/v1/runs/{quote(run, safe='')}"
    asked = remote.get(path).get("approval")
    if asked is None:
        raise click.ClickException(f"{run} does not wait for a person.")
    click.echo(printable(asked["call"]), err=True)
    if not sure:
        _confirm()
    given = remote.get(f"{path}/approval", "POST", {"choice": choice, "digest": asked["digest"]})
    click.echo(json.dumps(given) if as_json else f"{given['run_id']}: {given['choice']}")


def _confirm() -> None:
    try:
        agreed = click.confirm("Approve this call?", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.ClickException("Nobody answers here: there is no terminal. Pass --yes to approve.") from None
    if not agreed:
        raise click.Abort
