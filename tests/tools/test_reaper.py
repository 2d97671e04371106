"""Rules for ending what a call left behind: only what is surely its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest

from holdfast.core.events import Process
from holdfast.tools.reaper import end_leftover, identify
from tests.tools.conftest import alive, eventually

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a session leader with just this environment; it and its group are ended after the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def starting(command: str, **environ: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], env=environ, start_new_session=True, stdout=subprocess.PIPE
        )
        begun.append(process)
        return process

    yield starting
    for process in begun:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            assert not alive(process.pid)
        process.communicate()


def _named(process: subprocess.Popen[bytes]) -> Process:
    name = identify(process.pid)
    assert name is not None
    return name


def _told_pid(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_process_is_named_by_boot_pid_and_start_time(start: Start) -> None:
    begun = start("exec sleep 300")
    name = _named(begun)
    assert name == _named(begun) and name.pid == begun.pid and len(name.boot) == 36
    assert abs(name.started / os.sysconf("SC_CLK_TCK") - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    assert identify(2**22 + 1) is None


def test_a_name_with_any_characters_does_not_confuse_it(tmp_path: os.PathLike[str]) -> None:
    odd = os.path.join(tmp_path, ") R 1 1 1 (")
    os.symlink("/bin/sleep", odd)
    with subprocess.Popen([odd, "300"]) as process:
        name = _named(process)
        process.kill()
    assert name.started > 1000


def test_on_a_full_match_the_whole_group_is_ended(start: Start, call_id: str) -> None:
    begun = start("sleep 300 & echo $!; sleep 300")  # no environment: the leader alone vouches for the group
    background, name = _told_pid(begun), _named(begun)
    assert end_leftover(name, call_id)
    assert not alive(begun.pid) and not alive(background)
    assert not end_leftover(name, call_id)


@pytest.mark.parametrize("wrong", ["boot", "pid", "older", "younger"])
def test_if_one_of_the_three_differs_nothing_is_touched(start: Start, call_id: str, wrong: str) -> None:
    begun = start("exec sleep 300")
    name = _named(begun)
    other = {
        "boot": Process("another", name.pid, name.started),
        "pid": Process(name.boot, name.pid + 1, name.started),
        "older": Process(name.boot, name.pid, name.started + 1),
        "younger": Process(name.boot, name.pid, name.started - 1),
    }
    assert not end_leftover(other[wrong], call_id)
    assert alive(begun.pid)


def test_another_boot_is_believed_even_over_the_call_id(start: Start, call_id: str) -> None:
    begun = start("exec sleep 300", HOLDFAST_CALL_ID=call_id)
    assert not end_leftover(msgspec.structs.replace(_named(begun), boot="another"), call_id)
    assert alive(begun.pid)


async def test_members_without_their_leader_are_ended_only_with_the_call_id(start: Start, call_id: str) -> None:
    ours = start("sleep 300 & echo $!; read go", PATH="/usr/bin:/bin", HOLDFAST_CALL_ID=call_id)
    foreign = start("sleep 300 & echo $!; read go", PATH="/usr/bin:/bin", HOLDFAST_CALL_ID=f"{call_id}0")
    names, pids = [], []
    for begun in (ours, foreign):
        pids.append(_told_pid(begun))
        names.append(_named(begun))
        begun.kill()
        begun.wait()
    assert not any(alive(name.pid) for name in names) and all(map(alive, pids))
    assert not end_leftover(names[1], call_id)
    assert end_leftover(names[0], call_id)
    assert not alive(pids[0]) and alive(pids[1])


async def test_the_call_id_alone_does_not_condemn_a_process(start: Start, call_id: str) -> None:
    launcher = start("exec sleep 300", PATH="/usr/bin:/bin", HOLDFAST_CALL_ID=call_id)
    bystander = start("exec sleep 300", PATH="/usr/bin:/bin", HOLDFAST_CALL_ID=call_id)
    daemon = start(
        "exec sleep 300", PATH="/usr/bin:/bin", HOLDFAST_CALL_ID=call_id, HOLDFAST_LAUNCHER=str(launcher.pid)
    )
    await eventually(lambda: all(alive(each.pid) for each in (launcher, bystander, daemon)))
    assert end_leftover(_named(launcher), call_id)
    assert alive(bystander.pid) and not alive(launcher.pid) and not alive(daemon.pid)


def test_what_is_older_than_the_launcher_is_not_of_it(start: Start, call_id: str) -> None:
    older = start("exec sleep 300", PATH="/usr/bin:/bin", HOLDFAST_CALL_ID=call_id, HOLDFAST_LAUNCHER="1")
    name = _named(older)
    claimed = Process(name.boot, 1, name.started + 1)
    assert not end_leftover(claimed, call_id)
    assert alive(older.pid)
