"""The tools of an agent. Owns: their names, their schemas for the model, the labels of calls, and the one function that
prepares a call. Refuses to know: what a tool does, and who called it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Protocol, cast

from msgspec import Struct

from ninelives.tools.arguments import parsed
from ninelives.tools.base import HERE, Execution, Place, Threads, Tool, ToolRefused, is_name
from ninelives.tools.builtin.execute import ExecuteCode
from ninelives.tools.builtin.files import file_tools
from ninelives.tools.builtin.notes import note_tools
from ninelives.tools.builtin.patch import patch_tool
from ninelives.tools.builtin.process import Processes, ProcessTool
from ninelives.tools.builtin.terminal import Terminal
from ninelives.tools.builtin.web import web_tool
from ninelives.tools.sandbox.kinds import Sandbox, choose

LABEL_CHARS = 80
SHELL_TOOLS = (Terminal.name, ProcessTool.name, ExecuteCode.name)
"""They are missing where there is no sandbox."""


class Provider(Protocol):
    """A source of tools that may change while the server runs, such as MCP servers."""

    def tools(self) -> Sequence[Tool]:
        """The tools that exist now. Returns the same object as before if nothing has changed."""
        ...

    def expected(self, name: str) -> Tool | None:
        """A tool that is not listed yet but may be soon, such as one of a server that is still connecting. A call that
        was started before a restart waits for it."""
        ...


class ToolSet(Struct, frozen=True):
    """The tools at one point in time, by name."""

    tools: dict[str, Tool]
    schemas: tuple[dict[str, object], ...]
    """All of them as Chat Completions describes them."""
    emojis: dict[str, str]
    left_out: tuple[str, ...] = ()
    """The names of provider tools that cannot be offered."""


class Toolbox:
    """Tools with different names. Those of `tools` are always there. Those of `providers` come and go, and are left out
    if their name is taken or not valid."""

    def __init__(self, tools: Sequence[Tool], providers: Sequence[Provider] = ()) -> None:
        fixed = {tool.name: tool for tool in tools}
        if len(fixed) != len(tools):
            raise ValueError("two tools have the same name")
        if wrong := [name for name in fixed if not is_name(name)]:
            raise ValueError(f"not a name for a tool: {wrong[0]!r}")
        self._fixed = fixed
        self._providers = tuple(providers)
        self._offers: list[Sequence[Tool]] = []
        self._set = _set_of(fixed)

    def get(self, name: str) -> Tool | None:
        """The tool of that name, also if it is only expected."""
        tool = self.current().tools.get(name)
        return tool or next(filter(None, (provider.expected(name) for provider in self._providers)), None)

    def names(self) -> tuple[str, ...]:
        """The names of all tools."""
        return tuple(self.current().tools)

    def current(self) -> ToolSet:
        """The tools that exist now. Returns the same object while nothing changes."""
        if not self._providers:
            return self._set
        offers = [provider.tools() for provider in self._providers]
        if len(offers) != len(self._offers) or any(map(operator.is_not, offers, self._offers)):
            self._offers = offers
            tools, left_out = dict(self._fixed), []
            for tool in itertools.chain.from_iterable(offers):
                if is_name(tool.name) and tools.setdefault(tool.name, tool) is tool:
                    continue
                left_out.append(tool.name)
            self._set = _set_of(tools, tuple(left_out))
        return self._set

    def label(self, name: str, raw_arguments: str) -> str:
        """A text for the status line of a call, whatever the model wrote: the first line of the first required argument
        (a command, a path), or else the tool's own label."""
        tool = self.get(name)
        if tool is None:
            return _line(name)
        try:
            arguments = parsed(raw_arguments, tool.schema)
        except ToolRefused:
            arguments = {}  # prepare() reports the refusal itself
        for key in cast(list[str], tool.schema.get("required", [])):
            value = arguments.get(key)
            if isinstance(value, str) and (line := _line(value)):
                return line
        return tool.label or tool.name

    async def prepare(self, name: str, raw_arguments: str, place: Place) -> Execution:
        """Prepare a call. Raises ToolRefused, with a text for the model, if it cannot be made."""
        tool = self.get(name)
        if tool is None:
            known = ", ".join(self.names()) or "none"
            raise ToolRefused(f"There is no tool {name[:64]!r}. Tools: {known}.")
        if place.home is not HERE and (refusal := await place.home.refusal(getattr(tool, "local", ""))):
            raise ToolRefused(refusal)
        if getattr(tool, "grows", False) and (refusal := await place.quota.refusal()):
            raise ToolRefused(refusal)
        return await tool.prepare(parsed(raw_arguments, tool.schema), place)


def builtin_tools(
    sandbox: Sandbox | str, threads: Threads | None = None, processes: Processes | None = None
) -> list[Tool]:
    """The tools that come with the server. Those that need a sandbox are left out if there is none."""
    threads = threads or Threads()
    chosen = choose(sandbox) if isinstance(sandbox, str) else sandbox
    return [
        *shell_tools(chosen, threads, processes or Processes(threads)),
        *file_tools(threads),
        patch_tool(threads),
        web_tool(threads),
        *note_tools(threads),
    ]


def shell_tools(sandbox: Sandbox, threads: Threads, processes: Processes) -> list[Tool]:
    """The tools that run programs; none if there is no sandbox (its `says` tells the operator why)."""
    if sandbox.kind == "refused":
        return []
    return [Terminal(sandbox, threads), ProcessTool(sandbox, threads, processes), ExecuteCode(sandbox, threads)]


def _line(text: str) -> str:
    """The first line that is not blank, shortened and without control characters."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    shown = "".join(sign if sign.isprintable() else " " for sign in first[: LABEL_CHARS * 2]).strip()
    return shown if len(shown) <= LABEL_CHARS else shown[: LABEL_CHARS - 1] + "…"


def _set_of(tools: dict[str, Tool], left_out: tuple[str, ...] = ()) -> ToolSet:
    emojis = {name: tool.emoji for name, tool in tools.items()}
    return ToolSet(tools, tuple(map(_schema, tools.values())), emojis, left_out)


def _schema(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
