"""Host names. Owns: which of them name this machine, which ones a text names, and which a pattern allows. Refuses to
know: sockets, settings and requests."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

_WORDS = re.compile(r"[^\s/\\:@?#=&<>()\[\]{}\"'`,;|*!]+")
_ADDRESS = re.compile(r"(?<![0-9a-f])[0-9a-f]*+:[0-9a-f:.]+", re.IGNORECASE)
"""The lookbehind forbids a start in the middle of a number, so a long one is read once."""
_IN_URL = re.compile(r"://([\w-]++)(?![\w.-])")


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
