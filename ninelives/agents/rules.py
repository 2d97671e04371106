"""The approval rules of the configuration. Owns: whether a rule fits a call. Rules read the decoded values of a call,
never its JSON text, which a model can write in many ways. Refuses to know: what follows from a rule that fits.

Theory of operation. A rule that asks may fit too often, and a rule that allows must never fit by chance. So a rule that
asks is searched in every value, and in a command also without its quotes. A rule that allows must fit one whole value,
and a command that it allows is a single one: no sign of the shell that begins another, unless the rule spells it. A
value that is too long for its pattern (`longest` in core/hosts.py) is asked about."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from ninelives.core.hosts import longest
from ninelives.tools.base import Reach

Mode = Literal["never", "on-write", "always"]
SHELL_TOOL = "terminal"
_SIGNS = re.compile(r"[;&|$`()<>\n\r]")
_QUOTES = re.compile(r"[\\'\"]")
_ESCAPED = re.compile(r"\\(\W)")


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """When to ask about calls of one tool (or `*`) whose arguments match. The first rule that fits counts."""

    tool: str
    ask: Mode
    match: str = ""
    """A regular expression. Empty fits all calls. A rule that asks is searched; one that allows must fit the whole."""
    field: str = ""
    """The argument that it reads. Empty: the command, or, for a rule that asks, all arguments."""

    def fits(self, name: str, arguments: Mapping[str, object], reach: Reach) -> bool:
        """Whether the rule counts for a call of the tool `name`."""
        if self.tool not in ("*", name):
            return self.ask != "never" and self._fits_program(name, reach)
        if not self.match:
            return True
        if self.ask == "never":
            return self._allows(arguments, reach)
        values = [arguments[self.field]] if self.field in arguments else [] if self.field else [dict(arguments)]
        return any(map(self._found, _texts(values)))

    def _fits_program(self, name: str, reach: Reach) -> bool:
        """A rule for the terminal that asks covers every other tool that runs programs: by its command, or, where
        there is none to compare, all its calls."""
        if self.tool != SHELL_TOOL or reach.approval != "exec":
            return False
        return not self.match or reach.command is None or self._found(reach.command)

    def _found(self, text: str) -> bool:
        if len(text) > longest(self.match, search=True):
            return True
        plain = " ".join(_QUOTES.sub("", text).split())
        return re.search(self.match, text) is not None or re.search(self.match, plain) is not None

    def _allows(self, arguments: Mapping[str, object], reach: Reach) -> bool:
        value = arguments.get(self.field) if self.field else reach.command
        if not isinstance(value, str) or len(value) > longest(self.match, search=False):
            return False
        if re.fullmatch(self.match, value) is None:
            return False
        return value != reach.command or _is_single(value) or _ESCAPED.sub(r"\1", self.match) == value


def _is_single(command: str) -> bool:
    """Whether a command is words only, so that the shell runs one program with these words."""
    try:
        return not _SIGNS.search(command) and bool(shlex.split(command))
    except ValueError:
        return False


def _texts(value: object) -> Iterator[str]:
    """Every value in the arguments as text, with the names of fields."""
    match value:
        case str():
            yield value
        case dict():
            for key, each in value.items():
                yield from _texts(key)
                yield from _texts(each)
        case list():
            for each in value:
                yield from _texts(each)
        case _:
            yield msgspec.json.encode(value).decode()
