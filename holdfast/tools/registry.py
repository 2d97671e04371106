"""The tools that an agent has. Owns: their names, their schemas for the model, the labels of calls, and the one door
through which a call is prepared. Refuses to know: what a tool does, and who called."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from msgspec import Struct

from holdfast.tools.arguments import parsed
from holdfast.tools.base import Deed, Place, Tool, ToolRefused
from holdfast.tools.files import file_tools
from holdfast.tools.notes import note_tools
from holdfast.tools.patch import patch_tool
from holdfast.tools.process import Processes
from holdfast.tools.sandbox import Sandbox, choose
from holdfast.tools.sandbox_tools import shell_tools
from holdfast.tools.threads import Threads
from holdfast.tools.web import web_tool

LABEL_CHARS = 80

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def is_name(name: str) -> bool:
    """May a tool be named so? (By upstreams.)"""
    return _NAME.match(name) is not None


class Provider(Protocol):
    """Where tools come from that may change while the server runs, such as MCP servers."""

    def tools(self) -> Sequence[Tool]:
        """All that are there now: the very same object as before when nothing has changed."""
        ...

    def expected(self, name: str) -> Tool | None:
        """A tool that is not listed and may be soon, such as one of a server that is not connected yet: a call that
        was begun before a restart waits for it."""
        ...


class _Set(Struct, frozen=True):
    """The tools at one moment."""

    tools: dict[str, Tool]
    schemas: tuple[dict[str, object], ...]
    left_out: tuple[str, ...] = ()


class Toolbox:
    """A set of tools with different names. Those of `tools` are always there; those of `providers` come and go, and
    are left out where their name is taken or is none."""

    def __init__(self, tools: Sequence[Tool], providers: Sequence[Provider] = ()) -> None:
        fixed = {tool.name: tool for tool in tools}
        if len(fixed) != len(tools):
            raise ValueError("two tools have the same name")
        if wrong := [name for name in fixed if not is_name(name)]:
            raise ValueError(f"not a name for a tool: {wrong[0]!r}")
        self._fixed = fixed
        self._providers = tuple(providers)
        self._offers: list[Sequence[Tool]] = []
        self._set = _Set(fixed, tuple(map(_schema, tools)))

    def get(self, name: str) -> Tool | None:
        """The tool of that name, also where it is only expected."""
        tool = self._now().tools.get(name)
        return tool or next(filter(None, (provider.expected(name) for provider in self._providers)), None)

    def names(self) -> tuple[str, ...]:
        """The names of all tools."""
        return tuple(self._now().tools)

    def left_out(self) -> tuple[str, ...]:
        """Names of tools that a provider has and that cannot be offered."""
        return self._now().left_out

    def schemas(self) -> tuple[dict[str, object], ...]:
        """All tools in the form of Chat Completions, for the model: the same object while nothing changes."""
        return self._now().schemas

    def _now(self) -> _Set:
        offers = [provider.tools() for provider in self._providers]
        if len(offers) != len(self._offers) or any(map(operator.is_not, offers, self._offers)):
            self._offers = offers
            tools, left_out = dict(self._fixed), []
            for tool in itertools.chain.from_iterable(offers):
                if is_name(tool.name) and tools.setdefault(tool.name, tool) is tool:
                    continue
                left_out.append(tool.name)
            self._set = _Set(tools, tuple(map(_schema, tools.values())), tuple(left_out))
        return self._set

    def label(self, name: str, raw_arguments: str) -> str:
        """Words for a status line about a call, whatever the model wrote."""
        tool = self.get(name)
        if tool is None:
            return _line(name)
        try:
            return label_for(tool, parsed(raw_arguments, tool.schema))
        except ToolRefused:
            return tool.label or tool.name  # the refusal itself is told when the call is prepared

    async def prepare(self, name: str, raw_arguments: str, place: Place) -> Deed:
        """A call that is ready to run; ToolRefused, with words for the model, where it cannot be made."""
        tool = self.get(name)
        if tool is None:
            known = ", ".join(self.names()) or "none"
            raise ToolRefused(f"There is no tool {name[:64]!r}. Tools: {known}.")
        if away := await place.home.away(getattr(tool, "local", "")):
            raise ToolRefused(away)
        return await tool.prepare(parsed(raw_arguments, tool.schema), place)


def label_for(tool: Tool, arguments: Mapping[str, object]) -> str:
    """The first line of the first argument that the tool requires (a command, a path); else the tool's own label."""
    for key in cast(list[str], tool.schema.get("required", [])):
        value = arguments.get(key)
        if isinstance(value, str) and (line := _line(value)):
            return line
    return tool.label or tool.name


def builtin_tools(
    sandbox: Sandbox | str, threads: Threads | None = None, processes: Processes | None = None
) -> list[Tool]:
    """The tools that come with the server; those that need a sandbox only where there is one."""
    threads = threads or Threads()
    chosen = choose(sandbox) if isinstance(sandbox, str) else sandbox
    return [
        *shell_tools(chosen, threads, processes or Processes(threads)),
        *file_tools(threads),
        patch_tool(threads),
        web_tool(threads),
        *note_tools(threads),
    ]


def _line(text: str) -> str:
    """The first line with something in it, fit to be shown."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    shown = "".join(sign if sign.isprintable() else " " for sign in first[: LABEL_CHARS * 2]).strip()
    return shown if len(shown) <= LABEL_CHARS else shown[: LABEL_CHARS - 1] + "…"


def _schema(tool: Tool) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}
