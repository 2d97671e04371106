"""Tables of the configuration file that have no fixed names: profiles, MCP servers, approval rules, clients. They come
from the file only, never from the environment, a flag or a request. Owns: their shape and errors that name the place.
Refuses to know: what they are used for."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from holdfast.config_keys import ConfigError
from holdfast.dialects.clients import Client

Mode = Literal["never", "on-write", "always"]


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[profiles.NAME]: an agent of its own under its own model name. What is left out is as in the default profile."""

    system_prompt: str | None = None
    model_url: str | None = None
    model_name: str | None = None
    model_api_key: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the tools that it has; left out: all."""
    approval: Mode | None = None
    workspace: Literal["owner", "session"] | None = None
    durable_chat: bool | None = None
    on_disconnect: Literal["auto", "detach", "cancel"] | None = None
    client_tools: Literal["auto", "pass", "ignore"] | None = None
    tool_items: Literal["auto", "function_call", "mcp_call"] | None = None
    context_tokens: int | None = None


class ApprovalRule(Struct, frozen=True, forbid_unknown_fields=True):
    """[[approvals]]: whether to ask before calls of a tool (or `*`) whose arguments match an expression."""

    tool: str
    ask: Mode
    match: str = ""


class Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    profiles: dict[str, Profile] = {}
    approvals: tuple[ApprovalRule, ...] = ()
    mcp: dict[str, dict[str, Any]] = {}
    clients: tuple[Client, ...] = ()
    """[[clients]]: rows that come before the built-in table of clients."""


TABLES = ("profiles", "approvals", "mcp", "clients")


def read_tables(found: dict[str, Any], origin: str) -> Tables:
    """The tables of a document."""
    try:
        tables = msgspec.convert(found, Tables)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error} (from {origin}).") from error
    for client in tables.clients:
        _check_patterns(client, origin)
    return tables


def _check_patterns(client: Client, origin: str) -> None:
    for pattern in (client.agent, *client.headers.values()):
        try:
            re.compile(pattern)
        except re.error as error:
            words = f"[[clients]] {client.name}: {pattern!r} is no regular expression: {error}"
            raise ConfigError(f"{words} (from {origin}).") from error
