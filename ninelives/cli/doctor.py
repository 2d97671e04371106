"""ninelives doctor. Owns: the checks of configuration, data directory, database, model, MCP servers and sandbox. The
sandbox is tested by trying to break out of it. Refuses to know: how any of them works."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

import click
from msgspec import Struct

from ninelives.app.errors import ConfigError
from ninelives.app.settings import LoadedSettings, load
from ninelives.cli.shared import config_option, json_option
from ninelives.observe.log import printable


class Check(Struct, frozen=True):
    """The result of one check."""

    name: str
    ok: bool
    detail: str


@click.command(short_help="Check this machine and its configuration.")
@config_option
@json_option
def doctor(config: str | None, as_json: bool) -> None:
    """Check this machine: configuration, data directory, database, model, MCP servers and sandbox.

    Exit code: 0 when all checks pass, 1 otherwise."""
    checks = asyncio.run(_all(config))
    if as_json:
        click.echo(json.dumps([{"name": c.name, "ok": c.ok, "detail": c.detail} for c in checks]))
    else:
        for check in checks:
            click.echo(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:42}  {check.detail}")
    raise SystemExit(0 if all(check.ok for check in checks) else 1)


async def _all(config: str | None) -> list[Check]:
    try:
        loaded = load(Path(config) if config else None, os.environ, {})
    except ConfigError as error:
        return [Check("configuration", False, str(error))]
    file = f"{loaded.file}, " if loaded.file else ""
    says = f"{file}all options are valid" + (f". {loaded.ignored}" if loaded.ignored else "")
    checks = [Check("configuration", True, printable(says)), _data(loaded)]
    if loaded.settings.store.shared:
        checks.append(await _database(loaded))
    checks += [await _model(loaded), *await _mcp(loaded), *await _sandbox(loaded)]
    return checks


def _data(loaded: LoadedSettings) -> Check:
    path = loaded.settings.server.data_path
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=path):
            free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
    except OSError as error:
        return Check("data directory", False, f"{path} cannot be written: {error.strerror}. Choose another.")
    return Check("data directory", True, f"{path}, {free // 2**20} MiB free")


async def _database(loaded: LoadedSettings) -> Check:
    from ninelives.app.known_secrets import without_secrets
    from ninelives.app.store import describe_postgres
    from ninelives.journal.values import StoreUnavailable

    store = loaded.settings.store
    try:
        return Check("database", True, await describe_postgres(loaded.settings))
    except (ConfigError, StoreUnavailable) as error:
        return Check("database", False, without_secrets(str(error), store.url, store.direct_url))


async def _model(loaded: LoadedSettings) -> Check:
    from ninelives.app.agents import choose_model
    from ninelives.models.find import find_model

    found = None if loaded.settings.model.url else await find_model(os.environ)
    try:
        model, spoken = choose_model(loaded.settings, found)
    except ConfigError as error:
        return Check("model", False, str(error))
    reachable = await model.probe()
    await model.close()
    return Check("model", reachable, spoken if reachable else f"{spoken} does not answer. Check model.url")


async def _mcp(loaded: LoadedSettings) -> list[Check]:
    """Connect to each MCP server once, as a server would."""
    from ninelives.app.agents import mcp_servers
    from ninelives.app.known_secrets import known_secrets
    from ninelives.observe.log import Secrets
    from ninelives.tools.decorator import ToolsError
    from ninelives.tools.mcp.link import CONNECT_S
    from ninelives.tools.mcp.tools import McpTools
    from ninelives.tools.threads import Threads

    threads = Threads(1)
    try:
        mcp = McpTools(mcp_servers(loaded.settings), threads)
        await mcp.start()
    except (ConfigError, ToolsError) as error:
        return [Check("mcp", False, str(error))]
    try:
        await mcp.wait_for_servers(CONNECT_S + 5)
        found = mcp.status()
    finally:
        await mcp.close()
        threads.close()
    mask = Secrets(known_secrets(loaded.settings, os.environ)).mask
    return [Check(f"mcp: {each.name}", each.usable, printable(mask(each.words))) for each in found]


async def _sandbox(loaded: LoadedSettings) -> list[Check]:
    from ninelives.app.agents import choose_sandbox
    from ninelives.tools.base import Place
    from ninelives.tools.sandbox.proof import prove

    sandbox = choose_sandbox(loaded.settings, os.environ)
    top = loaded.settings.server.data_path / "workspaces"
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=top) as folder:
        workspace, state = Path(folder) / "workspace", Path(folder) / "state"
        for made in (workspace, state):
            made.mkdir(mode=0o700)
        findings = await prove(sandbox, Place("doctor", "doctor", "call_doctor", workspace, state))
    sandbox.close()
    checks = [Check("sandbox", sandbox.kind != "refused", f"{sandbox.kind}: {sandbox.says}")]
    return checks + [Check(f"sandbox: {f.name}", f.ok, f.detail) for f in findings if f.name != "sandbox"]
