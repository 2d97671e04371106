"""The command line: one file per command. Owns: the list of commands. Each is imported when it is asked for: all of
them take 10 ms. Refuses to know: what a command does."""

from __future__ import annotations

import os
from importlib import import_module

import click

from ninelives import __version__
from ninelives.cli.shared import HelpfulGroup

COMMANDS = {
    "serve": "serve:serve",
    "worker": "worker:worker",
    "restart": "restart:restart",
    "chat": "chat:chat",
    "ask": "chat:ask_once",
    "status": "status:status",
    "runs": "runs:runs",
    "sessions": "sessions:sessions",
    "approvals": "approvals:approvals",
    "keys": "admin.keys:keys",
    "audit": "admin.audit:audit",
    "config": "config:config",
    "trust": "trust:trust",
    "doctor": "doctor:doctor",
    "drill": "drill:drill",
    "store": "store:store",
    "migrate": "migrate:migrate",
    "import-hermes": "import_hermes:import_hermes",
    "service": "install.service:service",
    "completion": "install.completion:completion",
}
"""The module of each command, and its name there."""


class CommandGroup(HelpfulGroup):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click.Group."""
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click.Group."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(f"ninelives.cli.{module}"), name)
        return command


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ninelives")
@click.pass_context
def main(ctx: click.Context) -> None:
    """The agent server you can kill -9.

    Durable agent runs behind the OpenAI-compatible APIs (Chat Completions, Responses, Conversations, Runs) and
    Anthropic's Messages."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
