"""What is measured, and how it is started: direct, floor, Holdfast ephemeral, Holdfast durable, the control.

A target is an address, a route, a key and the fields that its requests carry; `pid` is the root of the
process tree whose CPU and memory count, none for `direct`. A peer is one more builder here.
"""

import json
import secrets
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import LOAD, OUT, Cores, Fleet, NotStarted, Server, rss_mb, tree

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
CONTROL_BURN_US = 50
DEFAULT = ("direct", "floor", "holdfast-ephemeral", "holdfast-durable")
ALL = (*DEFAULT, "control")


@dataclass(frozen=True)
class Target:
    name: str
    address: str
    path: str = CHAT
    key: str = ""
    extra: str = "{}"
    pid: int | None = None
    start_s: float = 0.0
    rss_idle_mb: float = 0.0

    def argv(self) -> list[str]:
        """The options of the load client that choose this target."""
        return ["--url", self.address, "--path", self.path, "--key", self.key, "--body-extra", self.extra]


@dataclass
class Ground:
    """What targets stand on: the fleet, the upstream, and one Holdfast server for its two targets."""

    fleet: Fleet
    cores: Cores
    upstream: Server
    holdfast_cmd: list[str]
    data_dir: Path
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    holdfast: Server | None = None

    @property
    def model_url(self) -> str:
        return f"http://{self.upstream.address}/v1"


def ground(fleet: Fleet, cores: Cores, holdfast_cmd: str, data_dir: str) -> Ground:
    """Start the upstream; `holdfast_cmd` is a shell-like line, empty for this interpreter's `-m holdfast`."""
    command = shlex.split(holdfast_cmd) or [sys.executable, "-m", "holdfast"]
    upstream = fleet.start("upstream", [str(LOAD), "upstream", "--port", "0"], cores.load)
    return Ground(fleet, cores, upstream, command, Path(data_dir))


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A data directory on the disk of the repository: /tmp may be memory, which would flatter the store."""
    return tempfile.TemporaryDirectory(prefix="data-", dir=OUT, ignore_cleanup_errors=True)


def _direct(on: Ground) -> Target:
    return Target("direct", on.upstream.address)


def _floor(on: Ground, name: str = "floor", burn_us: int = 0) -> Target:
    argv = [sys.executable, "-m", "bench.floor", "--model-url", on.model_url, "--burn-us", str(burn_us)]
    return _of(on.fleet.start(name, argv, on.cores.server), name)


def _control(on: Ground) -> Target:
    return _floor(on, "control", CONTROL_BURN_US)


def _serve(on: Ground) -> Server:
    if on.holdfast is None:
        argv = [*on.holdfast_cmd, "serve", "--port", "0", "--data-dir", str(on.data_dir)]
        argv += ["--model-url", on.model_url, "--model", "bench"]
        on.holdfast = on.fleet.start("holdfast", argv, on.cores.server, {"API_SERVER_KEY": on.key})
    return on.holdfast


def _ephemeral(on: Ground) -> Target:
    return _of(_serve(on), "holdfast-ephemeral", key=on.key, extra=json.dumps({"store": False}))


def _durable(on: Ground) -> Target:
    return _of(_serve(on), "holdfast-durable", path=RESPONSES, key=on.key, extra=json.dumps({"store": True}))


def _of(server: Server, name: str, path: str = CHAT, key: str = "", extra: str = "{}") -> Target:
    rss = rss_mb(tree(server.pid))
    return Target(name, server.address, path, key, extra, server.pid, round(server.start_s, 3), round(rss, 1))


_BUILDERS: dict[str, Callable[[Ground], Target]] = {
    "direct": _direct,
    "floor": _floor,
    "holdfast-ephemeral": _ephemeral,
    "holdfast-durable": _durable,
    "control": _control,
}


def start(on: Ground, names: list[str]) -> tuple[list[Target], dict[str, str]]:
    """The targets that started, and for each that did not the reason: the others are measured all the same."""
    started: list[Target] = []
    missing: dict[str, str] = {}
    refused = ""
    for name in names:
        if refused and name.startswith("holdfast"):
            missing[name] = refused
            continue
        try:
            started.append(_BUILDERS[name](on))
        except (NotStarted, OSError) as error:
            missing[name] = str(error)
            refused = str(error) if name.startswith("holdfast") else refused
    return started, missing
