"""What is measured, and how it is started: direct, floor, Ninelives (chat, ephemeral, durable), an earlier release, the
control, peers.

A target is an address, a route, a key and the fields that its requests carry; `pid` is the root of the process tree
whose CPU and memory count, none for `direct` and for a peer on another machine. Refuses to know: what is asked of
it."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from lab.bench.cost import listener, rss_mb, tree
from lab.bench.figures import BEFORE, CHAT_DEFAULT, CONTROL, DIRECT, DURABLE, EPHEMERAL, FLOOR, SUPERVISED
from lab.bench.generator import Generator
from lab.bench.machine import Cores, Fleet, NotStarted, Server, go_first

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
CONTROL_BURN_US = 50
DEFAULT = (DIRECT, FLOOR, CHAT_DEFAULT, EPHEMERAL, DURABLE)
MODEL = "hermes-agent"
SETTINGS = {"NINELIVES_LIMITS_CONCURRENT_RUNS": "1024", "NINELIVES_MODEL_STALL_S": "900"}
"""The only settings of the server that are not its defaults: its own limit of 256 runs would refuse the load of 400,
and a model that is held back for the readers would be given up after a minute of silence."""


@dataclass(frozen=True)
class Target:
    """Something that answers."""

    name: str
    address: str
    path: str = CHAT
    key: str = ""
    extra: str = "{}"
    model: str = MODEL
    pid: int | None = None
    start_s: float = 0.0
    rss_idle_mb: float = 0.0
    remark: str = ""

    def argv(self) -> list[str]:
        """The options of the load client that choose this target."""
        own = {"--url": self.address, "--path": self.path, "--key": self.key, "--model": self.model}
        return [word for option in own.items() for word in option] + ["--body-extra", self.extra]

    @property
    def host(self) -> tuple[str, int]:
        """Where to connect."""
        name, _, port = self.address.partition(":")
        return name, int(port)

    @property
    def pids(self) -> list[int]:
        """Its process tree now."""
        return tree(self.pid) if self.pid else []


@dataclass(frozen=True)
class Peer:
    """Another server, as it was given: its requests are chats."""

    name: str
    url: str
    key: str = ""
    model: str = MODEL

    @staticmethod
    def parse(text: str) -> Peer:
        """NAME=URL[,KEY[,MODEL]]"""
        name, equals, rest = text.partition("=")
        url, key, model, *more = [*(part.strip() for part in rest.split(",")), "", ""][:4] if rest else ["", "", ""]
        parts = urlsplit(url)
        if not (name and equals and parts.hostname and parts.scheme == "http") or any(more):
            raise ValueError(
                f"{text!r} is not NAME=URL[,KEY[,MODEL]] with an http:// URL such as http://127.0.0.1:4000/v1"
            )
        return Peer(name.strip(), url, key, model or MODEL)


@dataclass
class Ground:
    """What targets stand on: the fleet, the generator, the upstream, and one Ninelives server for its two targets."""

    fleet: Fleet
    cores: Cores
    generator: Generator
    upstream: Server
    command: list[str]
    data: Path
    peers: Mapping[str, Peer] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    ninelives: Server | None = None
    started: int = 0
    before: list[str] = field(default_factory=list)
    """How the server of an earlier release is started, to measure it in the same run."""
    earlier: Server | None = None
    foreign: bool = False
    """Not ours: `python -m ninelives` of another checkout must not find the one in the current folder."""

    @property
    def model_url(self) -> str:
        """The upstream, as servers are told of it."""
        return f"http://{self.upstream.address}/v1"

    def serve_argv(self, port: int = 0, command: list[str] | None = None, *, supervised: bool = False) -> list[str]:
        """A Ninelives server on a fresh data directory, whatever store is configured: one that is in use must not be
        filled with our runs, nor its runs be carried out by our upstream."""
        self.started += 1
        data = self.data / str(self.started)
        argv = [*(command or self.command), "serve", "--port", str(port), "--data-dir", str(data), "--store", "sqlite"]
        alone = [] if command or self.foreign or supervised else ["--no-supervisor"]  # an earlier release has none
        return [*argv, "--model-url", self.model_url, "--model", "bench", *alone]

    def floor_argv(self, burn_us: int = 0, port: int = 0) -> list[str]:
        """The store-less proxy."""
        argv = [sys.executable, "-m", "lab.bench.floor", "--model-url", self.model_url]
        return [*argv, "--burn-us", str(burn_us), "--port", str(port)]

    @property
    def env(self) -> dict[str, str]:
        """What a Ninelives server is given besides its flags."""
        own_path = {"PYTHONSAFEPATH": "1"} if self.foreign else {}
        return {"API_SERVER_KEY": self.key, "NINELIVES_SERVER_KEY": self.key, **SETTINGS, **own_path}


def ground(fleet: Fleet, cores: Cores, generator: Generator, command: str, data: str, port: int = 0) -> Ground:
    """Start the upstream; `command` is a shell-like line, empty for this interpreter's `-m ninelives`."""
    own = shlex.split(command) or [sys.executable, "-m", "ninelives"]
    upstream = fleet.start("upstream", [*generator.argv, "upstream", "--port", str(port)], cores.load)
    if fleet.ahead:
        go_first(upstream.pid)
    return Ground(fleet, cores, generator, upstream, own, Path(data), foreign=bool(command))


def scratch(out: Path) -> tempfile.TemporaryDirectory[str]:
    """A data directory beside the results: /tmp may be memory, which would flatter the store."""
    return tempfile.TemporaryDirectory(prefix="data-", dir=out, ignore_cleanup_errors=True)


def fresh(on: Ground, name: str) -> Target:
    """A Ninelives server of its own, for loads that must not see what others left in memory."""
    return _durable_of(on, on.fleet.start(name, on.serve_argv(), [on.cores.server], on.env))


def _of(server: Server, name: str, path: str = CHAT, key: str = "", extra: str = "{}") -> Target:
    time.sleep(0.2)
    rss = rss_mb(tree(server.pid))
    return Target(
        name,
        server.address,
        path,
        key,
        extra,
        pid=server.pid,
        start_s=round(server.start_s, 3),
        rss_idle_mb=round(rss, 1),
    )


def _durable_of(on: Ground, server: Server, name: str = DURABLE) -> Target:
    return _of(server, name, path=RESPONSES, key=on.key, extra=json.dumps({"store": True}))


def _direct(on: Ground) -> Target:
    return Target(DIRECT, on.upstream.address)


def _floor(on: Ground) -> Target:
    return _of(on.fleet.start(FLOOR, on.floor_argv(), [on.cores.server]), FLOOR)


def _control(on: Ground) -> Target:
    return _of(on.fleet.start(CONTROL, on.floor_argv(CONTROL_BURN_US), [on.cores.server]), CONTROL)


def _serve(on: Ground) -> Server:
    if on.ninelives is None:
        on.ninelives = on.fleet.start("ninelives", on.serve_argv(), [on.cores.server], on.env)
    return on.ninelives


def _serve_before(on: Ground) -> Server:
    if on.earlier is None:
        env = {**on.env, "PYTHONSAFEPATH": "1"}
        on.earlier = on.fleet.start("before", on.serve_argv(command=on.before), [on.cores.server], env)
    return on.earlier


def _supervised(on: Ground, name: str) -> Target:
    kept = {
        "NINELIVES_SERVER_KEEP_CALLS": str(name in SUPERVISED[1::2]).lower(),
        "NINELIVES_SERVER_KEEP_CLIENTS": str(name in SUPERVISED[2:]).lower(),
    }
    started = on.fleet.start(name, on.serve_argv(supervised=True), [on.cores.server], {**on.env, **kept})
    time.sleep(3)  # for its spare
    return _durable_of(on, started, name)


def _chat(on: Ground, server: Server, name: str, extra: dict[str, bool]) -> Target:
    return _of(server, name, key=on.key, extra=json.dumps(extra))


def _ephemeral(on: Ground) -> Target:
    return _chat(on, _serve(on), EPHEMERAL, {"store": False})


def _durable(on: Ground) -> Target:
    return _durable_of(on, _serve(on))


def _peer(on: Ground, peer: Peer) -> Target:
    parts = urlsplit(peer.url)
    port = parts.port or 80
    try:
        host = socket.gethostbyname(parts.hostname or "")
    except OSError as error:
        raise NotStarted(f"{peer.url} cannot be found: {error}") from error
    pid = listener(port) if host.startswith("127.") else None
    remark = "" if pid else "its process is not to be seen from here, so no CPU or memory of it"
    if pid and on.fleet.ahead:
        remark = "it is not ours to put first: renice it, or compare without --first"
    path = parts.path.rstrip("/").removesuffix("/v1") + CHAT
    rss = rss_mb(tree(pid)) if pid else 0.0
    return Target(
        peer.name, f"{host}:{port}", path, peer.key, model=peer.model, pid=pid, rss_idle_mb=round(rss, 1), remark=remark
    )


_BUILDERS: dict[str, Callable[[Ground], Target]] = {
    DIRECT: _direct,
    FLOOR: _floor,
    CHAT_DEFAULT: lambda on: _chat(on, _serve(on), CHAT_DEFAULT, {}),
    EPHEMERAL: _ephemeral,
    DURABLE: _durable,
    CONTROL: _control,
    BEFORE[0]: lambda on: _chat(on, _serve_before(on), BEFORE[0], {"store": False}),
    BEFORE[1]: lambda on: _durable_of(on, _serve_before(on), BEFORE[1]),
    **{name: partial(_supervised, name=name) for name in SUPERVISED},
}


def start(on: Ground, names: list[str]) -> tuple[list[Target], dict[str, str]]:
    """The targets that started, and for each that did not the reason: the others are measured all the same."""
    started: list[Target] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            started.append(_peer(on, on.peers[name]) if name in on.peers else _BUILDERS[name](on))
        except (NotStarted, OSError) as error:
            missing[name] = str(error)
    return started, missing
