"""ninelives runs. Owns: ls, show, tail, cancel, steer, fork, pin and receipt. They use only the public HTTP API, so
they work with a server on another machine too. Refuses to know: the store."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import click

from ninelives.cli.shared import Answer, Remote, echo_text, json_option, print_fields, remote_options


@click.group()
def runs() -> None:
    """List, follow, stop, keep and explain runs."""


@runs.command("ls")
@click.option("--status", "wanted", help="Show only runs with this status.")
@click.option("--limit", default=20, show_default=True, help="Number of runs, newest first.")
@remote_options
@json_option
def ls(url: str | None, key: str | None, as_json: bool, wanted: str | None, limit: int) -> None:
    """List runs."""
    query = urlencode({"limit": limit} | ({"status": wanted} if wanted else {}))
    answer = Remote(url, key).get(f"/v1/runs?{query}")
    if as_json:
        click.echo(json.dumps(answer))
        return
    for run in answer["data"]:
        first = (run["output"] or run["error"] or "").replace("\n", " ")[:60]
        echo_text(f"{run['run_id']}  {run['status']:11}  {run['model']:14}  {first}")
    if not answer["data"]:
        click.echo("no runs")


@runs.command("show")
@click.argument("run")
@remote_options
@json_option
def show(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Show one run."""
    answer = Remote(url, key).get(f"/v1/runs/{run}")
    if as_json:
        click.echo(json.dumps(answer))
        return
    if asked := answer.get("approval"):
        del asked["arguments"]  # `call` has them too, decoded
    print_fields(answer)


@runs.command("tail")
@click.argument("run")
@click.option("--after", type=int, help="Start after the event with this number.")
@remote_options
@json_option
def tail(run: str, after: int | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Print the events of a run until it ends. A restart of the server is waited for."""
    from ninelives.cli.chat.follow import BACK, LOST, RunFollower

    Remote(url, key).get(f"/v1/runs/{run}")  # a run that does not exist is told at once
    for event in RunFollower(lambda: Remote(url, key)).events(run, after):
        if as_json and event["event"] not in (LOST, BACK):
            click.echo(json.dumps(event))
        elif not as_json:
            _print_event(event)


def _print_event(event: Answer) -> None:
    match event.get("event"):
        case "message.delta":
            echo_text(event["delta"], nl=False)
        case "tool.started":
            echo_text(f"\n[{event['tool']}] {event['preview']}")
        case "tool.completed":
            echo_text(f"[{event['tool']}] {'failed' if event['error'] else 'done'} in {event['duration']:.2f} s")
        case "connection.lost":
            echo_text("\nThe server is away. Waiting; nothing is lost.")
        case "connection.back":
            echo_text(f"The server is back after {event['away_s']:.1f} s.")
        case "message.dropped":
            echo_text("\nThe server was killed in this message. It begins again.")
        case "approval.request":
            echo_text(f"\nA person must approve {event['tool']}: ninelives approvals approve {event['run_id']}")
        case name:
            echo_text(f"\n{name} {event.get('error') or event.get('reason') or ''}".rstrip())


@runs.command("cancel")
@click.argument("run")
@remote_options
@json_option
def cancel(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Cancel a run."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/stop", "POST")
    click.echo(json.dumps(answer) if as_json else f"{answer['run_id']}: {answer['status']}")


@runs.command("steer")
@click.argument("run")
@click.argument("text")
@remote_options
@json_option
def steer(run: str, text: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Write to a run while it works: the model reads TEXT before its next message."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/steer", "POST", {"input": text})
    click.echo(json.dumps(answer) if as_json else f"{answer['run_id']}: {answer['steer_id']} accepted")


@runs.command("fork")
@click.argument("run")
@click.option("--from", "from_seq", type=int, required=True, help="The event after which the new run begins.")
@click.option("--input", "text", help="What the model is told there.")
@remote_options
@json_option
def fork(run: str, from_seq: int, text: str | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Start a new run from an event of another: finished calls are not made again."""
    body = {"from_seq": from_seq} | ({"input": text} if text else {})
    answer = Remote(url, key).get(f"/v1/runs/{run}/fork", "POST", body)
    click.echo(json.dumps(answer) if as_json else f"{answer['run_id']}: from event {answer['from_seq']} of {run}")


@runs.command("pin")
@click.argument("run")
@click.option("--off", is_flag=True, help="Remove the pin: retention applies to the run again.")
@remote_options
@json_option
def pin(run: str, off: bool, url: str | None, key: str | None, as_json: bool) -> None:
    """Exempt a run from retention."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/pin", "DELETE" if off else "POST")
    click.echo(
        json.dumps(answer) if as_json else f"{answer['run_id']}: {'pinned' if answer['pinned'] else 'not pinned'}"
    )


@runs.command("receipt", short_help="Explain what happened in a run.")
@click.argument("run")
@remote_options
@json_option
def receipt(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Explain what happened in a run: attempts, steps, repeated calls and unknown outcomes."""
    answer = Remote(url, key).get(f"/v1/runs/{run}/receipt")
    if as_json:
        click.echo(json.dumps(answer))
        return
    echo_text(f"{answer['run_id']}  {answer['status']}  {answer['recoveries']} recoveries")
    for step in answer["steps"]:
        repeated = f", started {step['starts']} times" if step["starts"] > 1 else ""
        echo_text(f"  {step['tool']:14} {step['effect']:10} {step['outcome']:8} {step['label']}{repeated}")
    for approval in answer["approvals"]:
        echo_text(f"  approval of {approval['tool']}: {approval.get('choice', 'open')} {approval.get('by', '')}")
    spent, saved = answer["usage"]["total_tokens"], answer["usage_saved_by_recovery"]["total_tokens"]
    more = " (a model call was cut off: the upstream may have counted more)" if answer["usage_incomplete"] else ""
    about = "about " if answer["usage_estimated"] else ""
    echo_text(f"  tokens: {about}{spent} spent{more}, {saved} saved by recovery")
    if answer["error"]:
        echo_text(f"  error: {answer['error']['message']} ({answer['error']['reason']})")
