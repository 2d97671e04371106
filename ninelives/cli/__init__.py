"""The command line: one file per command. Owns: the list of commands. Refuses to know: what a command does."""

from __future__ import annotations

import os

import click

from ninelives import __version__
from ninelives.cli.admin.audit import audit
from ninelives.cli.admin.keys import keys
from ninelives.cli.approvals import approvals
from ninelives.cli.chat import ask, chat
from ninelives.cli.config import config
from ninelives.cli.doctor import doctor
from ninelives.cli.drill import drill
from ninelives.cli.import_hermes import import_hermes
from ninelives.cli.install.completion import completion
from ninelives.cli.install.service import service
from ninelives.cli.migrate import migrate
from ninelives.cli.restart import restart
from ninelives.cli.runs import runs
from ninelives.cli.serve import serve
from ninelives.cli.sessions import sessions
from ninelives.cli.shared import HelpfulGroup
from ninelives.cli.status import status
from ninelives.cli.store import store
from ninelives.cli.trust import trust
from ninelives.cli.worker import worker


@click.group(cls=HelpfulGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ninelives")
@click.pass_context
def main(ctx: click.Context) -> None:
    """The agent server you can kill -9.

    Durable agent runs behind the OpenAI-compatible APIs (Chat Completions, Responses, Conversations, Runs) and
    Anthropic's Messages."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


for _command in (
    serve,
    worker,
    restart,
    chat,
    ask,
    status,
    runs,
    sessions,
    approvals,
    keys,
    audit,
    config,
    trust,
    doctor,
    drill,
    store,
    migrate,
    import_hermes,
    service,
    completion,
):
    main.add_command(_command)
