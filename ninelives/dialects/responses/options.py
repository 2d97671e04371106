"""The options of a Responses request. Owns: which options reach the upstream, their checks, and how a response shows
them. A response shows what was done: tools that this server does not have are left out. Refuses to know: the input, and
what an answer looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from ninelives.core.errors import ClientError
from ninelives.dialects import client_tools
from ninelives.dialects.asking import Context

ECHOED = (
    "instructions",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)
UPSTREAM = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "prompt_cache_key", "user")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
Choice = str | dict[str, object] | None
MAX_ALLOWED = 128


class Options(Protocol):
    """The part of a request that this module reads."""

    instructions: str | None
    tools: list[dict[str, object]] | None
    tool_choice: str | dict[str, object] | None
    parallel_tool_calls: bool | None
    text: dict[str, object] | None
    reasoning: dict[str, object] | None
    truncation: Literal["auto", "disabled"] | None


def sampling(request: Options) -> dict[str, object]:
    """The options for the upstream. Log probabilities are left out: no frame would show them."""
    options = {name: value for name in UPSTREAM if (value := getattr(request, name)) is not None}
    text = request.text or {}
    if (form := _response_format(text.get("format"))) is not None:
        options["response_format"] = form
    if (verbosity := _one_of(text, "verbosity", VERBOSITIES, "text")) is not None:
        options["verbosity"] = verbosity
    reasoning = request.reasoning or {}
    _one_of(reasoning, "summary", SUMMARIES, "reasoning")
    if (effort := _one_of(reasoning, "effort", EFFORTS, "reasoning")) is not None:
        options["reasoning_effort"] = effort
    if request.parallel_tool_calls is False:
        options["parallel_tool_calls"] = False
    return options


def _one_of(given: Mapping[str, object], name: str, known: tuple[str, ...], param: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if value not in known:
        raise ClientError("invalid_value", f"{param}.{name} must be one of {', '.join(known)}.", param=param)
    return str(value)


def _response_format(form: object) -> dict[str, object] | None:
    """text.format in the form of Chat Completions; plain text is nothing."""
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case {"type": "json_schema", "name": str(name), "schema": dict(schema), **more}:
            extra: dict[str, object] = {field: more[field] for field in ("description", "strict") if field in more}
            _check_kinds(extra)
            return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **extra}}
        case {"type": "json_schema"}:
            raise ClientError("invalid_value", "text.format needs a name and a schema.", param="text")
        case _:
            message = "text.format.type must be text, json_object or json_schema."
            raise ClientError("invalid_value", message, param="text")


def _check_kinds(extra: Mapping[str, object]) -> None:
    if not isinstance(extra.get("description"), str | None) or not isinstance(extra.get("strict"), bool | None):
        message = "text.format.description must be text and text.format.strict true or false."
        raise ClientError("invalid_value", message, param="text")


def tool_choice(choice: Choice, context: Context) -> tuple[Choice, tuple[str, ...] | None]:
    """tool_choice in the form of Chat Completions, and the only tools that may be used, where it lists them."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return client_tools.chat_choice(choice, context), None
    tools, mode = choice.get("tools"), choice.get("mode") or "auto"
    if not isinstance(mode, str) or mode not in ("none", "auto", "required"):
        raise ClientError("invalid_value", "tool_choice.mode must be auto, required or none.", param="tool_choice")
    good = isinstance(tools, list) and 1 <= len(tools) <= MAX_ALLOWED and all(_is_named(tool) for tool in tools)
    if not good or not isinstance(tools, list):
        message = f"tool_choice.tools must be 1 to {MAX_ALLOWED} tools, each with a type and a name."
        raise ClientError("invalid_value", message, param="tool_choice")
    return client_tools.chat_choice(mode, context), tuple(str(tool["name"]) for tool in tools)


def _is_named(tool: object) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and isinstance(tool.get("name"), str)


def echo(request: Options, ignored: tuple[str, ...]) -> dict[str, object]:
    """The options as the response shows them. `ignored`: types of tools that are left out."""
    shown = {name: value for name in ECHOED if (value := getattr(request, name)) is not None}
    shown["truncation"] = request.truncation or "disabled"  # what the body shows is what the agent does
    if request.tools:
        shown["tools"] = client_tools.echoed(request.tools, ignored)
    if (choice := _shown_choice(request.tool_choice)) is not None:
        shown["tool_choice"] = choice
    if request.text is not None:
        shown["text"] = _shown_text(request.text)
    if request.reasoning is not None:
        shown["reasoning"] = {name: request.reasoning.get(name) for name in ("effort", "summary")}
    if shown.get("service_tier") == "auto":
        shown["service_tier"] = "default"
    return shown


def _shown_choice(choice: Choice) -> Choice:
    match choice:
        case str():
            return choice
        case {"type": "allowed_tools", "tools": tools, **more}:
            return {"type": "allowed_tools", "mode": more.get("mode") or "auto", "tools": tools}
        case {"type": "function", "function": {"name": name}} | {"type": "function", "name": name}:
            return {"type": "function", "name": name}
        case _:
            return None


def _shown_text(text: dict[str, object]) -> dict[str, object]:
    form = text.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        keys = {"description": form.get("description"), "strict": bool(form.get("strict"))}
        form = {"type": "json_schema", "name": form["name"], "schema": form["schema"], **keys}
    elif isinstance(form, dict):
        form = {"type": form["type"]}
    verbosity = text.get("verbosity")
    return {"format": form or {"type": "text"}, **({"verbosity": verbosity} if verbosity is not None else {})}
