"""The secrets that this process knows. Owns: collecting them from settings, URLs and the environment, so that logs and
error texts can hide them. Refuses to know: who hides them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from ninelives.app.settings import Settings

_NAME = re.compile(
    r"(?i)(?:^|[_.-])(?:api)?keys?(?:$|[_.-])|token|secret|passw|credential|auth(?:$|[_.-]|oriz)|cookie|dsn$"
)
"""What the name of a secret has in it: OPENAI_API_KEY, PGPASSWORD, --auth-token, x-api-key."""
_SHORTEST = 8
"""Characters of a value that only its name makes a secret."""
_SHORTEST_NAMELESS = 12
"""Characters of a value in the environment of an MCP server whose name tells nothing."""


def known_secrets(settings: Settings, env: Mapping[str, str]) -> set[str]:
    """All of them."""
    model, store, web, tables = settings.model, settings.store, settings.web, settings.tables
    traces = settings.traces
    profiles = tables.profiles.values()
    of_profiles = {key for table in profiles for key in (table.key, table.model_api_key)}
    own = {settings.server.key, settings.server.user_jwt_secret, model.api_key, web.tavily_key, traces.authorization}
    keys = (own | of_profiles) - {None, ""}
    urls = [model.url, store.url, store.direct_url, web.searxng_url, traces.url]
    urls += [table.model_url or "" for table in profiles]
    found = {key for key in keys if key} | secrets_in(*urls)
    for table in tables.mcp.values():
        found.update(_of_mcp(table))
    for name, value in env.items():
        found |= secrets_in(value) if "://" in value else set()
        found |= {value} if _NAME.search(name) and len(value) >= _SHORTEST and not value.startswith("/") else set()
    return found


def _of_mcp(table: Mapping[str, object]) -> Iterator[str]:
    """The secrets in the table of an MCP server."""
    for part in ("env", "headers"):
        given = table.get(part)
        for name, value in given.items() if isinstance(given, dict) else ():
            text = str(value)
            if len(text) >= (_SHORTEST if _NAME.search(str(name)) else _SHORTEST_NAMELESS):
                yield text
                yield text.rpartition(" ")[2]  # the token of "Bearer TOKEN"
    yield from secrets_in(str(table.get("url", "")))
    args = table.get("args")
    words = [str(word) for word in args] if isinstance(args, list | tuple) else []
    for flag, following in itertools.pairwise([*words, ""]):
        name, equals, value = flag.partition("=")
        if name.startswith("-") and _NAME.search(name):
            yield value if equals else following


def secrets_in(*urls: str) -> set[str]:
    """The passwords in URLs, both as written and with percent escapes decoded: those of a user, and parameters whose
    name says so. Passwords of fewer than four characters are left out, because redacting them would garble most
    messages."""
    found: set[str] = set()
    for url in filter(None, urls):
        with suppress(ValueError):
            parts = urlsplit(url)
            named = [value for name, value in parse_qsl(parts.query) if _NAME.search(name)]
            given: Sequence[str | None] = [parts.password, *named]
            found |= {text for word in given if word for text in (word, unquote(word))}
        head, at, _ = url.partition("://")[2].rpartition("@")
        if at and ":" in head:  # an invalid URL can hold a password too
            found.add(head.partition(":")[2])
    return {word for word in found if len(word) >= 4}


def without_secrets(text: str, *urls: str) -> str:
    """A message of another library without the passwords in these URLs."""
    for secret in sorted(secrets_in(*urls), key=len, reverse=True):
        text = text.replace(secret, "********")
    return text
