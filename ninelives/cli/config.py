"""ninelives config. Owns: showing the settings. Refuses to know: what they are used for."""

from __future__ import annotations

import click

from ninelives.cli.shared import HelpfulGroup, config_option, json_option, settings_from


@click.group(cls=HelpfulGroup)
def config() -> None:
    """Show the configuration."""


@config.command("show")
@config_option
@json_option
def config_show(config: str | None, as_json: bool) -> None:
    """Show every option, its value and where the value came from."""
    import msgspec

    rows = settings_from(config).describe()
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    width = max(len(row.key) for row in rows)
    for row in rows:
        click.echo(f"{row.key:{width}}  {row.value or '-':30}  {row.origin:12}  {row.doc}")
