"""Rules for ending what a call left behind: only what is surely its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ninelives.core.events import Process
from ninelives.tools.sandbox import reaper
from ninelives.tools.sandbox.child import GroupLeader
from ninelives.tools.sandbox.reaper import end_group, end_leftover, identify
from tests.tools.conftest import alive, eventually

NOBODY = 2**22 + 1
"""Above the highest pid of any kernel: no process can have it."""


@pytest.fixture
def call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


class Starter:
    """Starts session leaders and ends them after the test, with what they started. Only pidfds are signalled: a pid or
    a group number may be a stranger's by then."""

    def __init__(self) -> None:
        self._pidfds: list[int] = []
        self._leaders: list[subprocess.Popen[bytes]] = []

    def __call__(self, command: str, **environ: str) -> subprocess.Popen[bytes]:
        """A session leader with just this environment."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], env=environ, start_new_session=True, stdout=subprocess.PIPE
        )
        self._leaders.append(process)
        self._pidfds.append(os.pidfd_open(process.pid))
        return process

    def background(self, leader: subprocess.Popen[bytes]) -> int:
        """The pid of the background process that a leader prints. The leader must not have ended."""
        assert leader.stdout is not None
        pid = int(leader.stdout.readline())
        self._pidfds.append(os.pidfd_open(pid))
        assert os.getpgid(pid) == leader.pid
        return pid

    def end(self) -> None:
        for pidfd in self._pidfds:
            with suppress(ProcessLookupError):  # the test ended it
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for process in self._leaders:
            process.communicate()


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    starter.end()


@pytest.fixture(params=["by pidfd", "before Linux 6.9"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to kill a group. A flag that no kernel knows gets the answer of an old kernel."""
    if request.param != "by pidfd":
        monkeypatch.setattr(reaper, "_TO_GROUP", 1 << 30)


def _named(process: subprocess.Popen[bytes]) -> Process:
    name = identify(process.pid)
    assert name is not None
    return name


def test_a_process_is_named_by_boot_pid_and_start_time(start: Starter) -> None:
    begun = start("exec sleep 300")
    name = _named(begun)
    assert name == _named(begun) and name.pid == begun.pid and len(name.boot.split()[0]) == 36
    assert abs(name.started / os.sysconf("SC_CLK_TCK") - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    assert identify(NOBODY) is None


def test_a_name_with_any_characters_does_not_confuse_it(tmp_path: os.PathLike[str]) -> None:
    odd = os.path.join(tmp_path, ") R 1 1 1 (")
    os.symlink("/bin/sleep", odd)
    with subprocess.Popen([odd, "300"]) as process:
        name = _named(process)
        process.kill()
    assert name.started > 1000


@pytest.mark.usefixtures("kernel")
def test_on_a_full_match_the_whole_group_is_ended(start: Starter, call_id: str) -> None:
    begun = start("sleep 300 & echo $!; sleep 300")  # no environment: the leader alone vouches for the group
    background, name = start.background(begun), _named(begun)
    assert end_leftover(name, call_id)
    assert not alive(begun.pid) and not alive(background)
    assert not end_leftover(name, call_id)


@pytest.mark.parametrize("wrong", ["boot", "pid", "older", "younger"])
def test_if_one_of_the_three_differs_nothing_is_touched(start: Starter, call_id: str, wrong: str) -> None:
    begun = start("exec sleep 300")
    name = _named(begun)
    other = {
        "boot": Process("another", name.pid, name.started),
        "pid": Process(name.boot, NOBODY, name.started),
        "older": Process(name.boot, name.pid, name.started + 1),
        "younger": Process(name.boot, name.pid, name.started - 1),
    }
    assert not end_leftover(other[wrong], call_id)
    assert alive(begun.pid)


def test_another_boot_is_believed_even_over_the_call_id(start: Starter, call_id: str) -> None:
    begun = start("exec sleep 300", NINELIVES_CALL_ID=call_id)
    assert not end_leftover(msgspec.structs.replace(_named(begun), boot="another"), call_id)
    assert alive(begun.pid)


async def test_members_without_their_leader_are_ended_only_with_the_call_id(start: Starter, call_id: str) -> None:
    ours = start("sleep 300 & echo $!; read go", PATH="/usr/bin:/bin", NINELIVES_CALL_ID=call_id)
    foreign = start("sleep 300 & echo $!; read go", PATH="/usr/bin:/bin", NINELIVES_CALL_ID=f"{call_id}0")
    names, pids = [], []
    for begun in (ours, foreign):
        pids.append(start.background(begun))
        names.append(_named(begun))
        begun.kill()
        begun.wait()
    assert not any(alive(name.pid) for name in names) and all(map(alive, pids))
    assert not end_leftover(names[1], call_id)
    assert end_leftover(names[0], call_id)
    assert not alive(pids[0]) and alive(pids[1])


async def test_the_call_id_alone_does_not_condemn_a_process(start: Starter, call_id: str) -> None:
    launcher = start("exec sleep 300", PATH="/usr/bin:/bin", NINELIVES_CALL_ID=call_id)
    bystander = start("exec sleep 300", PATH="/usr/bin:/bin", NINELIVES_CALL_ID=call_id)
    daemon = start(
        "exec sleep 300", PATH="/usr/bin:/bin", NINELIVES_CALL_ID=call_id, NINELIVES_LAUNCHER=str(launcher.pid)
    )
    await eventually(lambda: all(alive(each.pid) for each in (launcher, bystander, daemon)))
    assert end_leftover(_named(launcher), call_id)
    assert alive(bystander.pid) and not alive(launcher.pid) and not alive(daemon.pid)


def test_what_is_older_than_the_launcher_is_not_of_it(start: Starter, call_id: str) -> None:
    older = start("exec sleep 300", PATH="/usr/bin:/bin", NINELIVES_CALL_ID=call_id, NINELIVES_LAUNCHER=str(NOBODY))
    name = _named(older)
    claimed = Process(name.boot, NOBODY, name.started + 1)
    assert not end_leftover(claimed, call_id)
    assert alive(older.pid)


def test_another_pid_namespace_is_another_machine(start: Starter, call_id: str) -> None:
    """Containers of one machine share its boot id, but their pids name different processes."""
    begun = start("exec sleep 300", NINELIVES_CALL_ID=call_id)
    name = _named(begun)
    boot, namespace = name.boot.split()
    assert namespace == os.readlink("/proc/self/ns/pid")
    assert not end_leftover(msgspec.structs.replace(name, boot=f"{boot} pid:[1]"), call_id)
    assert not end_leftover(msgspec.structs.replace(name, boot=boot), call_id)
    assert alive(begun.pid)


def test_a_process_that_does_not_lead_a_session_is_no_launcher(call_id: str) -> None:
    """It has the pid and the start time of the launcher, but the group is that of another."""
    with subprocess.Popen(["sleep", "300"], process_group=0) as begun:
        assert not end_leftover(_named(begun), call_id)
        assert alive(begun.pid)
        begun.kill()


def test_a_pid_that_changes_hands_before_the_signal_is_left_alone(
    start: Starter, call_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass over /proc found a process of the launcher; when it is to be killed, its pid is another's."""
    ours = start("exec sleep 300", NINELIVES_CALL_ID=call_id)
    stranger = start("exec sleep 300")
    left = [[stranger.pid]]
    monkeypatch.setattr(reaper, "_left", lambda launcher, call_id: left.pop() if left else [])
    assert end_leftover(_named(ours), call_id)
    assert alive(stranger.pid) and alive(ours.pid)


@pytest.mark.usefixtures("kernel")
async def test_a_group_is_killed_through_its_leader_until_that_is_reaped(start: Starter) -> None:
    begun = start("sleep 300 & echo $!; sleep 300")
    background, leader = start.background(begun), GroupLeader(begun)
    leader.kill()
    assert await leader.wait(10) and leader.exited.result() == -signal.SIGKILL
    await eventually(lambda: not alive(background))
    leader.kill()
    leader.reap()


@pytest.mark.usefixtures("kernel")
def test_a_reaped_leader_is_not_found_by_its_number(start: Starter) -> None:
    """The number of its group may be a stranger's by then: whoever has it now is not touched."""
    begun, stranger = start("read go"), start("exec sleep 300")
    pidfd = os.pidfd_open(begun.pid)
    begun.kill()
    begun.wait()
    try:
        assert not end_group(pidfd, stranger.pid)
    finally:
        os.close(pidfd)
    assert alive(stranger.pid)


def test_no_test_signals_another_process_by_its_number() -> None:
    """A pid or a group number may be a stranger's. Popen and signal_child() check it; os.kill() does not."""
    by_number = re.compile(r"os\.kill(?:pg)?\((?!os\.getpid\(\))|\b(?:pkill|killall)\b")
    tests = Path(__file__).parents[1]
    found = [path for path in tests.rglob("*.py") if path != Path(__file__) and by_number.search(path.read_text())]
    assert found == []
