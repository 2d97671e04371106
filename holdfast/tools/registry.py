"""The tools that an agent has. Owns: their names, their schemas for the model, the labels of calls, and the one door
through which a call is prepared. Refuses to know: what a tool does, and who called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

from holdfast.tools.arguments import parsed
from holdfast.tools.base import Deed, Place, Tool, ToolRefused
from holdfast.tools.files import file_tools
from holdfast.tools.terminal import Terminal
from holdfast.tools.threads import Threads

LABEL_CHARS = 80

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


class Toolbox:
    """A set of tools with different names; it never changes."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise ValueError("two tools have the same name")
        if wrong := [name for name in self._tools if not _NAME.match(name)]:
            raise ValueError(f"not a name for a tool: {wrong[0]!r}")
        self._schemas = tuple(_schema(tool) for tool in tools)

    def get(self, name: str) -> Tool | None:
        """The tool of that name."""
        return self._tools.get(name)

    def names(self) -> tuple[str, ...]:
        """The names of all tools."""
        return tuple(self._tools)

    def schemas(self) -> tuple[dict[str, object], ...]:
        """All tools in the form of Chat Completions, for the model."""
        return self._schemas

    def label(self, name: str, raw_arguments: str) -> str:
        """Words for a status line about a call, whatever the model wrote."""
        tool = self._tools.get(name)
        if tool is None:
            return _line(name)
        try:
            return label_for(tool, parsed(raw_arguments, tool.schema))
        except ToolRefused:
            return tool.label or tool.name  # the refusal itself is told when the call is prepared

    async def prepare(self, name: str, raw_arguments: str, place: Place) -> Deed:
        """A call that is ready to run; ToolRefused, with words for the model, where it cannot be made."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self.names()) or "none"
            raise ToolRefused(f"There is no tool {name[:64]!r}. Tools: {known}.")
        return await tool.prepare(parsed(raw_arguments, tool.schema), place)


def label_for(tool: Tool, arguments: Mapping[str, object]) -> str:
    """The first line of the first argument that the tool requires (a command, a path); else the tool's own label."""
    for key in cast(list[str], tool.schema.get("required", [])):
        value = arguments.get(key)
        if isinstance(value, str) and (line := _line(value)):
            return line
    return tool.label or tool.name


def builtin_tools(sandbox: str, threads: Threads | None = None) -> list[Tool]:
    """The tools that come with the server. The terminal has no sandbox yet: it is there only where none is wanted."""
    threads = threads or Threads()
    tools = file_tools(threads)
    return [Terminal(threads), *tools] if sandbox == "off" else tools


def _line(text: str) -> str:
    """The first line with something in it, fit to be shown."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    shown = "".join(sign if sign.isprintable() else " " for sign in first[: LABEL_CHARS * 2]).strip()
    return shown if len(shown) <= LABEL_CHARS else shown[: LABEL_CHARS - 1] + "…"


def _schema(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
