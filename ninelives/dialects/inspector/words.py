"""The words of a search for runs. Owns: their meaning (`status:failed tool:terminal since:1h`), and whether a run fits.
Refuses to know: where runs are listed."""

from __future__ import annotations

import re

from msgspec import Struct

from ninelives.core.errors import ClientError
from ninelives.dialects.inspector.shapes import RunLine

MOST_CHARS = 500
_SPAN = re.compile(r"([0-9]{1,4})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NAMES = ("status", "tool", "model", "session", "owner", "api", "since", "is")
STATUS_WORDS = {"waiting": "waiting_for_approval"}
"""Shorter words for a status. `active` means all that have not ended."""
IS = ("active", "crashed", "unknown", "waiting")


class RunSearch(Struct, frozen=True):
    """What is searched. Words of one name are alternatives; different names must all fit."""

    words: tuple[str, ...] = ()
    named: dict[str, tuple[str, ...]] = {}
    since: float = 0.0

    def fits(self, line: RunLine) -> bool:
        """Is this run searched?"""
        title = line.title.lower()
        return (
            line.created_at >= self.since
            and all(word in title or word in line.run_id.lower() for word in self.words)
            and all(any(_fits(line, name, value) for value in values) for name, values in self.named.items())
        )

    @property
    def statuses(self) -> tuple[str, ...]:
        """The statuses that a store can look for; none: all."""
        return self.named.get("status", ())

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners that are searched; none: all that the key may see."""
        return self.named.get("owner", ())


def search_of(text: str, now: float) -> RunSearch:
    """The search in a text. Raises 400 where a word has a meaning and its value has none."""
    if len(text) > MOST_CHARS:
        raise ClientError("invalid_value", f"q must have at most {MOST_CHARS} characters.", param="q")
    words: list[str] = []
    named: dict[str, tuple[str, ...]] = {}
    since = 0.0
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon or name not in _NAMES or not value:
            words.append(word.lower())
        elif name == "since":
            since = now - _span(value)
        elif name == "is" and value not in IS:
            raise ClientError("invalid_value", f"is: must be one of {', '.join(IS)}.", param="q")
        else:
            value = STATUS_WORDS.get(value, value) if name == "status" else value
            named[name] = (*named.get(name, ()), value)
    return RunSearch(tuple(words), named, since)


def _span(value: str) -> float:
    found = _SPAN.fullmatch(value)
    if found is None:
        raise ClientError("invalid_value", "since: must be a number and s, m, h or d, such as since:2h.", param="q")
    return int(found[1]) * _SECONDS[found[2]]


def _fits(line: RunLine, name: str, value: str) -> bool:
    match name:
        case "status":
            return line.status == value
        case "tool":
            return any(tool.name == value for tool in line.tools)
        case "model":
            return line.model == value
        case "session":
            return line.session_id == value
        case "owner":
            return line.owner == value
        case "api":
            return line.api == value
        case _:
            return {
                "active": not line.ended,
                "crashed": line.crashes > 0,
                "unknown": line.unknown > 0,
                "waiting": line.approval is not None,
            }[value]
