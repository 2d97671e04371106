"""Ninelives: the agent server you can kill -9. Owns: the public Python API (docs/api/python.md). A name is imported
when it is first used, so `import ninelives` loads no other module. Refuses to know: what a name does."""

__version__ = "0.2.0.dev0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ninelives.agents.base import Agent as Agent
    from ninelives.agents.base import Turn as Turn
    from ninelives.app.create import create_app as create_app
    from ninelives.app.errors import StartError as StartError
    from ninelives.app.serve import serve as serve
    from ninelives.app.settings import Settings as Settings
    from ninelives.core import events as events
    from ninelives.core.errors import AgentError as AgentError
    from ninelives.core.errors import NinelivesError as NinelivesError
    from ninelives.core.events import Effect as Effect
    from ninelives.journal.base import Store as Store
    from ninelives.models.base import Model as Model
    from ninelives.tools.base import Place as Place
    from ninelives.tools.decorator import tool as tool

_PLACES = {
    "Agent": "agents.base",
    "AgentError": "core.errors",
    "Effect": "core.events",
    "Model": "models.base",
    "NinelivesError": "core.errors",
    "Place": "tools.base",
    "Settings": "app.settings",
    "StartError": "app.errors",
    "Store": "journal.base",
    "Turn": "agents.base",
    "create_app": "app.create",
    "events": "core",
    "serve": "app.serve",
    "tool": "tools.decorator",
}
"""The module of each public name."""

__all__ = [
    "Agent",
    "AgentError",
    "Effect",
    "Model",
    "NinelivesError",
    "Place",
    "Settings",
    "StartError",
    "Store",
    "Turn",
    "__version__",
    "create_app",
    "events",
    "serve",
    "tool",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'ninelives' has no attribute {name!r}")
    from importlib import import_module

    place = f"ninelives.{_PLACES[name]}"
    value = import_module(f"{place}.events") if name == "events" else getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
