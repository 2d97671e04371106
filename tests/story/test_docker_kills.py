"""kill -9 of the server during 200 calls in the docker sandbox: what was finished is not repeated, what was interrupted
is told by its effect, and no container or process is left that nobody owns (P5, P17)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.story.server import Server, Upstream, start_server, wait_until
from tests.tools.containers import IMAGE, Podman, podman
from tests.tools.sandboxes import having, new_mark

pytestmark = pytest.mark.long

RUNS = "/v1/runs"
CALLS, AT_ONCE = 200, 10
KILLS = range(10, 120, 15)
"""The server is killed when so many calls have taken effect. Each kill interrupts up to AT_ONCE others."""


@pytest.fixture
def engine() -> Iterator[Podman]:
    made = podman()
    made.remove_all()
    yield made
    made.remove_all()


def test_p5_kill_9_during_200_calls_in_containers_repeats_nothing_and_leaves_nothing(
    tmp_path: Path, upstream: Upstream, engine: Podman
) -> None:
    tmp_path.chmod(0o711)
    mark = new_mark()
    settings = {"NINELIVES_TOOLS_DOCKER_IMAGE": IMAGE, "NINELIVES_TOOLS_DOCKER_PROGRAM": str(engine.program)}

    def start() -> Server:
        return start_server(tmp_path, upstream.url, sandbox="docker", **settings)

    def done() -> list[str]:
        files = (tmp_path / "data" / "workspaces").glob("*/done")
        return [word for file in files for word in file.read_text().split()]

    def asked(run: int) -> str:
        escape = f"(setsid env -i /usr/bin/sleep {mark} >/dev/null 2>&1 &); "
        numbers = range(run, CALLS, AT_ONCE)
        commands = [f"{escape if number % 7 == 0 else ''}echo c{number} >>$HOME/done" for number in numbers]
        return "[[tools=" + "|".join("terminal:" + json.dumps({"command": command}) for command in commands) + "]]"

    server = start()
    runs = [server.client.post(RUNS, {"input": asked(run)}).json()["run_id"] for run in range(AT_ONCE)]
    for count in KILLS:
        wait_until(lambda least=count: len(done()) >= least, f"{count} calls", 120.0)
        server.kill()
        server = start()
    for run in runs:
        wait_until(lambda r=run: server.client.get(f"{RUNS}/{r}").json()["status"] == "completed", "the end", 120.0)
    receipts: list[dict[str, Any]] = [server.client.get(f"{RUNS}/{run}/receipt").json() for run in runs]
    steps = [step for receipt in receipts for step in receipt["steps"]]
    unknown = [call for receipt in receipts for call in receipt["unknown_outcomes"]]
    times = Counter(done())
    assert len(steps) == CALLS and max(times.values()) == 1, times.most_common(3)
    assert all(receipt["repeated"] == [] for receipt in receipts)
    assert CALLS - len(unknown) <= len(times) <= CALLS, (len(times), len(unknown))
    assert len(unknown) >= 1, "no kill struck a call: the test shows nothing"
    assert {step["outcome"] for step in steps} <= {"known", "unknown"}
    assert having(mark) == [], "a process of a call is left"
    assert len(engine.containers()) == 1, "one owner, one container"
    assert server.stop() == 0
    (name,) = engine.containers()
    wait_until(lambda: engine.processes(name) == [], "the container is idle", 60.0)
    print(f"{CALLS} calls, {len(KILLS)} kills, {len(times)} took effect, {len(unknown)} outcomes unknown")
