"""From the configuration of hermes-agent to ninelives.toml. Owns: which setting becomes which option, and the text of
the file. Refuses to know: how either is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ninelives.app.hermes.reading import HermesData

ENVIRONMENT = {
    "API_SERVER_HOST": "server.host",
    "API_SERVER_PORT": "server.port",
    "API_SERVER_KEY": "server.key",
    "API_SERVER_CORS_ORIGINS": "server.cors_origins",
    "API_SERVER_MODEL_NAME": "server.model_name",
    "OPENAI_BASE_URL": "model.url",
    "OPENAI_API_KEY": "model.api_key",
    "OPENROUTER_API_KEY": "model.api_key",
    "HERMES_API_TIMEOUT": "model.total_s",
    "HERMES_STREAM_READ_TIMEOUT": "model.stall_s",
    "HERMES_MAX_ITERATIONS": "agent.max_rounds",
    "TAVILY_API_KEY": "web.tavily_key",
    "SEARXNG_URL": "web.searxng_url",
}
"""Variables of .env. A later one wins only where no earlier one set its option."""
API_SERVER = {
    "host": "server.host",
    "port": "server.port",
    "key": "server.key",
    "cors_origins": "server.cors_origins",
    "model_name": "server.model_name",
}
PROVIDERS = {"openrouter": "https://openrouter.ai/api/v1", "openai": "https://api.openai.com/v1"}
SECRETS = ("server.key", "model.api_key", "web.tavily_key")
NUMBERS = {"server.port": int, "agent.max_rounds": int, "model.total_s": float, "model.stall_s": float}
UNKNOWN_MODEL = "server.unknown_model"


class NewConfig(Struct):
    """Options for ninelives.toml, by dotted name, and what was left out."""

    options: dict[str, Any] = {}
    mcp: dict[str, dict[str, Any]] = {}
    left: list[str] = []

    def take(self, option: str, value: Any, where: str) -> None:
        """Set an option, unless it is set or the value is empty."""
        if value in (None, "", [], {}) or option in self.options:
            return
        if option in NUMBERS:
            try:
                value = NUMBERS[option](value)
            except (TypeError, ValueError):
                self.left.append(f"{where}: {value!r} is not a number")
                return
        if option == "server.cors_origins":
            parts = value.split(",") if isinstance(value, str) else value
            value = [str(each).strip() for each in parts if str(each).strip()]
        self.options[option] = value


def converted(data: HermesData) -> NewConfig:
    """What becomes of config.yaml and .env. The environment wins, as it does in hermes-agent."""
    new = NewConfig()
    for name, option in ENVIRONMENT.items():
        new.take(option, data.env.get(name), name)
    config = dict(data.config)
    _model(config.pop("model", None), new)
    agent = _mapping(config.pop("agent", None))
    new.take("agent.max_rounds", agent.pop("max_turns", None), "agent.max_turns")
    new.take("agent.system_prompt", agent.pop("system_prompt", None), "agent.system_prompt")
    for name in ("platforms", "gateway"):
        _api_server(_mapping(config.pop(name, None)), new)
    _mcp(_mapping(config.pop("mcp_servers", None)), new)
    config.pop("_config_version", None)
    new.left += [f"config.yaml: agent.{name}" for name in sorted(agent)]
    new.left += [f"config.yaml: {name}" for name in sorted(map(str, config))]
    new.left += [f".env: {name}" for name in sorted(data.env.keys() - ENVIRONMENT.keys())]
    if new.options or new.mcp:
        new.options[UNKNOWN_MODEL] = "default"  # hermes-agent answers whatever model is named
    return new


def _mapping(found: object) -> dict[str, Any]:
    return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}


def _model(found: object, new: NewConfig) -> None:
    if isinstance(found, str):
        new.take("model.name", found, "model")
        return
    model = _mapping(found)
    new.take("model.name", model.pop("default", None) or model.pop("name", None), "model.default")
    provider = str(model.pop("provider", "") or "")
    new.take("model.url", model.pop("base_url", None) or PROVIDERS.get(provider), "model.base_url")
    new.take("model.api_key", model.pop("api_key", None), "model.api_key")
    context = model.pop("context_length", None)
    new.take("agent.context_tokens", context if isinstance(context, int) else None, "model.context_length")
    if provider and "model.url" not in new.options:
        new.left.append(f"config.yaml: model.provider {provider}: set model.url to an OpenAI-compatible URL of it")
    new.left += [f"config.yaml: model.{name}" for name in sorted(model)]


def _api_server(platforms: dict[str, Any], new: NewConfig) -> None:
    server = _mapping(_mapping(platforms.get("platforms", platforms)).get("api_server"))
    for found in (server, _mapping(server.get("extra"))):
        for name, option in API_SERVER.items():
            new.take(option, found.get(name), f"api_server.{name}")
    others = sorted(platforms.keys() - {"api_server", "platforms"})
    new.left += [f"config.yaml: platform {name}" for name in others]


def _mcp(servers: dict[str, Any], new: NewConfig) -> None:
    for name, server in servers.items():
        known = {each: value for each, value in _mapping(server).items() if each in ("command", "args", "env", "url")}
        if "command" in known or "url" in known:
            new.mcp[name] = known
        else:
            new.left.append(f"config.yaml: mcp_servers.{name}")


def as_toml(new: NewConfig) -> str:
    """The text of a ninelives.toml."""
    sections: dict[str, list[str]] = {}
    for option, value in new.options.items():
        section, _, name = option.partition(".")
        sections.setdefault(section, []).append(f"{name} = {_value(value)}")
    parts = ["# Made by ninelives import-hermes. It holds keys: keep it to yourself."]
    parts += [f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items()]
    for name, server in new.mcp.items():
        parts.append(f"[mcp.{_value(name)}]\n" + "\n".join(f"{each} = {_value(v)}" for each, v in server.items()))
    return "\n\n".join(parts) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(str(name))} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
