"""ninelives approvals. Owns: ls, revoke and answer. They use only the public HTTP API. Refuses to know: the store."""

from __future__ import annotations

import json
from urllib.parse import quote

import click

from ninelives.cli.shared import Remote, json_option, remote_options
from ninelives.observe.log import printable


@click.group()
def approvals() -> None:
    """Answer questions, and list and revoke what was approved for more than one call."""


@approvals.command("ls")
@remote_options
@json_option
def ls(url: str | None, key: str | None, as_json: bool) -> None:
    """List standing permissions."""
    answer = Remote(url, key).get("/v1/approvals")
    if as_json:
        click.echo(json.dumps(answer))
        return
    for grant in answer["data"]:
        where = f"in session {grant['session_id']}" if grant["session_id"] else "in all sessions"
        shown = json.dumps(json.loads(grant["arguments"]))  # ASCII: nothing in it can move the cursor
        click.echo(f"{grant['id']}  {where}, by {grant['by']}\n  {grant['tool']} {shown}")
    if not answer["data"]:
        click.echo("no standing permissions")


@approvals.command("revoke")
@click.argument("grant")
@remote_options
@json_option
def revoke(grant: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Take a permission back: the next such call asks again."""
    answer = Remote(url, key).get(f"/v1/approvals/{quote(grant, safe='')}", "DELETE")
    click.echo(json.dumps(answer) if as_json else f"{answer['id']}: revoked")


@approvals.command("answer")
@click.argument("run")
@click.argument("choice", type=click.Choice(["once", "session", "always", "deny"]))
@click.option("--yes", is_flag=True, help="Do not ask again after showing the call.")
@remote_options
@json_option
def answer(run: str, choice: str, yes: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """Answer the open question of a run. Shows the whole call first."""
    remote, path = Remote(url, key), f"/v1/runs/{quote(run, safe='')}"
    asked = remote.get(path).get("approval")
    if asked is None:
        raise click.ClickException(f"{run} does not wait for a person.")
    click.echo(printable(asked["call"]), err=True)
    if choice != "deny" and not yes:
        click.confirm("Approve this call?", abort=True, err=True)
    given = remote.get(f"{path}/approval", "POST", {"choice": choice, "digest": asked["digest"]})
    click.echo(json.dumps(given) if as_json else f"{given['run_id']}: {given['choice']}")
