"""ninelives runs. Owns: ls, show, tail, cancel, steer, fork, pin and receipt. They use only the public HTTP API, so
they work with a server on another machine too. Refuses to know: the store."""

from __future__ import annotations

import json
import sys
from shutil import get_terminal_size
from urllib.parse import urlencode

import click

from ninelives.cli.remote import Reconnect, Remote, remote_options
from ninelives.cli.shared import Answer, HelpfulGroup, age_of, echo_text, harmless, json_option, print_fields, span_of

_COLOURS = {"running": "blue", "completed": "green", "failed": "red", "waiting_for_approval": "yellow"}
_ACTIVE = ("queued", "running", "stopping", "waiting_for_approval")


@click.group(cls=HelpfulGroup)
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
    if not answer["data"]:
        click.echo("no runs")
        return
    wide = max(len("RUN"), *(len(run["run_id"]) for run in answer["data"]))
    click.echo(f"{'RUN':{wide}}  {'STATUS':{_STATUS}}  CRASHES   AGE  TIME   TOKENS  QUESTION -> ANSWER")
    room = max(40, get_terminal_size((160, 24)).columns - wide - _STATUS - 35)
    for run in answer["data"]:
        status = click.style(f"{_shown_status(run):{_STATUS}}", fg=_COLOURS.get(run["status"]))
        age, tokens = age_of(run["created_at"]), run["usage"]["total_tokens"]
        counts = f"{run.get('recoveries') or '':>7}  {age:>4}  {_time_of(run):>4}  {tokens:>7}"
        said = harmless(_one_line(run)[:room])
        click.echo(f"{run['run_id']:{wide}}  {status}  {counts}  {said}")


_STATUS = len("incomplete")


def _shown_status(run: Answer) -> str:
    return str({"waiting_for_approval": "waiting"}.get(run["status"], run["status"]))


def _crashes(receipt: Answer) -> str:
    """How many crashes there were. A run that failed has not survived them."""
    count = receipt["recoveries"]
    survived = " survived" if count and receipt["status"] == "completed" else ""
    return f"{count or 'no'} {'crash' if count == 1 else 'crashes'}{survived}"


def _time_of(run: Answer) -> str:
    return age_of(run["created_at"]) if run["status"] in _ACTIVE else span_of(run["updated_at"] - run["created_at"])


def _one_line(run: Answer) -> str:
    answer = run["output"] or run["error"] or "..."
    return " ".join(f"{run['title'] or ''} -> {answer}".split())


def _named(remote: Remote, run: str | None) -> str:
    """The run that was named. `last`, and no name, mean the newest one."""
    if run not in (None, "last"):
        return str(run)
    newest = remote.get("/v1/runs?limit=1&output_chars=0")["data"]
    if not newest:
        raise click.ClickException("There are no runs yet.")
    return str(newest[0]["run_id"])


@runs.command("show")
@click.argument("run", required=False)
@remote_options
@json_option
def show(run: str | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Show one run (default: the newest), and what it waits for."""
    remote = Remote(url, key)
    answer = remote.get(f"/v1/runs/{_named(remote, run)}")
    if as_json:
        click.echo(json.dumps(answer))
        return
    asked = answer.pop("approval", None)
    print_fields(answer)
    _print_asked(answer["run_id"], asked)


@runs.command("tail")
@click.argument("run", required=False)
@click.option("--after", type=int, help="Start after the event with this number.")
@remote_options
@json_option
def tail(run: str | None, after: int | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Print the events of a run (default: the newest) until it ends. A restart of the server is waited for.

    Where the run waits for a person and there is no terminal, it ends with exit code 3. With --json it goes on."""
    from ninelives.cli.chat.ask import ASKS
    from ninelives.cli.chat.follow import BACK, LOST, RunFollower

    connect = Reconnect(url, key)
    remote = connect()
    name = str(remote.get(f"/v1/runs/{_named(remote, run)}")["run_id"])  # one that does not exist is told at once
    follower = RunFollower(connect)
    for event in follower.events(name, after):
        if as_json and event["event"] not in (LOST, BACK):
            click.echo(json.dumps(event))
        elif not as_json:
            _print_event(event)
            if event["event"] == "approval.request":
                asked = follower.shown(name).get("approval")
                if _print_asked(name, asked) and not sys.stdout.isatty():
                    sys.exit(ASKS)


def _print_asked(run: str, asked: Answer | None) -> bool:
    """Say what a run waits for, and how to answer. False where it waits for nobody."""
    if asked is None:
        return False
    echo_text(f"\nWaiting for you:\n{asked['call']}\n{asked.get('why') or ''}".rstrip())
    echo_text(f"Answer with: ninelives approvals approve {run} --yes   (or deny {run})")
    return True


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
            echo_text(f"\nA person must approve {event['tool']}.")
        case "approval.responded":
            echo_text(f"Answered: {event['choice']}.")
        case name:
            echo_text(f"\n{name} {event.get('error') or event.get('reason') or ''}".rstrip())


@runs.command("cancel")
@click.argument("run")
@remote_options
@json_option
def cancel(run: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Cancel a run. `last` is the newest one."""
    remote = Remote(url, key)
    answer = remote.get(f"/v1/runs/{_named(remote, run)}/stop", "POST")
    click.echo(json.dumps(answer) if as_json else f"{answer['run_id']}: {answer['status']}")


@runs.command("steer")
@click.argument("run")
@click.argument("text")
@remote_options
@json_option
def steer(run: str, text: str, url: str | None, key: str | None, as_json: bool) -> None:
    """Write to a run while it works: the model reads TEXT before its next message. `last` is the newest run."""
    remote = Remote(url, key)
    answer = remote.get(f"/v1/runs/{_named(remote, run)}/steer", "POST", {"input": text})
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


def _fate(step: Answer) -> str:
    """What became of a tool call, in words."""
    times = "once" if step["starts"] == 1 else f"{step['starts']} times"
    match step["outcome"]:
        case "open":
            return f"started {times}, runs"
        case "unknown":
            return f"started {times}, end unknown"
        case _:
            return "reused" if step.get("reused") else f"ran {times}"


@runs.command("receipt", short_help="Explain what happened in a run.")
@click.argument("run", required=False)
@remote_options
@json_option
def receipt(run: str | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Explain what happened in a run (default: the newest): attempts, steps, repeated calls and unknown outcomes."""
    remote = Remote(url, key)
    answer = remote.get(f"/v1/runs/{_named(remote, run)}/receipt")
    if as_json:
        click.echo(json.dumps(answer))
        return
    echo_text(f"{answer['run_id']}  {answer['status']}  {_crashes(answer)}")
    for step in answer["steps"]:
        echo_text(f"  {step['tool']:14} {step['effect']:10} {_fate(step):25} {step['label']}")
    for approval in answer["approvals"]:
        echo_text(f"  approval of {approval['tool']}: {approval.get('choice', 'open')} {approval.get('by', '')}")
    for steer in answer["steers"]:
        echo_text(f"  steer, {'read by the model' if steer['used'] else 'not read'}: {steer['text']}")
    if answer["status"] in _ACTIVE and (text := remote.get(f"/v1/runs/{answer['run_id']}").get("pending_steer")):
        echo_text(f"  steer, not read by the model yet: {text}")
    spent, saved = answer["usage"]["total_tokens"], answer["usage_saved_by_recovery"]["total_tokens"]
    more = " (a model call may have been cut off: the upstream counted more then)" if answer["usage_incomplete"] else ""
    about = "about " if answer["usage_estimated"] else ""
    echo_text(f"  tokens: {about}{spent} spent{more}, {saved} saved by recovery")
    if answer["error"]:
        echo_text(f"  error: {answer['error']['message']} ({answer['error']['reason']})")
