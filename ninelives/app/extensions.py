"""Extensions: agents and models from other packages or from the program that embeds the server. Owns: the entry point
groups `ninelives.agents` and `ninelives.models`, and errors that name the package at fault. Tools have the group
`ninelives.tools`, which tools/decorator.py reads. Refuses to know: what an extension does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from msgspec import Struct

from ninelives.agents.adapters import NotAnAgent, Surroundings, adapted
from ninelives.agents.base import Agent
from ninelives.app.errors import ConfigError
from ninelives.models.base import Model
from ninelives.models.openai import Upstream
from ninelives.tools.decorator import imported

AGENTS = "ninelives.agents"
MODELS = "ninelives.models"
HTTP = ("http", "https")
_HINTS: dict[type[BaseException], str] = {
    ModuleNotFoundError: " Start the server in the folder of the module, or install its package.",
    AttributeError: " Check the name after the colon.",
}

ModelFactory = Callable[[Upstream], Model]


class Extensions(Struct, frozen=True):
    """What a program passes to create_app() or serve() besides the settings."""

    tools: Sequence[object] = ()
    """Functions with @tool, or Tool objects."""
    agents: Mapping[str, Agent] = {}
    """Agents by model name. They win over installed agents of the same name."""
    model: Model | None = None
    """The model of the default profile. None: the one that the settings name."""


NO_EXTENSIONS = Extensions()


def own_agent(name: str, surroundings: Surroundings) -> Agent:
    """The agent that `module:object` or `file.py:object` names. Raises ConfigError."""
    if ":" not in name:
        raise ConfigError(f"The agent {name!r} names no object. Write {name}:NAME, with the name of the agent in it.")
    try:
        return adapted(imported(name), surroundings)
    except NotAnAgent as error:
        raise ConfigError(f"The agent {name} {error}.") from error
    except Exception as error:  # code of the user can raise anything when it is imported
        hint = _HINTS.get(type(error), "")
        raise ConfigError(f"The agent {name} cannot be loaded: {type(error).__name__}: {error}.{hint}") from error


def installed_agents() -> dict[str, Agent]:
    """The agents of the group `ninelives.agents`, by name."""
    return {point.name: _as_agent(point, _loaded(point)) for point in _points(AGENTS)}


def model_scheme(url: str) -> str:
    """The entry point that model.url names: `bedrock` for `bedrock:` and `bedrock:eu`; empty for http and https."""
    scheme, colon, _ = url.partition(":")
    return "" if not colon or scheme in HTTP else scheme


def installed_model(upstream: Upstream) -> Model:
    """The model that the entry point named by `upstream.url` makes. Raises ConfigError."""
    name = model_scheme(upstream.url)
    known = {point.name: point for point in _points(MODELS)}
    if name not in known:
        raise ConfigError(
            f"model.url {upstream.url!r} names the model extension {name!r}, which is not installed. "
            f"Installed: {', '.join(known) or 'none'}. For an OpenAI-compatible server write http://... or https://..."
        )
    origin, factory = _origin(known[name]), _loaded(known[name])
    if not callable(factory):
        raise ConfigError(f"{origin} is {type(factory).__name__}, not a function that makes a Model.")
    try:
        model = cast(ModelFactory, factory)(upstream)
    except Exception as error:  # code of another package can raise anything
        raise ConfigError(f"{origin} failed: {type(error).__name__}: {error}") from error
    if not hasattr(model, "stream"):
        raise ConfigError(f"{origin} made {type(model).__name__}, which is not a Model: it has no stream().")
    return model


def _points(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda point: point.name)


def _origin(point: EntryPoint) -> str:
    return f"the entry point {point.name} = {point.value} ({point.group})"


def _loaded(point: EntryPoint) -> object:
    try:
        return cast(object, point.load())
    except Exception as error:  # code of another package can raise anything when it is imported
        raise ConfigError(f"{_origin(point)} cannot be loaded: {type(error).__name__}: {error}") from error


def _as_agent(point: EntryPoint, found: object) -> Agent:
    """An agent, or what a class or a function without parameters makes."""
    if isinstance(found, type) or (callable(found) and not _is_agent(found)):
        try:
            found = found()
        except Exception as error:  # code of another package can raise anything
            raise ConfigError(f"{_origin(point)} failed: {type(error).__name__}: {error}") from error
    if not _is_agent(found):
        raise ConfigError(
            f"{_origin(point)} is {type(found).__name__}, which is not an Agent: it needs run(), end_leftovers() and "
            "resumable (docs/api/python.md)."
        )
    return cast(Agent, found)


def _is_agent(found: object) -> bool:
    return all(hasattr(found, name) for name in ("run", "end_leftovers", "resumable"))
