"""Extensions: agents and models from other packages or from the program that embeds the server. Owns: the entry point
groups `ninelives.agents` and `ninelives.models`, and errors that name the package at fault. Tools have the group
`ninelives.tools`, which tools/decorator.py reads. Refuses to know: what an extension does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isfunction, signature
from traceback import extract_tb
from typing import cast

from msgspec import Struct

from ninelives.agents.adapters import NotAnAgent, Surroundings, adapted
from ninelives.agents.base import Agent
from ninelives.app.errors import ConfigError
from ninelives.models.base import Model
from ninelives.models.openai import Upstream
from ninelives.tools.decorator import imported
from ninelives.tools.entry_points import entry_points_of

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
    agents: Mapping[str, object] = {}
    """Agents by model name, or what can be one (docs/own-agent.md). They win over installed agents of the same name."""
    model: Model | None = None
    """The model of the default profile. None: the one that the settings name."""


NO_EXTENSIONS = Extensions()


def installed_agents() -> list[str]:
    """The names of agents that installed packages have."""
    return [point.name for point in entry_points_of(AGENTS)]


def own_agent(name: str, surroundings: Surroundings) -> Agent:
    """The agent that `module:object` or `file.py:object` names. Raises ConfigError."""
    if ":" not in name:
        raise ConfigError(f"The agent {name!r} names no object. Write {name}:NAME, with the name of the agent in it.")
    try:
        return adapted(imported(name), surroundings)
    except NotAnAgent as error:
        raise ConfigError(f"The agent {name} {error}.") from error
    except Exception as error:  # code of the user can raise anything when it is imported
        hint, words = _HINTS.get(type(error), ""), f"{type(error).__name__}: {error}"
        raise ConfigError(f"The agent {name} cannot be loaded: {words}{_place_of(error)}.{hint}") from error


def _place_of(error: Exception) -> str:
    """The line of the user's code that raised an error; empty where the error names it, or where it is not theirs."""
    found = extract_tb(error.__traceback__)
    frames = [frame for frame in found if frame.name == "<module>" and "-packages" not in frame.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def extension_agents(extensions: Extensions, surroundings: Surroundings) -> dict[str, Agent]:
    """The agents of the group `ninelives.agents` and those of the program, by name. Raises ConfigError."""
    found = {point.name: _as_agent(point, _loaded(point), surroundings) for point in entry_points_of(AGENTS)}
    for name, given in extensions.agents.items():
        found[name] = _adapted(f"the agent {name}", given, surroundings)
    return found


def model_scheme(url: str) -> str:
    """The entry point that model.url names: `bedrock` for `bedrock:` and `bedrock:eu`; empty for http and https."""
    scheme, colon, _ = url.partition(":")
    return "" if not colon or scheme in HTTP else scheme


def installed_model(upstream: Upstream) -> Model:
    """The model that the entry point named by `upstream.url` makes. Raises ConfigError."""
    name = model_scheme(upstream.url)
    known = {point.name: point for point in entry_points_of(MODELS)}
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


def _origin(point: EntryPoint) -> str:
    return f"the entry point {point.name} = {point.value} ({point.group})"


def _loaded(point: EntryPoint) -> object:
    try:
        return cast(object, point.load())
    except Exception as error:  # code of another package can raise anything when it is imported
        raise ConfigError(f"{_origin(point)} cannot be loaded: {type(error).__name__}: {error}") from error


def _as_agent(point: EntryPoint, found: object, surroundings: Surroundings) -> Agent:
    """An agent, or what a class or a function without parameters makes."""
    made = found
    if isinstance(found, type) or _is_factory(found):
        try:
            made = cast(Callable[[], object], found)()
        except Exception as error:  # code of another package can raise anything
            raise ConfigError(f"{_origin(point)} failed: {type(error).__name__}: {error}") from error
    return _adapted(_origin(point), made, surroundings)


def _is_factory(found: object) -> bool:
    """A function that needs no argument. An agent needs at least the question."""
    if not isfunction(found) or iscoroutinefunction(found) or isasyncgenfunction(found):
        return False
    optional = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = signature(found).parameters.values()
    return all(each.kind in optional or each.default is not Parameter.empty for each in parameters)


def _adapted(origin: str, found: object, surroundings: Surroundings) -> Agent:
    try:
        return adapted(found, surroundings)
    except NotAnAgent as error:
        raise ConfigError(f"{origin} {error}.") from error
