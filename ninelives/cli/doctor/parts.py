"""What the server is made of. Owns: the checks of database, model, tools, MCP servers and sandbox. The model is asked a
real question, modules are imported, MCP servers are started, and the sandbox is tested by trying to break out of it.
Refuses to know: how any of them works, and how results are shown."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ninelives.app.errors import ConfigError
from ninelives.app.settings import LoadedSettings
from ninelives.cli.doctor.machine import Check


async def database(loaded: LoadedSettings) -> Check:
    """Does PostgreSQL answer, and can it be used?"""
    from ninelives.app.known_secrets import without_secrets
    from ninelives.app.store import describe_postgres
    from ninelives.journal.values import StoreUnavailable

    store = loaded.settings.store
    try:
        return Check("database", True, await describe_postgres(loaded.settings))
    except (ConfigError, StoreUnavailable) as error:
        return Check("database", False, without_secrets(str(error), store.url, store.direct_url))


async def model(loaded: LoadedSettings) -> Check:
    """Make one real call."""
    from ninelives.app.agents import choose_model
    from ninelives.models.diagnosis import diagnose

    try:
        chosen, spoken = await choose_model(loaded.settings, os.environ)
    except ConfigError as error:
        return Check("model", False, str(error), "Correct model.url.")
    try:
        found = await diagnose(chosen)
    finally:
        await chosen.close()
    if not found.ok:
        return Check("model", False, f"{spoken}: {found.detail}", found.remedy)
    demo = "; name a real one with model.url (--model-url)" if "demo model" in spoken else ""
    return Check("model", True, f"{spoken}: {found.detail}{demo}")


def own_tools(loaded: LoadedSettings) -> list[Check]:
    """Import `tools.modules` and the tools of installed packages, as a start does."""
    from ninelives.app.build import import_from_config_folder
    from ninelives.tools.base import Threads
    from ninelives.tools.decorator import ToolsError, load_tools

    import_from_config_folder(loaded)
    modules, threads, checks = loaded.settings.tools.modules, Threads(1), list[Check]()
    folder = loaded.file.parent.absolute() if loaded.file else None
    try:
        for name in modules or ("",):
            try:
                tools = load_tools([name] if name else [], threads)
            except ToolsError as error:
                where = f", put its file into {folder}" if folder else ""
                remedy = f"Correct the module{where}, install its package, or remove it from tools.modules."
                checks.append(Check(f"tools: {name or 'installed packages'}", False, str(error), remedy))
                continue
            if tools:
                names = ", ".join(tool.name for tool in tools)
                checks.append(Check(f"tools: {name or 'installed packages'}", True, names))
    finally:
        threads.close()
    return checks


async def mcp(loaded: LoadedSettings) -> list[Check]:
    """Connect to each MCP server once, as a server would."""
    from ninelives.app.agents import mcp_servers
    from ninelives.tools.base import Threads
    from ninelives.tools.decorator import ToolsError
    from ninelives.tools.mcp.link import CONNECT_S
    from ninelives.tools.mcp.tools import McpTools

    threads = Threads(1)
    try:
        found_tools = McpTools(mcp_servers(loaded.settings), threads)
        await found_tools.start()
    except (ConfigError, ToolsError) as error:
        return [Check("mcp", False, str(error))]
    try:
        await found_tools.wait_for_servers(CONNECT_S + 5)
        found = found_tools.status()
    finally:
        await found_tools.close()
        threads.close()
    remedy = "Run its command by hand to see why it ends, then correct [mcp.{}] in the configuration file."
    return [
        Check(f"mcp: {each.name}", each.usable, each.words, "" if each.usable else remedy.format(each.name))
        for each in found
    ]


async def sandbox(loaded: LoadedSettings) -> list[Check]:
    """Try to break out of it."""
    from ninelives.app.agents import choose_sandbox
    from ninelives.tools.base import Place
    from ninelives.tools.sandbox.proof import prove

    chosen = choose_sandbox(loaded.settings, os.environ)
    top = loaded.settings.server.data_path / "workspaces"
    try:
        top.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=top) as folder:
            workspace, state = Path(folder) / "workspace", Path(folder) / "state"
            for made in (workspace, state):
                made.mkdir(mode=0o700)
            findings = await prove(chosen, Place("doctor", "doctor", "call_doctor", workspace, state))
    except OSError as error:
        why = f"it could not be tried in {top}: {error.strerror}"
        return [Check("sandbox", False, why, "Make the data directory usable first.")]
    finally:
        chosen.close()
    usable = chosen.kind != "refused"
    remedy = "" if usable else "Install bubblewrap (`apt-get install bubblewrap`), or set tools.sandbox (--sandbox)."
    checks = [Check("sandbox", usable, f"{chosen.kind}: {chosen.says}", remedy)]
    return checks + [Check(f"sandbox: {f.name}", f.ok, f.detail) for f in findings if f.name != "sandbox"]
