"""The cluster itself. Owns: the processes of one trial (database, scripted upstream, replicas, balancer) and every way
in which a replica is ended, frozen, thawed and brought back. Refuses to know: what is asked of them, and why."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ninelives.core.hosts import is_loopback
from ninelives.drill import TRACES_ENV
from ninelives.drill.own import EVERYWHERE, PROBE_MODULE
from ninelives.drill.processes import ROOT, START_S, launch_clean, signal_child
from tests.cluster.balancer import Balancer, BalancerKind
from tests.cluster.database import CONNECTIONS, Database
from tests.cluster.failover import Pair
from tests.cluster.ground import Ground, Loopback, ground
from tests.cluster.lines import Line
from tests.cluster.pooler import Pooler
from tests.cluster.proxy import Proxy

KEEPALIVE_S = 1.0
SHORT_S = 4.0
"""A lease that a trial can outlast."""
LISTENS = re.compile(r"listening on http://[\w.\-]+:(\d+)")


@dataclass(frozen=True)
class Shape:
    """What a cluster is made of."""

    replicas: int = 3
    postgres: bool = True
    """False: one server on SQLite, to try the trials themselves."""
    own_networks: bool = True
    approval: str = "never"
    lease_s: float = 15.0
    """The default of the server; SHORT_S where leases are to end."""
    hold_s: float = 10.0
    """How long new work waits for a database that is away."""
    balancer: BalancerKind | None = None
    """A real one, as it is shipped; None: ours (proxy.py)."""
    standby: Literal["synchronous", "asynchronous"] | None = None
    """The database has a standby that may take its place."""
    pooler: bool = False
    """Between replicas and database is pgbouncer."""
    connections: int = CONNECTIONS
    """That the database takes."""
    release: Path = ROOT
    """The checkout whose code the replicas begin with."""
    supervised: bool = False
    """With a supervisor, as `ninelives serve` has by default."""
    environ: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = (PROBE_MODULE,)


class Replica:
    """One `ninelives serve`, over all its lives."""

    def __init__(self, name: str, address: str, argv: list[str], environ: dict[str, str], log: Path) -> None:
        self.name = name
        self.release = ROOT
        """The checkout whose code its next life has."""
        self.address = address
        self.port = 0
        self.log = log
        self.frozen = False
        self.lives = 0
        self._argv, self._environ = argv, environ
        self._child: asyncio.subprocess.Process | None = None

    @property
    def alive(self) -> bool:
        """It runs, frozen or not."""
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int:
        """Of its present life."""
        assert self._child is not None
        return self._child.pid

    @property
    def line(self) -> Line:
        """Straight to it, past the balancer."""
        return Line(self.address, self.port)

    async def start(self) -> float:
        """Start it and wait until it listens, in all its lives on one port: the seconds that this took."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            argv = [*self._argv, "--port", str(self.port)]
            self._child = await asyncio.create_subprocess_exec(
                *argv, cwd=self.release, stdout=asyncio.subprocess.PIPE, stderr=log, env=self._environ, limit=1 << 24
            )
        self.lives += 1
        self.frozen = False
        assert self._child.stdout is not None
        async with asyncio.timeout(START_S):
            while said := (await self._child.stdout.readline()).decode():
                if found := LISTENS.search(said):
                    self.port = int(found[1])
                    return time.monotonic() - began
        raise AssertionError(f"{self.name} did not start:\n{self.last_lines()}")

    def signal(self, number: signal.Signals) -> None:
        """Send it; nothing happens when the process is gone."""
        if self.alive:
            signal_child(self.pid, number)

    async def gone(self, seconds: float = 60.0) -> int:
        """Wait for the end: the exit code."""
        assert self._child is not None
        async with asyncio.timeout(seconds):
            return await self._child.wait()

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        self.signal(signal.SIGKILL)
        await self.gone()

    def freeze(self) -> None:
        """SIGSTOP: it keeps all it has, and does nothing."""
        self.frozen = True
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        self.signal(signal.SIGCONT)

    def last_lines(self, count: int = 15) -> str:
        """The end of what it logged."""
        lines = self.log.read_text("utf-8", "replace").splitlines()[-count:]
        return "\n".join(f"  {line[:500]}" for line in lines) or "  (it logged nothing)"

    async def health(self) -> dict[str, Any]:
        """GET /health/detailed; empty where it has no answer."""
        answer = await self.line.get("/health/detailed", 5.0)
        body: dict[str, Any] = answer.json() if answer.whole and answer.data.startswith(b"{") else {}
        return body


class Cluster:
    """`async with Cluster(folder, shape) as cluster:` all of it is up."""

    def __init__(self, folder: Path, shape: Shape | None = None) -> None:
        self.folder = folder
        self.shape = shape or Shape()
        self.traces = folder / "traces"
        self.proxy = Proxy()
        self.balancer: Balancer | None = None
        self.replicas: list[Replica] = []
        self.database: Database | None = None
        self.pooler: Pooler | None = None
        self.ground: Ground = Loopback()
        self.upstream_log = folder / "upstream.log"
        self._read = 0
        self._stack = AsyncExitStack()
        self._upstream: asyncio.subprocess.Process | None = None
        self.upstream = ""
        self.upstream_line = Line("", 0)

    async def __aenter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            await self._build()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _build(self) -> None:
        shape, stack = self.shape, self._stack
        if shape.postgres:
            self.ground = ground(shape.replicas, own_networks=shape.own_networks)
            stack.callback(self.ground.close)
            self.database = await stack.enter_async_context(self._database())
        if self.database is not None and shape.pooler:
            self.pooler = await stack.enter_async_context(Pooler(self.database, self.folder / "pgbouncer"))
        await self._start_upstream()
        await stack.enter_async_context(self.proxy)
        self.replicas = [self.replica(n) for n in range(shape.replicas if shape.postgres else 1)]
        stack.push_async_callback(self._end_replicas)
        await self.start(self.replicas[0])  # the first makes the tables
        await asyncio.gather(*(self.start(replica) for replica in self.replicas[1:]))
        if shape.balancer is not None:
            addresses = [(replica.address, replica.port) for replica in self.replicas]
            self.balancer = await stack.enter_async_context(Balancer(shape.balancer, self.folder, addresses))

    def _database(self) -> Database:
        where, shape = (self.ground.home, self.ground.trusted, self.shape.connections), self.shape
        return Database(*where) if shape.standby is None else Pair(*where, synchronous=shape.standby == "synchronous")

    async def _start_upstream(self) -> None:
        argv = ("-m", "ninelives.testing.fake_upstream", "--host", self.ground.home, "--log", str(self.upstream_log))
        child = await asyncio.create_subprocess_exec(sys.executable, *argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        self._upstream = child
        self._stack.push_async_callback(self._end_upstream)
        assert child.stdout is not None
        async with asyncio.timeout(START_S):
            self.upstream_line = Line(self.ground.home, int(await child.stdout.readline()))
        self.upstream = f"http://{self.upstream_line.host}:{self.upstream_line.port}"

    async def _end_upstream(self) -> None:
        assert self._upstream is not None
        self._upstream.kill()
        await self._upstream.wait()

    async def _end_replicas(self) -> None:
        for replica in self.replicas:
            if replica.alive:
                await replica.kill()

    def replica(self, n: int, *more: str) -> Replica:
        """One with this number, and options of its own."""
        address = self.ground.address(n)
        argv = [*self.ground.under(n), sys.executable, "-m", "ninelives", "serve", "--host", address]
        argv += [] if is_loopback(address) else ["--allow-remote"]
        argv += ["--data-dir", str(self.folder / f"data-{n}"), "--sandbox", "off", "--approval", self.shape.approval]
        argv += ["--model-url", f"{self.upstream}/v1", "--model", "m"]
        argv += [*more, *([] if self.shape.supervised else ["--no-supervisor"])]
        if self.database is not None:
            argv += ["--store", self.pooler.url if self.pooler is not None else self.database.store_url]
        ours = {
            "NINELIVES_LIMITS_KEEPALIVE_S": str(KEEPALIVE_S),
            "NINELIVES_TOOLS_MODULES": ",".join(self.shape.modules),
            **({"NINELIVES_LIMITS_DRAIN_NOTICE_S": "0"} if self.shape.balancer is not None else {}),
            TRACES_ENV: str(self.traces),
            **{f"NINELIVES_{key.replace('.', '_').upper()}": str(value) for key, value in EVERYWHERE.items()},
            **(self._shared(n) if self.database is not None else {}),
        }
        environ = {**launch_clean(**ours).environ, **self.shape.environ}
        made = Replica(f"r{n}", address, argv, environ, self.folder / f"r{n}.log")
        made.release = self.shape.release
        return made

    def _shared(self, n: int) -> dict[str, str]:
        store = {"NINELIVES_STORE_LEASE_S": str(self.shape.lease_s), "NINELIVES_STORE_HOLD_S": str(self.shape.hold_s)}
        if self.pooler is not None and self.database is not None:
            store |= {"NINELIVES_STORE_PREPARED": "false", "NINELIVES_STORE_DIRECT_URL": self.database.url}
        return {**store, "NINELIVES_SERVER_REPLICA": f"r{n}"}

    async def start(self, replica: Replica) -> float:
        """Bring it up, and let the balancer know where it is."""
        seconds = await replica.start()
        self.proxy.backends[replica.name] = (replica.address, replica.port)
        self.proxy.up.add(replica.name)
        return seconds

    @property
    def line(self) -> Line:
        """Through the balancer, as clients come."""
        return Line("127.0.0.1", (self.balancer or self.proxy).port)

    def news(self) -> list[dict[str, Any]]:
        """What the model was asked since the last call."""
        with self.upstream_log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._read += end
        return [json.loads(line) for line in data[:end].splitlines()]
