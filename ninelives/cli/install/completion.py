"""ninelives completion. Owns: printing the completion script of a shell. Refuses to know: the commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "ninelives", "_NINELIVES_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: ninelives completion bash > ~/.local/share/bash-completion/completions/ninelives
    zsh:  ninelives completion zsh > a file `_ninelives` in a folder of $fpath
    fish: ninelives completion fish > ~/.config/fish/completions/ninelives.fish"""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"This version of click has no completion for {shell}.")
    click.echo(found(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
