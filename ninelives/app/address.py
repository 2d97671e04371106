"""The address of a server. Owns: its URL, and the file in the data directory that names it while it runs. Commands
send the key of a data directory to no other server. Refuses to know: who asks."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

_FILE = "address"


def server_url(host: str, port: int, scheme: str = "http") -> str:
    """The URL of a server that listens on this address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def local_url(host: str, port: int, scheme: str = "http") -> str:
    """The same as seen from this machine, where `host` may mean all addresses."""
    return server_url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, scheme)


UNIX = "unix:"
"""Begins the address of a server that listens on a Unix socket."""


class ServerAddress(NamedTuple):
    """Where a server listens: its URL (unix:PATH for a Unix socket), the same as seen from here, and a short name."""

    url: str
    local: str
    name: str


def address_of(bound: Any, scheme: str) -> ServerAddress:
    """The address of a bound socket, given by its name: a path, or host and port."""
    if isinstance(bound, str):
        path = Path(bound).absolute()
        return ServerAddress(f"{UNIX}{path}", f"{UNIX}{path}", path.name)
    host, port = bound[:2]
    return ServerAddress(server_url(host, port, scheme), local_url(host, port, scheme), str(port))


def publish_address(data: Path, url: str) -> None:
    """Name the server that runs on this data directory. Raises OSError."""
    draft = data / f"{_FILE}.{secrets.token_hex(4)}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(url + "\n")
    draft.replace(data / _FILE)


def withdraw_address(data: Path, url: str) -> None:
    """Take the name back, unless it is another server's by now."""
    if published_address(data) == url:
        with suppress(OSError):
            (data / _FILE).unlink()


def published_address(data: Path) -> str:
    """The URL of the server on this data directory; empty for none."""
    try:
        return (data / _FILE).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
