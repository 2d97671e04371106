"""Who sent a request that came through proxies. Owns: which proxies are trusted, and the address that they name in
X-Forwarded-For or Forwarded. Refuses to know: what the address is used for. It gives no rights.

Theory of operation. Each proxy adds the address that it saw at the end of the list. So the list is read from its end:
as long as an address is that of a trusted proxy, the one before it is believed. What stands before the first other
address was written by the client, and means nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from msgspec import Struct

UNIX = "unix"
"""The word for whoever connects to the Unix socket."""
HOPS = 32
"""At most so many addresses are read."""
_FOR = re.compile(r"for=(\"[^\"]{1,64}\"|[^;,\s]{1,64})", re.IGNORECASE)
_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?|([0-9.]+):\d{1,5}")


class TrustedProxies(Struct, frozen=True):
    """The proxies that may say who their client is: networks, and whether the Unix socket belongs to one."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    unix: bool = False

    @classmethod
    def of(cls, words: Iterable[str]) -> TrustedProxies:
        """From addresses, networks such as 10.0.0.0/8, and `unix`. Raises ValueError."""
        named = tuple(words)
        return cls(tuple(ip_network(word, strict=False) for word in named if word != UNIX), UNIX in named)

    def client_of(self, scope: Mapping[str, Any]) -> str:
        """The address of the client; empty where there is none, as on a Unix socket."""
        peer = scope.get("client")
        address: str = peer[0] if peer else ""
        if (self.networks or self.unix) and self._trusts(address):
            for hop in _hops(scope["headers"]):
                address = hop
                if not self._trusts(hop):
                    break
        return address

    def _trusts(self, address: str) -> bool:
        if not address:
            return self.unix
        try:
            found = ip_address(address)
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.networks)


def _hops(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    """The addresses of the list, the last one first, up to the first that is none."""
    found = [(name, value.decode("latin-1")) for name, value in headers if name in (b"x-forwarded-for", b"forwarded")]
    named = [part for name, value in found if name == b"x-forwarded-for" for part in value.split(",")]
    if not named:
        named = [part.strip('"') for _, value in found for part in _FOR.findall(value)]
    for part in named[: -HOPS - 1 : -1]:
        shown = part.strip()
        with_port = _PORT.fullmatch(shown)
        try:
            yield str(ip_address((with_port[1] or with_port[2]) if with_port else shown))
        except ValueError:
            return
