"""Known clients and their needs. Owns: the table of clients, from which docs/reference/clients.md is made, and how a
request is matched with it. A row sets only what is special about a client. Of all rows that match, the first that sets
a field decides. Rows of the configuration file ([[clients]]) come before these. Refuses to know: what a field means to
a dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from ninelives.core.spec import OnDisconnect, ToolItems, ToolProgress

ClientTools = Literal["pass", "ignore", "ignore-built-in"]
StoreFalse = Literal["journal", "memory"]
HostedTools = Literal["refuse", "ignore"]


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be special about a caller. None: not set."""

    tool_items: ToolItems | None = None
    """How Responses show tools that ran on the server (C9)."""
    tool_progress: ToolProgress | None = None
    """Tool progress on chat streams; off for clients that break on any named event (B4)."""
    on_disconnect: OnDisconnect | None = None
    """cancel: disconnecting is how this caller stops a run whose `store` is not true (C4)."""
    client_tools: ClientTools | None = None
    """Tools in the request: handed back, ignored, or ignored where they are the front end's built-in ones (B5)."""
    hosted_tools: HostedTools | None = None
    """Tools of other kinds than functions, which this server does not have: 400, or left out and told (G17)."""
    chores: bool | None = None
    """Chores ("### Task:") are answered by one plain model call (B7). Not set: only those with a quoted chat."""
    store_false: StoreFalse | None = None
    """Where runs with `store: false` are (B6)."""


FIELDS = Policy.__struct_fields__
MATCHED_CHARS = 512
"""A pattern sees the first characters of a header only, because its time may grow faster than the header."""


class Client(Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row. A request matches if its user agent and every named header do."""

    name: str
    agent: str = ""
    """A regular expression that is found in User-Agent, in any case."""
    headers: dict[str, str] = {}
    """Header names (`x-some-*` for any that begins so), each with a regular expression for how its value begins."""

    def __hash__(self) -> int:
        return hash(self.name)

    def matches(self, headers: Mapping[str, str]) -> bool:
        """Does a request match? Header names are in lower case."""
        agent = headers.get("user-agent", "")[:MATCHED_CHARS]
        if self.agent and not re.search(self.agent, agent, re.IGNORECASE):
            return False
        return all(_has(headers, name.lower(), value) for name, value in self.headers.items())


def _has(headers: Mapping[str, str], name: str, value: str) -> bool:
    if name.endswith("*"):
        return any(given.startswith(name[:-1]) and _begins(headers[given], value) for given in headers)
    return name in headers and _begins(headers[name], value)


def _begins(text: str, pattern: str) -> bool:
    return re.match(pattern, text[:MATCHED_CHARS]) is not None


Seen = tuple[tuple[str, str], ...]
MEMO_BYTES = 2048
"""Longer headers are not cached: their sender may send others each time."""
MEMO_CALLERS = 512


class Rows(tuple[Client, ...]):
    """A table, in the order of its rows. Matching costs 60 us and callers repeat their headers, so the result is cached
    by the headers that the table reads."""

    def __init__(self, rows: Iterable[Client]) -> None:
        named = [(name.lower().rstrip("*"), value) for row in self for name, value in row.headers.items()]
        self._read = ("user-agent", *(name for name, value in named if value))
        """Prefixes of the header names whose values the table reads."""
        self._noticed = tuple(dict.fromkeys((*self._read, *(name for name, _ in named))))
        """Prefixes of all header names that it uses."""
        self._known = lru_cache(MEMO_CALLERS)(self._policy_of)

    def recognise(self, headers: Mapping[str, str]) -> Policy:
        """The policy of the table for a caller. Header names are in lower case."""
        read, noticed = self._read, self._noticed
        seen = tuple(
            [
                (name, value if name.startswith(read) else "")
                for name, value in headers.items()
                if name.startswith(noticed)
            ]
        )
        if sum(len(value) for _, value in seen) > MEMO_BYTES:
            return self._policy_of(seen)
        return self._known(seen)

    def _policy_of(self, seen: Seen) -> Policy:
        headers = dict(seen)
        return first_of(*(row for row in self if row.matches(headers)))


@lru_cache(maxsize=512)
def first_of(*policies: Policy) -> Policy:
    """For each field, the first policy that sets it."""
    said = {name: [value for each in policies if (value := getattr(each, name)) is not None] for name in FIELDS}
    return Policy(**{name: values[0] for name, values in said.items() if values})


_ROWS = (
    Client(
        name="Open WebUI (with ENABLE_FORWARD_USER_INFO_HEADERS)",
        headers={"x-openwebui-*": ""},
        chores=True,
        on_disconnect="cancel",
        client_tools="ignore",
        hosted_tools="ignore",
        tool_items="function_call",
    ),
    Client(
        name="Open WebUI, or anything else that is built on aiohttp",
        agent=r"^Python/\S+ aiohttp/",
        client_tools="ignore-built-in",
    ),
    Client(
        name="openai-node 4 (older LobeChat, AnythingLLM and others)",
        headers={"x-stainless-lang": "js", "x-stainless-package-version": r"4\."},
        tool_progress="off",
        tool_items="mcp_call",
    ),
    Client(name="Claude Code", agent=r"(^|\s)claude-cli/", tool_items="mcp_call", hosted_tools="ignore"),
    Client(name="the Anthropic SDKs", agent=r"(^|\s)anthropic/", tool_items="mcp_call"),
    Client(name="Codex", agent=r"(^|\s)codex", tool_items="mcp_call", hosted_tools="ignore"),
    Client(name="OpenAI Agents SDK", agent=r"(^|\s)agents/", tool_items="mcp_call"),
    Client(
        name="Vercel AI SDK (Cherry Studio, Jan, Chatbox, opencode)",
        agent=r"(^|\s)(ai-sdk|ai/)",
        tool_items="mcp_call",
    ),
    Client(name="LangChain (also LibreChat, n8n, Flowise)", agent=r"(^|\s)langchain", tool_items="mcp_call"),
    Client(name="litellm", agent=r"(^|\s)litellm/", tool_items="mcp_call"),
    Client(
        name="OpenAI SDKs (also llm, LobeChat and LangChain, which are built on them)",
        headers={"x-stainless-*": ""},
        tool_items="mcp_call",
    ),
    Client(name="OpenAI SDKs whose headers a proxy took away", agent=r"(^|\s)openai/", tool_items="mcp_call"),
    Client(
        name="anybody else",
        tool_items="function_call",
        client_tools="pass",
        hosted_tools="refuse",
    ),
)
TABLE = Rows(_ROWS)
"""A row sets only what users of that client were seen to need."""
