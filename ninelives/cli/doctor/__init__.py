"""ninelives doctor. Owns: the command, the order of the checks and how results are shown. Refuses to know: what is
checked (machine.py, parts.py)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import click

from ninelives.app.errors import ConfigError
from ninelives.app.settings import LoadedSettings, load
from ninelives.cli.doctor.machine import Check, clock, data_directory, port
from ninelives.cli.shared import config_option, json_option
from ninelives.observe.log import Secrets, printable

_WIDE = 42
_COLOURS = {True: "green", False: "red"}


@click.command(short_help="Check this machine and its configuration.")
@config_option
@click.option("--port", "given_port", type=int, help="Check this port instead of the configured one.")
@json_option
def doctor(config: str | None, given_port: int | None, as_json: bool) -> None:
    """Check this machine: configuration, data directory, disk, port, clock, database, model, tools, MCP servers and
    sandbox.

    The model is asked one real question. Exit code: 0 when all checks pass, 1 otherwise."""
    flags: dict[str, object] = {"server.port": given_port} if given_port is not None else {}
    try:
        loaded = load(Path(config) if config else None, os.environ, flags)
    except ConfigError as error:
        checks = [Check("configuration", False, printable(str(error)))]
    else:
        checks = asyncio.run(_all(loaded))
    if as_json:
        click.echo(json.dumps([_shown(check) for check in checks]))
    else:
        _print(checks)
    raise SystemExit(0 if all(check.ok for check in checks) else 1)


def _shown(check: Check) -> dict[str, object]:
    return {"name": check.name, "ok": check.ok, "detail": check.detail, "remedy": check.remedy}


def _print(checks: list[Check]) -> None:
    for check in checks:
        mark = click.style("ok  " if check.ok else "FAIL", fg=_COLOURS[check.ok])
        click.echo(f"{mark}  {check.name:{_WIDE}}  {check.detail}")
        if check.remedy:
            click.echo(f"      {'':{_WIDE}}  {click.style('remedy: ', bold=True)}{check.remedy}")
    if bad := sum(not check.ok for check in checks):
        click.echo(f"{bad} of {len(checks)} checks failed.")


async def _all(loaded: LoadedSettings) -> list[Check]:
    from ninelives.app.known_secrets import known_secrets
    from ninelives.cli.doctor import parts

    file = f"{loaded.file}, " if loaded.file else ""
    says = f"{file}all options are valid" + (f". {loaded.ignored}" if loaded.ignored else "")
    checks = [Check("configuration", True, says), data_directory(loaded), clock(loaded), await port(loaded)]
    if loaded.settings.store.shared:
        checks.append(await parts.database(loaded))
    checks += [await parts.model(loaded), *parts.own_tools(loaded), *await parts.mcp(loaded)]
    checks += await parts.sandbox(loaded)
    mask = Secrets(known_secrets(loaded.settings, os.environ)).mask
    return [Check(c.name, c.ok, printable(mask(c.detail)), printable(mask(c.remedy))) for c in checks]
