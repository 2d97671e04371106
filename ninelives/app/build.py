"""Builds a server that runs. Owns: the steps of a start that `serve`, `worker` and create_app() share (data directory,
key, model, assembly, start), and errors that say what to do. Refuses to know: sockets, signals and the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from secrets import token_urlsafe

from msgspec import Struct

from ninelives.agents.adapters import Surroundings
from ninelives.agents.loop import LoopSettings
from ninelives.app.agents import choose_model
from ninelives.app.assemble import Assembled, assemble
from ninelives.app.errors import ConfigError, StartError
from ninelives.app.extensions import NO_EXTENSIONS, Extensions, own_agent
from ninelives.app.keys import MAKE_KEY, ensure_key
from ninelives.app.settings import LoadedSettings
from ninelives.app.store import ProcessRole
from ninelives.core.errors import Damaged
from ninelives.journal.sqlite.lock import DirectoryHeld
from ninelives.journal.values import NewerStore, StoreUnavailable
from ninelives.models.base import Model
from ninelives.models.net.kept import ConnectionHolder
from ninelives.models.scripted import ScriptedModel
from ninelives.observe.log import Log
from ninelives.tools.base import Threads
from ninelives.tools.decorator import ToolsError, load_tools


class BuiltServer(Struct, frozen=True):
    """A server that was started, and what its start found."""

    assembled: Assembled
    key: str
    key_is_new: bool
    model: str
    """One phrase that describes the model of the default profile, or names its agent."""


async def build_server(
    loaded: LoadedSettings, log: Log, role: ProcessRole, extensions: Extensions = NO_EXTENSIONS
) -> BuiltServer:
    """Build and start a server. Raises StartError."""
    settings = loaded.settings
    data = settings.server.data_path
    refuse_left_behind(loaded)
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        import_from_config_folder(loaded)
        key, key_is_new = key_for(loaded, log, serves=role.serves)
        model, phrase = await _model(loaded, extensions, role.connections)
        built = await assemble(loaded, key, log, model, role, extensions)
        try:
            await built.start(role.adopted)
        except BaseException:
            await built.stop()
            raise
    except (DirectoryHeld, NewerStore) as error:
        raise StartError(str(error)) from error
    except Damaged as error:
        raise StartError(
            f"the store in {data} is damaged: {error}. It was not changed. Run `ninelives store check` for details. "
            "Then restore a backup with `ninelives store restore BACKUP --replace`, or start with an empty store after "
            "`ninelives store set-aside`."
        ) from error
    except (OSError, StoreUnavailable) as error:
        if isinstance(error, StoreUnavailable) and settings.store.shared:
            raise StartError(f"the database cannot be used: {error}") from error
        why = "it is a file" if isinstance(error, FileExistsError) else error
        raise StartError(f"the data directory {data} cannot be used: {why}. Choose another with --data-dir.") from error
    return BuiltServer(built, key, key_is_new, phrase)


async def _model(
    loaded: LoadedSettings, extensions: Extensions, connections: ConnectionHolder | None
) -> tuple[Model, str]:
    if extensions.model is not None:
        return extensions.model, f"{extensions.model.name}, given by the program"
    model, phrase = await choose_model(loaded.settings, os.environ, connections)
    own = loaded.settings.agent.object
    return model, f"your agent {own}" if own else phrase


def load_own_code(loaded: LoadedSettings) -> None:
    """Import the agents and tools that the settings name, and check that they can be served. Raises ConfigError."""
    import_from_config_folder(loaded)
    settings = loaded.settings
    surroundings = Surroundings(ScriptedModel(), LoopSettings())
    for name in settings.own_agents:
        own_agent(name, surroundings)
    try:
        load_tools(settings.tools.modules, Threads())
    except ToolsError as error:
        raise ConfigError(str(error)) from error


def import_from_config_folder(loaded: LoadedSettings) -> None:
    """Let `tools.modules` and agents name modules that are beside the configuration file, as a Python script may import
    those beside it."""
    if loaded.file is not None and (loaded.settings.tools.modules or loaded.settings.own_agents):
        folder = str(loaded.file.parent.absolute())
        if folder not in sys.path:
            sys.path.insert(0, folder)


def key_for(loaded: LoadedSettings, log: Log, *, serves: bool) -> tuple[str, bool]:
    """The admin key, and whether it is new. No key is made for one replica of several: the others would refuse it."""
    server = loaded.settings.server
    if not loaded.settings.store.shared:
        return ensure_key(server.key, server.data_path)
    if server.key is not None:
        return server.key, False
    if not serves:
        return token_urlsafe(32), False  # a worker has no route that asks for a key, so nobody needs to know it
    if not (server.data_path / "key").exists():
        raise ConfigError(f"all replicas of one database need the same key. Set API_SERVER_KEY on each. {MAKE_KEY}")
    log.warning("key_of_this_machine", note="give the same to the other replicas (API_SERVER_KEY), or they refuse it")
    return ensure_key(None, server.data_path)


def refuse_left_behind(loaded: LoadedSettings) -> None:
    """Raise StartError if the data of version 0.1.0 is at its default place and there is none at the new one. A start
    would create an empty store there, and the old runs, key and workspaces would seem to be gone."""
    data = loaded.settings.server.data_path
    old = Path("~/.local/share/holdfast").expanduser()
    used = any((data / name).exists() for name in ("ninelives.db", "holdfast.db"))
    if loaded.origins["server.data_dir"] != "default" or used or not (old / "holdfast.db").exists():
        return
    spare = data.with_name("ninelives-before")
    aside = f"mv {data} {spare} && " if data.exists() else ""
    raise StartError(
        f"{old} has the data of version 0.1.0, when this server was called Holdfast. To keep it, run: "
        f"{aside}mv {old} {data}   To start with an empty store instead, run: ninelives serve --data-dir {data}"
    )
