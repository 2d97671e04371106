"""The tools of MCP servers. Owns: the configuration of a server, the names and effects of its tools, and the text of a
result. Refuses to know: how a server is connected (link.py), and any server that is not in the configuration, because
a server is a program with the rights of this one.

What a server says about its own tools is only a hint. Without `trust_hints`, every tool is a write unless the
configuration says otherwise. So no call is repeated after a crash, or made without approval, on the server's word."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ninelives.core.events import Effect, Outcome, Process
from ninelives.tools.arguments import checked
from ninelives.tools.base import ApprovalClass, Execution, Output, Place, Threads, Tool, ToolRefused, bounded
from ninelives.tools.decorator import ToolsError
from ninelives.tools.mcp.link import (
    CallFailed,
    CallLost,
    CallOptions,
    ListedTool,
    McpAddress,
    McpLink,
    NotCalled,
    load,
)
from ninelives.tools.mcp.stdio import Program

NAME_CHARS = 64
PROGRESS_CHARS = 2_000

_NAME = re.compile(r"\A[A-Za-z0-9_-]{1,32}\Z")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
_PREFIX = re.compile(r"\A[A-Za-z0-9_-]{0,32}\Z")
_UNKNOWN = (
    "so its outcome is unknown: it may have happened fully, partly or not at all. It was not repeated. "
    "Check before you do it again."
)


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server in the configuration: a program (`command`) or a streamable HTTP endpoint (`url`)."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """The whole environment of the program, except that PATH and LANG have defaults."""
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}
    timeout_s: float = 60.0
    """The time limit of one call. limits.tool_timeout_s applies too."""
    prefix: str | None = None
    """The prefix of its tools' names. Default: the server's name and _."""
    effects: dict[str, Effect] = {}
    """The effect of each tool, by the name that the server gives it."""
    approvals: dict[str, ApprovalClass] = {}
    """The approval class of each tool, by the same name. Default: by its effect."""
    trust_hints: bool = False
    """Believe readOnlyHint, idempotentHint and openWorldHint of tools that `effects` and `approvals` do not name."""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"the name {self.name[:40]!r} is not 1 to 32 of A-Z, a-z, 0-9, _ and -")
        if bool(self.command) == bool(self.url):
            raise ValueError(f"the MCP server {self.name} needs either command or url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"the url of the MCP server {self.name} does not begin with http:// or https://")
        if self.prefix is not None and not _PREFIX.match(self.prefix):
            raise ValueError(f"the prefix of the MCP server {self.name} is not up to 32 of A-Z, a-z, 0-9, _ and -")
        if not 0 < self.timeout_s <= 86_400:
            raise ValueError(f"timeout_s of the MCP server {self.name} is not between 0 and 86400")

    def __repr__(self) -> str:
        """Without env and headers, which hold secrets."""
        return f"McpServer(name={self.name!r}, {'command' if self.command else 'url'}=...)"

    def address(self) -> McpAddress:
        """How to reach it."""
        if self.url:
            return McpAddress(url=self.url, headers=self.headers)
        return McpAddress(program=Program((self.command, *self.args), self.env, self.cwd))

    def prefixed(self, name: str) -> str:
        """The name of a tool with its prefix."""
        return (f"{self.name}_" if self.prefix is None else self.prefix) + name

    def effect_of(self, listed: ListedTool) -> Effect:
        """The effect from the configuration, or from hints if they are trusted. The default is write."""
        if listed.name in self.effects:
            return self.effects[listed.name]
        if self.trust_hints and listed.read_only:
            return "read"
        return "idempotent" if self.trust_hints and listed.idempotent else "write"

    def approval_of(self, listed: ListedTool) -> ApprovalClass | None:
        """The approval class from the configuration, or from a hint if it is trusted. None: it follows the effect."""
        return self.approvals.get(listed.name) or ("network" if self.trust_hints and listed.open_world else None)


class Status(Struct, frozen=True):
    """The status of a server, for the operator."""

    name: str
    connected: bool
    tools: int
    left_out: tuple[str, ...]
    """Tools that cannot be used: name and reason."""
    fault: str = ""
    """Why it is not connected; empty if it is."""
    last_words: str = ""
    """What its program wrote to stderr before it was lost. Not shown to models."""

    @property
    def last_line(self) -> str:
        """The last line of that."""
        return self.last_words.rpartition("\n")[2].strip()[:300]

    @property
    def usable(self) -> bool:
        """Whether it is connected, and all its tools can be used."""
        return self.connected and not self.left_out

    @property
    def words(self) -> str:
        """How it is, in one line."""
        if not self.connected:
            return self.fault + (f" ({self.last_line})" if self.last_line else "")
        return f"{self.tools} tools" + "".join(f"; {each}" for each in self.left_out)


Notify = Callable[[Status], None]
"""Gets the status of a server that was lost, connected again, or lists tools that cannot be used."""


def ignore(status: Status) -> None:
    """Tell nobody."""


class McpTools:
    """The tools of all configured servers: a Provider of a Toolbox. Nothing is connected before start()."""

    def __init__(self, servers: Sequence[McpServer], threads: Threads, notify: Notify = ignore) -> None:
        if len({server.name for server in servers}) != len(servers):
            raise ToolsError("Two MCP servers have the same name.")
        self._tools: tuple[Tool, ...] | None = ()
        self._links = [(server, self._link(server, threads)) for server in servers]
        self._threads = threads
        self._notify = notify
        self._told: dict[str, tuple[bool, str, tuple[str, ...]]] = {}
        self._task: asyncio.Task[None] | None = None

    def _link(self, server: McpServer, threads: Threads) -> McpLink:
        return McpLink(server.address(), threads, self._changed, lambda: self._tell(server.name))

    async def start(self) -> None:
        """Begin to connect, and return at once. See wait_for_servers()."""
        if not self._links:
            return
        if importlib.util.find_spec("mcp") is None:
            raise ToolsError("MCP servers need the package mcp. Run: pip install mcp")
        self._task = asyncio.create_task(self._run(), name="mcp")

    async def wait_for_servers(self, seconds: float = 10.0) -> None:
        """Wait until the first attempt at each server has succeeded or failed, at most for `seconds`. Runs that are
        recovered earlier may lack tools that they had."""
        try:
            async with asyncio.timeout(seconds):
                for _, link in self._links:
                    await link.tried.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Close all connections, and end the programs behind them."""
        for _, link in self._links:
            link.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def tools(self) -> tuple[Tool, ...]:
        """All tools that are known now. Returns the same object while nothing changes."""
        if self._tools is None:
            names: set[str] = set()
            self._tools = tuple(tool for server, link in self._links for tool in _offered(server, link, names))
        return self._tools

    def expected(self, name: str) -> Tool | None:
        """A tool of a server that was never connected. A call waits for the connection."""
        for server, link in self._links:
            if link.listed is None and name.startswith(server.prefixed("")):
                return _Expected(self, server, link, name)
        return None

    def status(self) -> list[Status]:
        """The status of each server."""
        return [_status(server, link) for server, link in self._links]

    def _tell(self, name: str) -> None:
        """Tell the status of a server, if it is worth a word and not the one that was told last."""
        now = next(_status(server, link) for server, link in self._links if server.name == name)
        key = now.connected, now.fault, now.left_out
        if key != self._told.get(name, (True, "", ())):
            self._told[name] = key
            self._notify(now)

    def _changed(self) -> None:
        self._tools = None

    async def _run(self) -> None:
        await self._threads.run(load)  # it takes a second, which must not block the loop
        async with asyncio.TaskGroup() as group:
            for _, link in self._links:
                group.create_task(link.run())


def _status(server: McpServer, link: McpLink) -> Status:
    return Status(
        name=server.name,
        connected=link.connected,
        tools=len(link.listed or ()),
        left_out=tuple(f"{name}: {why}" for name, why in link.left_out.items()),
        fault="" if link.connected else link.fault,
        last_words="" if link.connected else link.last_words,
    )


def _offered(server: McpServer, link: McpLink, names: set[str]) -> Iterator[Tool]:
    for listed in link.listed or ():
        name = _offered_name(server, listed.name, names)
        names.add(name)
        yield McpTool(server, link, listed, name)


def _offered_name(server: McpServer, name: str, taken: set[str]) -> str:
    """The name with its prefix, in characters that model servers accept. A hash tells apart names that collide."""
    plain = server.prefixed(_NOT_IN_NAME.sub("_", name))
    if len(plain) <= NAME_CHARS and plain not in taken:
        return plain
    digest = hashlib.sha256(f"{server.name}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: NAME_CHARS - 9]}_{digest}"


class McpTool:
    """One tool of a server."""

    emoji = "🔌"

    def __init__(self, server: McpServer, link: McpLink, listed: ListedTool, name: str) -> None:
        self.name = name
        self.description = listed.description or name
        self.schema = listed.schema
        self.effect: Effect = server.effect_of(listed)
        self.approval = server.approval_of(listed)
        self.label = f"Using {server.name}"
        self.server = server
        self.link = link
        self.listed = listed

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """Nothing to prepare: the server checks the arguments."""
        return _McpExecution(self, arguments, place)


class _Expected:
    """A tool that a call names and that no server has listed yet. A write, unless configured."""

    label = ""
    emoji = McpTool.emoji
    description = ""

    def __init__(self, mcp: McpTools, server: McpServer, link: McpLink, name: str) -> None:
        self.name = name
        self.schema: dict[str, object] = {"type": "object"}
        plain = name.removeprefix(server.prefixed(""))
        self.effect: Effect = server.effects.get(plain, "write")
        self.approval = server.approvals.get(plain)
        self._mcp = mcp
        self._server = server
        self._link = link

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """Wait for the server, and use the tool that it lists then."""
        who = f"the MCP server {self._server.name!r}"
        try:
            await self._link.wait(place.timeout_s)
        except NotCalled as error:
            raise ToolRefused(f"{self.name} was not called: {who} cannot be reached ({error}).") from error
        for tool in self._mcp.tools():
            if tool.name == self.name:
                return await tool.prepare(checked(arguments, tool.schema), place)
        raise ToolRefused(f"There is no tool {self.name!r}: {who} does not have it any more.")


class _McpExecution:
    def __init__(self, tool: McpTool, arguments: dict[str, object], place: Place) -> None:
        self.process: Process | None = None
        self._tool = tool
        self._arguments = arguments
        self._place = place

    async def run(self) -> Output:
        """Make the call, within the time and the bytes of the place."""
        place, server = self._place, self._tool.server
        seconds = min(server.timeout_s, place.timeout_s)
        options = CallOptions(place.call_id, seconds, lambda text: place.progress(text[:PROGRESS_CHARS]))
        who = f"The MCP server {server.name!r}"
        try:
            result = await self._tool.link.call(self._tool.listed.name, self._arguments, options)
        except NotCalled as error:
            return Output(f"{who} cannot be reached ({error}). The tool was not called.", is_error=True)
        except CallFailed as error:
            return Output(f"{who} answered with an error: {error}", is_error=True)
        except CallLost as error:
            return self._unanswered(f"{who} was lost in the middle of this call ({error})")
        except TimeoutError:
            return self._unanswered(f"{who} gave no answer within {seconds:g} s")
        text = "\n".join(_parts(result)) or "[done]"
        data = text.encode("utf-8", "replace")
        return Output(bounded(data, place.output_bytes), is_error=result.get("isError") is True)

    async def abandon(self) -> None:
        """Nothing was started."""

    def _unanswered(self, what: str) -> Output:
        after = _UNKNOWN if self._tool.effect == "write" else "and it can be made again."
        outcome: Outcome = "unknown" if self._tool.effect == "write" else "known"
        return Output(f"{what}, {after}", is_error=True, outcome=outcome)


def _parts(result: Mapping[str, Any]) -> Iterator[str]:
    """The parts of a result as text. Parts that are not text are named."""
    content = result.get("content") or []
    for part in content:
        match part.get("type"):
            case "text":
                yield str(part.get("text", ""))
            case "image" | "audio" as kind:
                yield f"[{kind}: {part.get('mimeType', 'unknown type')}, {_size(part.get('data', ''))} bytes]"
            case "resource":
                yield _resource(part.get("resource") or {})
            case "resource_link":
                yield f"[resource: {part.get('name', '')} {part.get('uri', '')}]"
            case kind:
                yield f"[{kind}]"
    if not content and result.get("structuredContent") is not None:
        yield msgspec.json.encode(result["structuredContent"]).decode()


def _resource(resource: Mapping[str, Any]) -> str:
    uri, kind = resource.get("uri", ""), resource.get("mimeType", "unknown type")
    if "text" in resource:
        return f"[resource: {uri}]\n{resource['text']}"
    return f"[resource: {uri}, {kind}, {_size(resource.get('blob', ''))} bytes]"


def _size(encoded: str) -> int:
    return len(encoded.rstrip("=")) * 3 // 4
