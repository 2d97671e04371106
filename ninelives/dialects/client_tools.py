"""Tools of the caller. Owns: which of them count (B5), their one form, that of Chat Completions, and what becomes of
tools that a provider would run (G17). Refuses to know: how they are called."""

from __future__ import annotations

from ninelives.core.errors import ClientError
from ninelives.dialects.asking import Context

Tool = dict[str, object]
_KEYS = ("name", "description", "parameters", "strict")
_OPEN_WEBUI = frozenset(
    {"get_current_timestamp", "ask_user", "search_chats", "add_memory", "create_automation", "search_memories"}
)


def nested(given: list[Tool] | None, context: Context) -> tuple[Tool, ...]:
    """The caller's function tools that count, from either form (flat: Responses, nested: Chat Completions)."""
    tools = [_nested(n, tool) for n, tool in enumerate(given or []) if tool.get("type", "function") == "function"]
    names = {str(function_of(tool)["name"]) for tool in tools}
    return tuple(tools) if tools and _count(context, names) else ()


def hosted(given: list[Tool] | None, context: Context, own: tuple[str | None, ...] = ("function",)) -> tuple[str, ...]:
    """The types of tools that are left out, each once: kinds other than `own`, which this server does not have. Raises
    ClientError for a caller that is not known to send such tools unasked: it would miss what it relies on (G17)."""
    left: list[str] = []
    for n, tool in enumerate(given or []):
        kind = tool.get("type", own[0])
        if kind in own or _searches(kind, context):
            continue
        if context.hosted_tools() == "refuse":
            raise ClientError("unsupported_tool", _no_such(f"tools[{n}]", kind), param="tools")
        left.append(str(kind)[:64])
    return tuple(dict.fromkeys(left))


def _searches(kind: object, context: Context) -> bool:
    """A hosted web search, which the tool of this server stands in for."""
    return context.profile.searches and isinstance(kind, str) and kind.startswith("web_search")


def _no_such(where: str, kind: object) -> str:
    words = f"{where} is of type {str(kind)[:64]!r}, which this server does not have. Leave it out"
    return f"{words}: the server has tools of its own (GET /v1/toolsets), and hands back calls of function tools."


def function_of(tool: Tool) -> dict[str, object]:
    """The inner part of a nested tool."""
    function = tool["function"]
    return function if isinstance(function, dict) else {}


def _nested(n: int, tool: Tool) -> Tool:
    inner = tool.get("function")
    flat = inner if isinstance(inner, dict) else tool
    name = flat.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 128:
        raise ClientError("invalid_value", f"tools[{n}] has no name.", param="tools")
    if not isinstance(flat.get("parameters"), dict | None) or not isinstance(flat.get("strict"), bool | None):
        message = f"tools[{n}].parameters must be an object and tools[{n}].strict true or false."
        raise ClientError("invalid_value", message, param="tools")
    kept = {key: flat[key] for key in _KEYS if flat.get(key) is not None}
    return {"type": "function", "function": kept}


def _count(context: Context, names: set[str]) -> bool:
    match context.client_tools():
        case "pass":
            return True
        case "ignore":
            return False
        case "ignore-built-in":
            return not names & _OPEN_WEBUI


def chat_choice(choice: str | dict[str, object] | None, context: Context) -> str | dict[str, object] | None:
    """tool_choice in the form of Chat Completions; auto is nothing. One that forces a tool of another kind than a
    function is refused or left out, like that tool (G17)."""
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise ClientError(
                "invalid_value", "tool_choice must be none, auto, required or a function.", param="tool_choice"
            )
        return None if choice == "auto" else choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        inner = choice.get("function")
        name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
        if not isinstance(name, str):
            raise ClientError("invalid_value", "tool_choice names no function.", param="tool_choice")
        return {"type": "function", "function": {"name": name}}
    if isinstance(choice, dict) and context.hosted_tools() == "refuse" and not _searches(choice.get("type"), context):
        raise ClientError("unsupported_tool", _no_such("tool_choice", choice.get("type")), param="tool_choice")
    return None


def echoed(given: list[Tool] | None, ignored: tuple[str, ...]) -> list[Tool]:
    """The caller's tools as a response shows them, without those that were ignored. Functions have all five keys."""
    shown: list[Tool] = []
    for tool in given or []:
        if tool.get("type", "function") == "function":
            inner = tool.get("function")
            flat = inner if isinstance(inner, dict) else tool
            shown.append({"type": "function", **{key: flat.get(key) for key in _KEYS}})
        elif str(tool["type"])[:64] not in ignored:
            shown.append({"type": tool["type"]})
    return shown
