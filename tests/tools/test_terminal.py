"""Rules of the terminal (R8, P17), under both event loops that the server may run on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ninelives.core.events import Process
from ninelives.drill.processes import signal_child
from ninelives.tools.base import Place, ToolRefused
from ninelives.tools.registry import Toolbox
from ninelives.tools.sandbox.reaper import end_leftover, identify
from tests.tools.conftest import Caller, alive, both_loops, children, eventually, number_in, open_files


def _command(text: str, **more: object) -> str:
    return json.dumps({"command": text, **more})


@both_loops
async def test_output_of_both_kinds_comes_back_as_one_text(call: Caller, place: Place) -> None:
    output = await call("terminal", command="echo one; echo two >&2; pwd")
    assert output.text == f"one\ntwo\n{place.workspace}\n" and not output.is_error


@both_loops
async def test_an_exit_code_and_a_signal_are_told_as_errors(call: Caller) -> None:
    output = await call("terminal", command="printf part; exit 3")
    assert output.text == "part\n[exit code 3]" and output.is_error
    output = await call("terminal", command="kill -TERM $$")
    assert output.text == "[ended by signal 15]" and output.is_error


@pytest.mark.parametrize("command", ["-x", "echo \"$0\" '$1' `echo q`", "printf '%s' 'a\nb'", "cat", "echo é\\\\n"])
@both_loops
async def test_a_command_means_what_it_means_to_a_plain_shell(call: Caller, place: Place, command: str) -> None:
    output = await call("terminal", command=command)
    assert output.text.partition("[exit code")[0] == _plain(command, place)


def _plain(command: str, place: Place) -> str:
    argv = ["/bin/sh", "-c", "--", command]
    said = subprocess.run(argv, cwd=place.workspace, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT)
    return said.stdout.decode()


@both_loops
async def test_nothing_happens_before_permission(toolbox: Toolbox, place: Place) -> None:
    mark = place.workspace / "mark"
    execution = await toolbox.prepare("terminal", _command("touch mark"), place)
    assert execution.process is not None and execution.process == identify(execution.process.pid)
    pid = execution.process.pid
    await eventually(lambda: Path(f"/proc/{pid}/wchan").exists() and _waits(pid))
    assert os.getsid(pid) == pid and os.getpgid(pid) == pid
    assert not mark.exists()
    await execution.run()
    assert mark.exists() and not alive(pid)


def _waits(pid: int) -> bool:
    """It sleeps in the kernel: it has come as far as it can by itself."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2] == "S"


@both_loops
async def test_an_abandoned_call_never_happens(toolbox: Toolbox, place: Place) -> None:
    execution = await toolbox.prepare("terminal", _command("touch mark"), place)
    assert execution.process is not None
    await execution.abandon()
    await execution.abandon()
    assert not alive(execution.process.pid) and children() == set()
    assert not (place.workspace / "mark").exists()
    with pytest.raises(RuntimeError):
        await execution.run()


@both_loops
async def test_a_launcher_that_somebody_killed_is_told_and_runs_nothing(toolbox: Toolbox, place: Place) -> None:
    execution = await toolbox.prepare("terminal", _command("touch mark"), place)
    assert execution.process is not None
    signal_child(execution.process.pid, signal.SIGKILL)
    await eventually(lambda: children() == set())
    output = await execution.run()
    assert output.is_error and "not run" in output.text
    assert not (place.workspace / "mark").exists()


_SERVER = """
import asyncio, json, os, signal, sys
from pathlib import Path
from ninelives.tools.base import Place
from ninelives.tools.registry import Toolbox, builtin_tools

async def main():
    workspace, call_id, command, permit = sys.argv[1:]
    place = Place(owner="o", session="s", call_id=call_id, workspace=Path(workspace))
    execution = await Toolbox(builtin_tools("off")).prepare("terminal", json.dumps({"command": command}), place)
    p = execution.process
    sys.stdout.write(json.dumps([p.boot, p.pid, p.started]))
    sys.stdout.flush()
    if permit == "no":
        os.kill(os.getpid(), signal.SIGKILL)
    asyncio.get_running_loop().add_reader(0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    await execution.run()

asyncio.run(main())
"""


def _server(place: Place, command: str, permit: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(place.workspace), place.call_id, command, permit],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@both_loops
async def test_a_server_killed_before_permission_leaves_a_launcher_that_does_nothing(place: Place) -> None:
    with _server(place, "touch mark", "no") as server:
        told, _ = server.communicate(timeout=60)
        assert server.returncode == -signal.SIGKILL
    process = Process(*json.loads(told))
    await eventually(lambda: not alive(process.pid))
    assert not (place.workspace / "mark").exists()


@both_loops
async def test_a_killed_server_takes_the_group_with_it_and_what_left_that_is_ended_by_name(place: Place) -> None:
    command = (
        "sleep 300 & echo $! >group; "
        "setsid sh -c 'echo $$ >daemon; exec sleep 300' & "
        "exec >&- 2>&-; echo $$ >leader; sleep 300"
    )
    with _server(place, command, "yes") as server:
        names = ("group", "daemon", "leader")
        await eventually(lambda: all(number_in(place.workspace / name) for name in names))
        assert server.stdout is not None and server.stdin is not None
        server.stdin.write(b"die\n")
        server.stdin.flush()
        assert server.wait(30) == -signal.SIGKILL
        process = Process(*json.loads(server.stdout.read()))
    pids = [number_in(place.workspace / name) for name in names]
    assert process.pid == pids[2]
    await eventually(lambda: not alive(pids[0]) and not alive(pids[2]))
    assert alive(pids[1])
    assert end_leftover(process, place.call_id)
    assert not any(map(alive, pids))
    assert not end_leftover(process, place.call_id)


_BACKGROUND = "sleep 300 & echo $! >one; (setsid sleep 300 & echo $! >two); env -i sleep 300 & echo $! >three; "
"""In the group; out of it and of the session; in the group without the environment."""
_PIDS = ("one", "two", "three")


@pytest.mark.parametrize("end", ["sleep 300", "exec sleep 300", "trap '' TERM INT HUP; while :; do sleep 1; done"])
@both_loops
async def test_at_the_timeout_everything_it_started_is_killed(call: Caller, place: Place, end: str) -> None:
    output = await call("terminal", command=f"echo before; {_BACKGROUND}{end}", timeout_s=2.0)
    assert output.text == "before\n[killed: it was still running after 2 s]" and output.is_error
    for name in _PIDS:
        assert not alive(number_in(place.workspace / name))
    assert children() == set()


@both_loops
async def test_the_server_limits_the_time_that_a_model_may_ask_for(call: Caller, place: Place) -> None:
    short = msgspec.structs.replace(place, timeout_s=0.3)
    assert "after 0.3 s" in (await call("terminal", short, command="sleep 300", timeout_s=3600)).text


@both_loops
async def test_at_cancellation_everything_it_started_is_killed(toolbox: Toolbox, place: Place) -> None:
    before = open_files()
    execution = await toolbox.prepare("terminal", _command(f"{_BACKGROUND} sleep 300"), place)
    task = asyncio.create_task(execution.run())
    await eventually(lambda: all(number_in(place.workspace / name) for name in _PIDS))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for name in _PIDS:
        assert not alive(number_in(place.workspace / name))
    assert children() == set() and open_files() == before


@both_loops
async def test_two_cancellations_kill_just_as_one(toolbox: Toolbox, place: Place) -> None:
    before = open_files()
    execution = await toolbox.prepare("terminal", _command("sleep 300 & echo $! >one; sleep 300"), place)
    task = asyncio.create_task(execution.run())
    await eventually(lambda: number_in(place.workspace / "one"))
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = number_in(place.workspace / "one")
    await eventually(lambda: not alive(pid) and children() == set() and open_files() == before)


@both_loops
async def test_a_preparation_that_is_cancelled_leaves_nothing(toolbox: Toolbox, place: Place) -> None:
    await (await toolbox.prepare("terminal", _command("true"), place)).run()
    before = open_files()
    for steps in range(4):
        task = asyncio.create_task(toolbox.prepare("terminal", _command("touch mark"), place))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        if task in done and not task.cancelled():
            await task.result().abandon()
    await eventually(lambda: children() == set() and open_files() == before)
    assert not (place.workspace / "mark").exists()


@both_loops
async def test_what_runs_in_the_background_ends_with_the_command(call: Caller, place: Place) -> None:
    begun = time.monotonic()
    output = await call("terminal", command=f"{_BACKGROUND} echo done")
    assert output.text == "done\n" and not output.is_error
    assert time.monotonic() - begun < 60
    for name in _PIDS:
        assert not alive(number_in(place.workspace / name))


@both_loops
async def test_a_command_sees_nothing_of_the_servers_environment(
    call: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINELIVES_MODEL_API_KEY", "sk-secret")
    seen = dict(line.split("=", 1) for line in (await call("terminal", command="env")).text.splitlines())
    assert seen.pop("NINELIVES_LAUNCHER").isdigit()
    assert seen.pop("PATH").startswith("/usr/local/sbin")
    seen.pop("PWD")  # the shell's own
    assert {k: v for k, v in seen.items() if k not in ("SHLVL", "OLDPWD", "_")} == {
        "HOME": str(place.workspace),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NINELIVES_CALL_ID": place.call_id,
    }


@both_loops
async def test_a_command_inherits_no_open_file_of_the_server(call: Caller, place: Place) -> None:
    kept = os.open(place.workspace, os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        assert (await call("terminal", command="ls /proc/self/fd")).text.split() == ["0", "1", "2", "3"]
    finally:
        os.close(kept)


@both_loops
async def test_output_past_the_bound_is_counted_and_takes_no_memory(call: Caller, place: Place) -> None:
    small = msgspec.structs.replace(place, output_bytes=65_536)
    flood = "head -c 50000000 /dev/zero | tr '\\0' x; exit 4"
    await call("terminal", small, command="echo warm")
    before = _peak_from_now()
    output = await call("terminal", small, command=flood)
    assert _peak() - before < 8 * 1_048_576
    assert output.text == ("x" * 65_536 + "\n[output cut: the first 65536 bytes of 50000000 are shown]\n[exit code 4]")


def _peak_from_now() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@both_loops
async def test_binary_output_becomes_text(call: Caller) -> None:
    output = await call("terminal", command="printf 'a\\377\\000\\303\\251'")
    assert output.text == "a��é"


@both_loops
async def test_many_calls_at_once_and_after_each_other_leak_nothing(toolbox: Toolbox, place: Place) -> None:
    async def one(n: int) -> str:
        execution = await toolbox.prepare("terminal", _command(f"echo {n}"), place)
        if n % 3 == 0:
            await execution.abandon()
            return f"{n}\n"
        return (await execution.run()).text

    # One call id for all, as no run has: each launcher must still end only what is its own.
    await one(1)
    before = open_files()
    for _ in range(3):
        assert await asyncio.gather(*map(one, range(8))) == [f"{n}\n" for n in range(8)]
    assert children() == set() and open_files() == before


@pytest.mark.parametrize("command", ["", "  \n", "a\0b", "x" * 100_001])
@both_loops
async def test_a_command_that_cannot_be_given_to_a_shell_is_refused(
    toolbox: Toolbox, place: Place, command: str
) -> None:
    before = open_files()
    with pytest.raises(ToolRefused):
        await toolbox.prepare("terminal", _command(command), place)
    assert open_files() == before


@both_loops
async def test_a_workspace_that_is_gone_is_told_and_leaks_nothing(toolbox: Toolbox, place: Place) -> None:
    place.workspace.rmdir()
    before = open_files()
    with pytest.raises(ToolRefused, match="could not be started"):
        await toolbox.prepare("terminal", _command("true"), place)
    assert open_files() == before
