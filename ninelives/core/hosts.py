"""Host names. Owns: which of them name this machine. Refuses to know: sockets, settings and requests."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
