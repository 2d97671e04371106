"""The network addresses that a tool may connect to. Owns: that one rule. Refuses to know: names, sockets and what is
fetched.

The rule looks at the address that a connection goes to, never at how it was written. Only public addresses pass. An
address that stands for another one (IPv4 inside IPv6, tunnels, translators) does not pass, because unknown machines
decide where it leads."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_STAND_INS = tuple(
    (ipaddress.IPv6Network(network), words)
    for network, words in (
        ("::/96", "an IPv4 address in an old IPv6 form"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6 form"),
        ("::ffff:0:0:0/96", "an IPv4 address in translated form"),
        ("64:ff9b::/96", "an IPv4 address in translated form (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address in translated form (NAT64)"),
        ("2001::/32", "the end of a tunnel (Teredo)"),
        ("2002::/16", "the end of a tunnel (6to4)"),
    )
)
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # public by number, but an internal service address of a cloud
        "192.0.0.0/24",
        "192.88.99.0/24",
        "2001::/23",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)
"""Networks that not every version of `ipaddress` treats as special."""


def why_not(address: Address) -> str | None:
    """Why nothing is fetched from an address, as a text that follows "it is". None if it is public."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return "bound to one interface"
        for network, words in _STAND_INS:
            if address in network:
                return words
    if any(address in network for network in _SPECIAL):
        return "kept for a special use"
    if address.is_multicast or address.is_reserved or address.is_unspecified:
        return "not the address of one machine"
    if address.is_loopback or address.is_link_local or address.is_private or not address.is_global:
        return "not a public address"
    return None
