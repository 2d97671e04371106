"""ninelives chat and ask. Owns: their flags. They use only the public HTTP API. Refuses to know: how a chat looks
(screen.py), and how a run is followed (follow.py)."""

from __future__ import annotations

import sys

import click

from ninelives.cli.remote import Reconnect, remote_options
from ninelives.cli.shared import json_option


@click.command()
@click.option("--session", help="Go on with this session (default: the last one).")
@click.option("--new", "fresh", is_flag=True, help="Begin a new session.")
@click.option("--model", help="Profile or model to ask (default: the server's own).")
@remote_options
def chat(session: str | None, fresh: bool, model: str | None, url: str | None, key: str | None) -> None:
    """Talk to the agent in this terminal.

    Shows tools as they run, asks for approvals in place, and survives a restart of the server in mid-answer. What you
    write while it works steers it. It goes on with your last session."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise click.ClickException("chat needs a terminal. In a pipe or a script use `ninelives ask`.")
    from ninelives.cli.chat.memory import ChatMemory
    from ninelives.cli.chat.screen import ChatScreen

    memory = ChatMemory(url)
    ChatScreen(Reconnect(url, key), memory.enter(session, fresh=fresh), model or "").run()


@click.command("ask")
@click.argument("words", nargs=-1)
@click.option("--session", help="Session of the question (default: none, so nothing was said before).")
@click.option("--last", is_flag=True, help="Go on with the session of the last `chat`.")
@click.option("--model", help="Profile or model to ask (default: the server's own).")
@click.option("--instructions", help="Instructions for this question.")
@click.option("--idempotency-key", help="The same key joins the run that it started before.")
@click.option(
    "--patience", type=float, default=600.0, show_default=True, help="Seconds to wait for a server that is away."
)
@remote_options
@json_option
def ask_once(
    words: tuple[str, ...], session: str | None, last: bool, url: str | None, key: str | None, **given: object
) -> None:
    """Ask one question and print the answer.

    The question is WORDS, then what comes from stdin: `git diff | ninelives ask review this`. Tools are shown on
    stderr. A restart of the server in mid-answer is waited for.

    \b
    Exit code: 0 answered, 1 failed, 2 wrong usage, 3 a person must approve a call,
    130 cancelled with Ctrl-C."""
    from ninelives.cli.chat.ask import Question, answer_question
    from ninelives.cli.chat.memory import ChatMemory

    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    text = "\n\n".join(part for part in (" ".join(words), piped) if part)
    if not text:
        raise click.UsageError("What is the question? ninelives ask WORDS, or text on stdin.")
    named = session or (ChatMemory(url).enter(None, fresh=False).session if last else "")
    question = Question(text, named, **given)  # type: ignore[arg-type]
    raise SystemExit(answer_question(question, Reconnect(url, key)))
