"""A real load balancer with the configuration that is shipped. Owns: nginx or haproxy in front of the replicas of a
trial, from deploy/, with nothing changed but addresses. Refuses to know: what is asked of them."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lab.bench.machine import free_port
from ninelives.drill.processes import START_S

BalancerKind = Literal["nginx", "haproxy"]
DEPLOY = Path(__file__).parents[2] / "deploy"
NAMES = ("one", "two", "three")
FILES: dict[BalancerKind, str] = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}


def program(kind: str) -> str | None:
    """Where it is installed. Debian's packages put some of them outside the PATH of a user."""
    return shutil.which(kind, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def configuration(kind: BalancerKind, port: int, replicas: Sequence[tuple[str, int]]) -> str:
    """The shipped file, for replicas at these addresses and clients at this port."""
    text = (DEPLOY / FILES[kind]).read_text()
    for name, (host, at) in zip(NAMES, replicas, strict=True):
        text, count = re.subn(rf"\b{name}:8642\b", f"{host}:{at}", text)
        assert count, f"{FILES[kind]} names no replica {name}"
    text, count = re.subn(r"(listen |bind :)8080\b", lambda found: _own(found[1], port), text)
    assert count == 1, f"{FILES[kind]} has {count} ports for clients"
    return text


def _own(word: str, port: int) -> str:
    return f"{word.removesuffix(':')}127.0.0.1:{port}"


class Balancer:
    """`async with Balancer(...) as balancer:` takes connections at 127.0.0.1:balancer.port."""

    def __init__(self, kind: BalancerKind, folder: Path, replicas: Sequence[tuple[str, int]]) -> None:
        self.kind = kind
        self.port = free_port("127.0.0.1")
        self._folder, self._replicas = folder, replicas
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Balancer:
        path = program(self.kind)
        assert path is not None, f"{self.kind} is not installed (apt-get install {self.kind})"
        home = self._folder / self.kind
        home.mkdir(parents=True, exist_ok=True)
        file = home / FILES[self.kind]
        file.write_text(configuration(self.kind, self.port, self._replicas))
        argv = [path, "-f", str(file), "-db"]
        if self.kind == "nginx":
            argv = [path, "-p", str(home), "-c", str(file), "-e", str(home / "error.log")]
            argv += ["-g", f"daemon off; pid {home / 'pid'};"]
        with (home / "said").open("ab") as said:
            self._child = await asyncio.create_subprocess_exec(*argv, stdout=said, stderr=said)
        async with asyncio.timeout(START_S):
            while not await self._takes():
                assert self._child.returncode is None, (home / "said").read_text()
                await asyncio.sleep(0.02)
        return self

    async def _takes(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.transport.abort()
        return True

    async def __aexit__(self, *_: object) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.terminate()
            await self._child.wait()
