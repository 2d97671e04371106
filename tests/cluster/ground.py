"""Where replicas live. Owns: a network namespace with an address of its own for each replica, where such can be made
(root and iproute2), else loopback for all. Refuses to know: what runs there.

The database and the upstream listen on HOME, an address of this machine that every namespace can reach. Pulling a
replica's cable (`cut`) takes the database and all clients from it at once, without a FIN to anybody."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess

WHY_NOT = "no root or no iproute2"


class Loopback:
    """All on 127.0.0.1."""

    name = "loopback"
    home = "127.0.0.1"
    trusted = "127.0.0.0/8"
    cables = False

    def __init__(self, why: str = "") -> None:
        self.why = why

    def address(self, n: int) -> str:
        """Of a replica."""
        return "127.0.0.1"

    def under(self, n: int) -> tuple[str, ...]:
        """What a replica's command begins with."""
        return ()

    def close(self) -> None:
        return


class Namespaces:
    """Replica n has the address 10.A.B.(4n+2) in a namespace of its own."""

    name = "network namespaces"
    cables = True

    def __init__(self, replicas: int) -> None:
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 256}"
        self._word = f"hf{os.getpid() % 100000}"
        self._count = replicas
        self.home = f"{self._net}.254"
        self.trusted = f"{self._net}.0/24"
        self.why = ""
        try:
            _ip("addr", "add", f"{self.home}/32", "dev", "lo")
            for n in range(replicas):
                self._make(n)
        except BaseException:
            self.close()
            raise

    def _make(self, n: int) -> None:
        space, here, there = f"{self._word}n{n}", f"{self._word}a{n}", f"{self._word}b{n}"
        _ip("netns", "add", space)
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
        _ip("addr", "add", f"{self._net}.{4 * n + 1}/30", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "addr", "add", f"{self.address(n)}/30", "dev", there)
        _ip("-n", space, "link", "set", there, "up")
        _ip("-n", space, "route", "add", "default", "via", f"{self._net}.{4 * n + 1}")

    def address(self, n: int) -> str:
        """Of a replica."""
        return f"{self._net}.{4 * n + 2}"

    def under(self, n: int) -> tuple[str, ...]:
        """What a replica's command begins with: exec keeps the pid."""
        return ("ip", "netns", "exec", f"{self._word}n{n}")

    async def cut(self, n: int) -> None:
        """Pull the cable."""
        await asyncio.to_thread(_ip, "link", "set", f"{self._word}a{n}", "down")

    async def join(self, n: int) -> None:
        """Plug it in again."""
        await asyncio.to_thread(_ip, "link", "set", f"{self._word}a{n}", "up")

    def close(self) -> None:
        for n in range(self._count):
            subprocess.run(["ip", "netns", "del", f"{self._word}n{n}"], capture_output=True, check=False)
        subprocess.run(["ip", "addr", "del", f"{self.home}/32", "dev", "lo"], capture_output=True, check=False)


Ground = Loopback | Namespaces


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(args)}: {done.stderr.strip()}")


def ground(replicas: int, *, own_networks: bool = True) -> Ground:
    """Namespaces where they can be made and are wanted."""
    if not own_networks:
        return Loopback("as asked")
    if os.getuid() != 0 or shutil.which("ip") is None:
        return Loopback(WHY_NOT)
    try:
        return Namespaces(replicas)
    except OSError as error:
        return Loopback(str(error))
