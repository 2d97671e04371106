"""The benchmark at work: both load generators against themselves, and one small run of the command from end to end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lab.bench import generator
from lab.bench.client import Seen
from lab.bench.counters import Counter
from lab.bench.figures import CONTROL, DIRECT, DURABLE, FLOOR, Report
from lab.bench.machine import Fleet, Server, free_port, go_first, pinned
from tests.bench import made

GENERATORS = ["c", "python"]
DEADLINE_S = 60


@pytest.fixture(scope="module", params=GENERATORS)
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[str], Server]]:
    """The client's command, and the upstream of the same generator."""
    folder = tmp_path_factory.mktemp("generator")
    if request.param == "c" and not any(map(shutil.which, generator.COMPILERS)):
        pytest.skip("no C compiler")
    found = generator.find(folder, generator.COMPILERS if request.param == "c" else ())
    assert bool(found.warning) == (request.param == "python")
    cores = tuple(os.sched_getaffinity(0))
    with Fleet(folder, found.wrap) as fleet:
        yield [*found.argv, "client"], fleet.start("upstream", [*found.argv, "upstream", "--port", "0"], cores)


def client(command: list[str], address: str, **options: object) -> Seen:
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    done = subprocess.run([*command, "--url", address, *words], capture_output=True, check=True, timeout=DEADLINE_S)
    return msgspec.json.decode(done.stdout, type=Seen)


def test_a_client_sees_every_token_of_every_mode(ends: tuple[list[str], Server]) -> None:
    command, upstream = ends
    for mode, options in {
        "paced": {"streams": 5, "n": 10, "pace_us": 20_000, "ramp_ms": 50},
        "flood": {"streams": 4, "n": 50, "rounds": 2},
        "first": {"streams": 3, "n": 4, "pace_us": 1000},
        "tiny": {"streams": 2, "n": 3, "seconds": 0.2, "whole": 1},
    }.items():
        seen = client(command, upstream.address, mode=mode, **options)
        assert (seen.errors, seen.wrong, seen.unfinished, seen.error_sample) == (0, 0, 0, ""), mode
        assert seen.tokens == seen.expected > 0 and seen.requests > 0, mode
        assert seen.latency_us.count == seen.tokens and 0 <= seen.latency_us.p50 <= seen.latency_us.max, mode


def test_a_client_tells_what_went_wrong(ends: tuple[list[str], Server]) -> None:
    command, upstream = ends
    seen = client(command, upstream.address, mode="first", streams=2, n=3, path="/nowhere", body_extra="{}")
    assert (seen.errors, seen.requests, seen.tokens) == (2, 0, 0)
    assert "no such route" in seen.error_sample


def test_a_held_stream_goes_on_when_it_is_released(ends: tuple[list[str], Server]) -> None:
    _, upstream = ends
    body = {"stream": True, "messages": [{"role": "user", "content": "[[bench n=2 pace_us=600000000]]"}]}
    asked = urllib.request.Request(f"http://{upstream.address}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as held:
        while b"@" not in held.readline():
            pass
        with urllib.request.urlopen(f"http://{upstream.address}/bench/release", timeout=DEADLINE_S) as answer:
            assert answer.status == 200
        rest = held.read()
    assert rest.count(b"@") == 1 and rest.rstrip().endswith(b"[DONE]")


IN_USE = {"NINELIVES_STORE_URL": "postgresql://me@127.0.0.1:1/in_use", "NINELIVES_SERVER_KEY": "hk-0123456789-in-use"}
"""The configuration of a server that is in use: nobody listens there, so that whoever asks it is not started."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One small run of the command: the floor is also its peer, and the report that it is compared with is too good."""
    folder = tmp_path_factory.mktemp("run")
    upstream, old = free_port(), folder / "old.json"
    old.write_bytes(msgspec.json.encode(made.report(made.figure("tiny-1", DURABLE, cpu_us=0.001))))
    peer = ["-m", "lab.bench.floor", "--model-url", f"http://127.0.0.1:{upstream}/v1"]
    with Fleet(folder) as fleet:
        other = fleet.start("other", [sys.executable, *peer], tuple(os.sched_getaffinity(0)))
        words = ["--quick", "--only", f"tiny-1,control,{FLOOR},{DURABLE},other", "--beside-others"]
        words += ["--upstream-port", str(upstream), "--peer", f"other=http://{other.address}/v1,a-key"]
        words += ["--out", str(folder / "out"), "--report", str(folder / "page"), "--compare", str(old)]
        command = [sys.executable, "-m", "lab.bench", *words]
        env = {**os.environ, **IN_USE}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env), folder


Measured = tuple[subprocess.CompletedProcess[str], Path]


def test_the_command_measures_every_target_side_by_side(measured: Measured) -> None:
    done, folder = measured
    report = msgspec.json.decode((folder / "out" / "latest.json").read_bytes(), type=Report)
    assert not report.missing, done.stdout + done.stderr
    for target in (DIRECT, FLOOR, DURABLE, "other"):
        it = report.find("tiny-1", target)
        assert it is not None and it.values["requests"] > 0 and not it.failed, done.stdout
        assert (it.get("cpu_us") or 0) > 0 or target == DIRECT, done.stdout
    assert (folder / "page" / "results.md").exists() and (folder / "page" / "tiny.svg").exists()
    assert not list((folder / "out").glob("data-*"))


def test_the_store_and_the_key_that_are_configured_are_never_used(measured: Measured) -> None:
    done, folder = measured
    report = msgspec.json.decode((folder / "out" / "latest.json").read_bytes(), type=Report)
    it = report.find("tiny-1", DURABLE)
    assert it is not None and it.values["requests"] > 0, done.stdout + done.stderr
    assert "in_use" not in done.stdout + done.stderr + (folder / "out" / "ninelives.log").read_text()


def test_fifty_planted_microseconds_show(measured: Measured) -> None:
    done, folder = measured
    report = msgspec.json.decode((folder / "out" / "latest.json").read_bytes(), type=Report)
    floor, control = report.find("control", FLOOR), report.find("control", CONTROL)
    assert floor is not None and control is not None and not control.failed
    # the control burns CPU by its own clock, so this holds however busy the machine is
    assert control.values["cpu_us"] > max(50.0, floor.values["cpu_us"] + 25), done.stdout
    assert "a planted 50 µs per event shows" in done.stdout


def test_a_cost_that_rose_is_told_by_the_exit_code(measured: Measured) -> None:
    done, _ = measured
    assert done.returncode == 1 and f"REGRESSION  tiny-1 {DURABLE}: CPU µs" in done.stdout, done.stdout + done.stderr


def test_a_load_that_is_not_there_is_told_with_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab.bench", "--only", "hurry"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "no load or target is called hurry" in done.stderr


def test_the_counter_counts_what_a_process_does_where_the_kernel_lets_it() -> None:
    software, task_clock = 1, 1
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        counter = Counter([spinning.pid], software, task_clock)
        began = time.monotonic()
        counted = 0
        while not counted and time.monotonic() - began < 5:
            time.sleep(0.1)
            counted = counter.close() or 1
        if counter.missing:
            pytest.skip(counter.missing)
        assert counted > 1
    finally:
        spinning.kill()
        spinning.wait()


def test_the_generator_goes_before_others_and_what_it_starts_does_not_inherit_that() -> None:
    code = "import os, subprocess, sys; input(); print(os.sched_getscheduler(0) & 3, flush=True);" + (
        "subprocess.run([sys.executable, '-c', 'import os; print(os.sched_getscheduler(0) & 3)'], check=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        go_first(child.pid)
    except PermissionError:
        child.kill()
        child.communicate(timeout=DEADLINE_S)
        pytest.skip("needs root")
    told, _ = child.communicate("\n", timeout=DEADLINE_S)
    assert told.split() == [str(os.SCHED_RR), str(os.SCHED_OTHER)]


def test_children_inherit_the_cores_they_are_pinned_to() -> None:
    mine = sorted(os.sched_getaffinity(0))
    with pinned([mine[0]]):
        told = subprocess.run(
            [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"],
            capture_output=True,
            text=True,
            check=True,
        )
    assert told.stdout.strip() == str([mine[0]]) and sorted(os.sched_getaffinity(0)) == mine
