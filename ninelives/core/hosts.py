"""Host names and expressions that an operator writes. Owns: which host names mean this machine, which ones a text
names, and which a pattern allows; how long a text may be for a regular expression. Refuses to know: sockets, settings
and requests.

Theory of operation of `longest`. The engine of `re` tries one way after the other. Each repeat without a bound can
end at any place of the text, so a pattern with two of them in a row takes a time that grows with the square of the
text. A search begins at any place: one power more. A repeat inside a repeat can divide the text in any way, which is
exponential, unless the inner one has only one way to match (possessive, atomic or fixed). So a pattern has a power
and a constant factor, and the bound of the text follows from them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

_WORDS = re.compile(r"[^\s/\\:@?#=&<>()\[\]{}\"'`,;|*!]+")
_ADDRESS = re.compile(r"(?<![0-9a-f])[0-9a-f]*+:[0-9a-f:.]+", re.IGNORECASE)
"""The lookbehind forbids a start in the middle of a number, so a long one is read once."""
_IN_URL = re.compile(r"://([\w-]++)(?![\w.-])")

STEPS = 20_000_000
"""Most steps of one match, about 50 ms."""
MANY = 64
"""A repeat that may come so often counts as one without a bound."""
LEAST = 200
"""A pattern that may meet only shorter texts is of no use."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_parser: Any = vars(re)["_parser"]


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_in(text: str) -> frozenset[str]:
    """The host names and addresses that a text names, in URLs or as plain words, in lower case. A name without a dot
    is only one in a URL, because any word would be."""
    words = (word.strip(".-_").lower() for word in _WORDS.findall(text))
    named = {_ascii(word) for word in words if "." in word}
    named |= {found.lower() for found in _ADDRESS.findall(text)}
    return frozenset(named | {_ascii(found.lower()) for found in _IN_URL.findall(text)})


def host_fits(pattern: str, host: str) -> bool:
    """Whether a pattern allows a host: `example.org` is that host, `*.example.org` every host below it, `*` any."""
    wanted = _ascii(pattern.lower().rstrip("."))
    if wanted.startswith("*."):
        return host.endswith(wanted[1:])
    return wanted in ("*", host)


def _ascii(name: str) -> str:
    """A name as DNS has it."""
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return name


class Cost(NamedTuple):
    """At most `factor * length ** power` steps."""

    power: float = 0.0
    factor: float = 1.0
    ambiguous: bool = False
    """It can match the same text in more than one way, or texts of different length."""

    def then(self, other: Cost) -> Cost:
        """Both, one after the other."""
        return Cost(self.power + other.power, self.factor * other.factor, self.ambiguous or other.ambiguous)


@cache
def longest(pattern: str, *, search: bool) -> int:
    """The longest text that the pattern may meet; 0: none, because its time can grow exponentially."""
    parsed = _parser.parse(pattern)
    parts = list(parsed.data)
    cost = _of(parts)
    if search and parts and str(parts[-1][0]) in _REPEATS and not _of(parts[-1][1][2]).ambiguous:
        least, _, body = parts[-1][1]  # nothing follows, so the first way is good enough
        cost = _of(parts[:-1]).then(Cost(_of(body).power, float(max(least, 1))))
    power = cost.power + (1 if search and not _anchored(parts, parsed.state.flags) else 0)
    if cost.factor > STEPS or power == float("inf"):
        return 0
    return int((STEPS / cost.factor) ** (1 / max(power, 1.0)))


def _anchored(parts: Sequence[Any], flags: int) -> bool:
    """Does a search begin at the beginning only?"""
    where = str(parts[0][1]) if parts and str(parts[0][0]) == "AT" else ""
    return where == "AT_BEGINNING_STRING" or (where == "AT_BEGINNING" and not flags & re.MULTILINE)


def _of(parts: Sequence[Any]) -> Cost:
    cost = Cost()
    for op, given in parts:
        cost = cost.then(_of_part(str(op), given))
    return cost


def _of_part(op: str, given: Any) -> Cost:
    match op:
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeated(*given)
        case "POSSESSIVE_REPEAT":
            return _repeated(*given)._replace(ambiguous=False)
        case "ATOMIC_GROUP":
            return _of(given)._replace(ambiguous=False)
        case "SUBPATTERN":
            return _of(given[3])
        case "ASSERT" | "ASSERT_NOT":
            return _of(given[1])._replace(ambiguous=False)
        case "BRANCH":
            return _any_of(given[1])
        case "GROUPREF":
            return Cost(power=1.0)
        case "GROUPREF_EXISTS":
            return _any_of([each for each in given[1:] if each is not None])
        case _:
            return Cost()


def _repeated(least: int, most: int, body: Any) -> Cost:
    inner = _of(body)
    if most < MANY:
        factor = float(min(inner.factor**most, 1e18)) * (most - least + 1)
        return Cost(inner.power * most, factor, inner.ambiguous or most != least)
    return Cost(float("inf") if inner.ambiguous else inner.power + 1, inner.factor, True)


def _any_of(branches: Sequence[Any]) -> Cost:
    costs = [_of(each) for each in branches]
    firsts = [str(each[0]) if len(each) and str(each[0][0]) == "LITERAL" else "" for each in branches]
    apart = all(firsts) and len(set(firsts)) == len(firsts)
    power, factor = max(each.power for each in costs), sum(each.factor for each in costs)
    return Cost(power, factor, not apart or any(each.ambiguous for each in costs))
