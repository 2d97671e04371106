"""What the machine must give. Owns: the checks of data directory, disk, clock and port. Refuses to know: the model, the
tools and the sandbox (parts.py)."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from ninelives.app.address import local_url, published_address
from ninelives.app.settings import LoadedSettings

WRITTEN_BYTES = 1_048_576
"""What is written to see whether the disk takes it."""
AHEAD_S = 300.0
"""A file whose time is further ahead than this was written by another clock."""


class Check(Struct, frozen=True):
    """The result of one check. `remedy` says what to do about a red one."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def data_directory(loaded: LoadedSettings) -> Check:
    """Can it be written, and has its disk more free space than the server keeps?"""
    path, keep = loaded.settings.server.data_path, loaded.settings.store.low_water_bytes
    other = "Name another directory: server.data_dir (--data-dir)."
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(WRITTEN_BYTES))
            file.flush()
            os.fsync(file.fileno())
            found = os.statvfs(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Check("data directory", False, f"the disk of {path} is full", f"Delete files there. {other}")
        return Check("data directory", False, f"{path} cannot be written: {error.strerror}", other)
    free = found.f_bavail * found.f_frsize
    shown = f"{path}, {free // 2**20} MiB free"
    if free < keep:
        needs = f"{shown}, and the server stores nothing below {keep // 2**20} MiB (store.low_water_bytes)"
        return Check("data directory", False, needs, f"Delete files there. {other}")
    return Check("data directory", True, shown)


def clock(loaded: LoadedSettings) -> Check:
    """Is the clock behind the files that were written on this machine? Retention, leases and TLS depend on it."""
    data = loaded.settings.server.data_path
    files = [Path(__file__), *(data / name for name in ("ninelives.db", "ninelives.db-wal", "key"))]
    newest = max(file.stat().st_mtime for file in files if file.exists())
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if newest > now + AHEAD_S:
        late = f"{shown} is {newest - now:.0f} s before files that were written here"
        return Check("clock", False, late, "Set the clock: `timedatectl set-ntp true`, or start your NTP service.")
    return Check("clock", True, shown)


async def port(loaded: LoadedSettings) -> Check:
    """Can the server listen? A server of the same data directory that runs already is fine."""
    from ninelives.http.edge.server import listen

    server = loaded.settings.server
    if server.uds:
        folder = os.path.dirname(server.uds) or "."
        if os.access(folder, os.W_OK):
            return Check("port", True, f"{server.uds}, a Unix socket")
        return Check(
            "port", False, f"{folder} cannot be written", "Create it, or choose another path: server.uds (--uds)."
        )
    where = f"{server.host}:{server.port}"
    if published_address(server.data_path) == local_url(server.host, server.port) and await _answers(server.port):
        return Check("port", True, f"{where}, a server of this data directory listens")
    try:
        listen(server.host, server.port, 10.0).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            use = f"{where} is used by another program"
            return Check("port", False, use, "End that program, or choose another port: server.port (--port).")
        remedy = "Choose another address: server.host and server.port (--host, --port)."
        return Check("port", False, f"{where} cannot be listened on: {error.strerror}", remedy)
    return Check("port", True, f"{where} is free")


async def _answers(number: int) -> bool:
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection("127.0.0.1", number)
    except OSError:
        return False
    writer.close()
    return True
