"""What the docker sandbox asks of its engine, with a program in its place that only writes down what it is told. What
containers really hold is in test_sandbox_docker.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninelives.tools.base import Output, Place
from ninelives.tools.sandbox.base import UID, Sandbox
from ninelives.tools.sandbox.docker import DockerOptions
from ninelives.tools.sandbox.kinds import choose
from tests.tools.sandboxes import place_in, shop_of

OWN = UID if os.geteuid() == 0 else os.geteuid()
_ENGINE = """#!/bin/sh
echo "$@" >>{log}
case "$1 $2" in
  "inspect "*) exit 1;;
  "exec -i") [ ! -e {log}.deaths ] || {{ rm {log}.deaths; exit 137; }}
    echo ready; while read -r group; do echo "{answer} $group"; done;;
  "exec "*) echo inside;;
esac
"""


class Engine:
    def __init__(self, folder: Path) -> None:
        self.log, self.program = folder / "asked", folder / "docker"
        self.answer("ended")

    def answer(self, word: str) -> None:
        """What the guardian says about the end of a call."""
        self.program.write_text(_ENGINE.format(log=self.log, answer=word))
        self.program.chmod(0o755)

    def asked(self, word: str) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(word)]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.fixture
def sandbox(engine: Engine, tmp_path: Path) -> Iterator[Sandbox]:
    environ = {"PATH": os.environ["PATH"]}
    made = choose("docker", DockerOptions("img:1", tmp_path / "calls", str(engine.program), environ=environ))
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def _sh(sandbox: Sandbox, place: Place) -> Output:
    async with shop_of(sandbox) as shop:
        return await (await shop.toolbox.prepare("terminal", json.dumps({"command": "true"}), place)).run()


async def test_a_container_has_no_network_no_capability_and_bounds(
    engine: Engine, sandbox: Sandbox, place: Place
) -> None:
    assert await _sh(sandbox, place) == Output("inside\n")
    (made,) = engine.asked("run")
    for words in (
        "--network none",
        "--cap-drop ALL --cap-add KILL",
        "--security-opt no-new-privileges",
        "--read-only",
        "--security-opt seccomp=",
        "--pull never",
        f"--user {OWN}:{OWN}",
        "--memory 2147483648 --memory-swap 2147483648 --pids-limit 256",
        f"--volume {place.workspace}:{place.workspace}",
    ):
        assert words in made, words
    assert "--privileged" not in made and "docker.sock" not in made


async def test_each_call_has_a_group_of_its_own_in_the_same_container(
    engine: Engine, sandbox: Sandbox, place: Place
) -> None:
    for _ in range(3):
        await _sh(sandbox, place)
    entered = [line.split()[2] for line in engine.asked("exec --user")]
    assert entered == [f"{OWN}:{group}" for group in (20_000, 20_001, 20_002)]
    assert len(engine.asked("run")) == 1 and len(engine.asked("exec -i --user 0:0")) == 1
    assert list((place.workspace.parents[2] / "calls").glob("*/*")) == [], "a file of a call is left"


async def test_a_call_that_the_guardian_cannot_end_costs_the_container_a_restart(
    engine: Engine, sandbox: Sandbox, place: Place
) -> None:
    engine.answer("left")
    await _sh(sandbox, place)
    assert [line.split()[:3] for line in engine.asked("restart")] == [["restart", "-t", "0"]]
    await _sh(sandbox, place)
    assert len(engine.asked("exec -i --user 0:0")) == 2, "a new guardian"


async def test_a_guardian_that_an_older_one_ended_is_started_again(
    engine: Engine, sandbox: Sandbox, place: Place
) -> None:
    """The guardian of a server that ends ends all processes of the container, also a new guardian."""
    engine.log.with_name(f"{engine.log.name}.deaths").touch()
    assert await _sh(sandbox, place) == Output("inside\n")
    assert len(engine.asked("exec -i --user 0:0")) == 2, "a new guardian"


def test_a_sandbox_of_containers_says_what_it_holds(sandbox: Sandbox) -> None:
    held = sandbox.holds
    assert sandbox.kind == "docker" and "img:1" in sandbox.says and "no network" in sandbox.says
    assert not held.network and held.call_memory_bytes == 2 << 30 and held.nothing_survives and not held.oom_floor
