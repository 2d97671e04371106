"""One question, one answer. Owns: what goes to stdout, to stderr and into the exit code. Refuses to know: how a run is
followed (follow.py)."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable

import click
from msgspec import Struct

from ninelives.cli.chat.follow import BACK, ENDS, LOST, RunFollower
from ninelives.cli.remote import Remote
from ninelives.cli.shared import Answer, echo_text

ANSWERED, FAILED, ASKS, CANCELLED = 0, 1, 3, 130
CHOICES = {"y": "once", "o": "once", "s": "session", "a": "always", "n": "deny", "d": "deny"}
"""What a key means where a person is asked."""


class Question(Struct, frozen=True):
    """A question and how its answer is wanted."""

    text: str
    session: str = ""
    model: str | None = None
    instructions: str | None = None
    idempotency_key: str | None = None
    patience: float = 600.0
    as_json: bool = False

    def body(self) -> Answer:
        """The request."""
        named = {"session_id": self.session, "model": self.model, "instructions": self.instructions}
        return {"input": self.text} | {name: value for name, value in named.items() if value}


def answer_question(question: Question, connect: Callable[[], Remote]) -> int:
    """Ask, follow, print. Returns the exit code. Raises ClickException."""
    first = connect()
    if not question.idempotency_key:
        first.get("/health", timeout=5.0)  # nobody waits ten minutes for a server that was never there
    follower = RunFollower(connect, question.patience)
    run = follower.start(question.body(), question.idempotency_key or f"ask-{secrets.token_hex(12)}")
    printing = Printing(stream=sys.stdout.isatty() and not question.as_json)
    try:
        for event in follower.events(run):
            asked = follower.shown(run).get("approval") if event["event"] == "approval.request" else None
            if asked is not None and not answer_approval(connect(), run, asked):
                return ASKS
            printing.show(event)
    except KeyboardInterrupt:
        connect().get(f"/v1/runs/{run}/stop", "POST")
        click.echo(f"\n{run} is cancelled.", err=True)
        return CANCELLED
    return printing.end(follower.shown(run), as_json=question.as_json)


def answer_approval(remote: Remote, run: str, asked: Answer) -> bool:
    """Ask the person at this terminal. False where there is none."""
    echo_text(f"\n{asked['call']}\n{asked.get('why') or ''}".rstrip(), err=True)
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        answer = f"ninelives approvals approve {run} --yes   (or deny {run})"
        click.echo(f"A person must approve this call: {answer}", err=True)
        return False
    letter = click.prompt("Approve? y once, s session, a always, n no", type=click.Choice(list(CHOICES)), err=True)
    remote.get(f"/v1/runs/{run}/approval", "POST", {"choice": CHOICES[letter], "digest": asked["digest"]})
    return True


class Printing:
    """Prints a run as it comes. Text goes to stdout while somebody watches. A pipe gets the whole answer at the end, so
    that it never has a text twice."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._open_line = False

    def show(self, event: Answer) -> None:
        """One event."""
        match event["event"]:
            case "message.delta" if self._stream:
                echo_text(event["delta"], nl=False)
                self._open_line = not event["delta"].endswith("\n")
            case "message.dropped" if self._stream:
                self._note("This message begins again.")
            case "tool.started":
                self._note(f"[{event['tool']}] {event['preview']}")
            case "tool.completed":
                done = "failed" if event["error"] else "done"
                self._note(f"[{event['tool']}] {done} in {event['duration']:.2f} s")
            case name if name == LOST:
                self._note("The server is away. Waiting; nothing is lost.")
            case name if name == BACK:
                self._note(f"The server is back after {event['away_s']:.1f} s.")
            case name if name in ENDS and self._open_line:
                click.echo()

    def end(self, run: Answer, *, as_json: bool) -> int:
        """The end of the run. Returns the exit code."""
        if as_json:
            click.echo(json.dumps(run))
        elif not self._stream and run["output"]:
            echo_text(run["output"])
        if run["status"] == "completed":
            return ANSWERED
        why = run["error"] or run.get("reason") or ""
        because = f": {why}" if why not in ("", run["status"]) else ""
        echo_text(f"ninelives: {run['run_id']} {run['status']}{because}", err=True)
        return FAILED

    def _note(self, text: str) -> None:
        if self._open_line:
            click.echo()
            self._open_line = False
        echo_text(text, err=True)
