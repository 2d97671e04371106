"""What the docker sandbox holds (E4, P17): one container per workspace that stays, and no process of a call in it. All
of it is tried with podman."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ninelives.tools.base import Output, Place, ToolRefused
from ninelives.tools.sandbox.base import Sandbox
from ninelives.tools.sandbox.kinds import choose
from ninelives.tools.sandbox.proof import prove
from tests.tools.conftest import eventually
from tests.tools.containers import IMAGE, Podman, podman
from tests.tools.sandboxes import having, new_mark, place_in, score_of, shop_of

pytestmark = pytest.mark.long


@pytest.fixture
def engine() -> Iterator[Podman]:
    made = podman()
    made.remove_all()
    yield made
    made.remove_all()


@pytest.fixture
def choice(engine: Podman, tmp_path: Path) -> Iterator[Callable[..., Sandbox]]:
    """Makes the sandbox of a server, which is closed at the end."""
    made: list[Sandbox] = []

    def choice(**more: object) -> Sandbox:
        for sandbox in made:  # the server before it
            sandbox.close()
        made.append(choose("docker", engine.options(tmp_path / "calls", **more)))
        return made[-1]

    yield choice
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def sandbox(choice: Callable[..., Sandbox]) -> Sandbox:
    found = choice()
    assert found.kind == "docker", found.says
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def _sh(sandbox: Sandbox, place: Place, command: str, **more: object) -> Output:
    async with shop_of(sandbox) as shop:
        arguments = json.dumps({"command": command, **more})
        return await (await shop.toolbox.prepare("terminal", arguments, place)).run()


async def test_a_command_works_in_the_workspace_under_its_own_path(sandbox: Sandbox, place: Place) -> None:
    output = await _sh(sandbox, place, "pwd; echo one >file; cat file; echo two >&2; mkdir a; cd a; export X=1")
    assert output == Output(f"{place.workspace}\none\ntwo\n")
    assert (await _sh(sandbox, place, "pwd; echo $X; exit 3")).text == f"{place.workspace}/a\n1\n[exit code 3]"
    made = (place.workspace / "file").stat()
    folder = place.workspace.stat()
    assert (made.st_uid, made.st_gid) == (folder.st_uid, folder.st_gid)


async def test_python_runs_in_the_container(sandbox: Sandbox, place: Place) -> None:
    async with shop_of(sandbox) as shop:
        arguments = json.dumps({"code": "import os, sys; print(os.getcwd(), len(sys.argv))"})
        output = await (await shop.toolbox.prepare("execute_code", arguments, place)).run()
    assert output == Output(f"{place.workspace} 1\n")


async def test_the_escape_attempts_of_the_doctor_fail(sandbox: Sandbox, place: Place) -> None:
    findings = {finding.name: finding for finding in await prove(sandbox, place)}
    # The score is up to the engine: one without CAP_SYS_RESOURCE sets no floor. The container's cgroup bounds memory.
    known = {"be killed after the server when memory is short"}
    assert {name for name, finding in findings.items() if not finding.ok} <= known, findings


async def test_one_container_serves_all_calls_and_servers(
    engine: Podman, choice: Callable[..., Sandbox], place: Place
) -> None:
    for _ in range(2):  # as after a restart: nothing is kept in memory
        sandbox = choice()
        await _sh(sandbox, place, "echo $$ >>/tmp/kept")
    assert len(engine.containers()) == 1
    assert len((await _sh(sandbox, place, "cat /tmp/kept")).text.split()) == 2


async def test_a_container_made_of_something_else_is_replaced(
    engine: Podman, choice: Callable[..., Sandbox], place: Place
) -> None:
    for memory in (1 << 30, 1 << 29):
        sandbox = choice(memory_bytes=memory)
        assert (await _sh(sandbox, place, "cat /tmp/kept; echo x >/tmp/kept")).text.count("No such file") == 1
    assert len(engine.containers()) == 1


async def test_nothing_survives_the_call_whatever_it_does(engine: Podman, sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    escape = f"(setsid env -i /usr/bin/sleep {mark} >/dev/null 2>&1 &); setsid sh -c 'trap : HUP; sleep {mark}' &"
    assert not (await _sh(sandbox, place, f"{escape} sleep 0.3")).is_error
    assert having(mark) == []
    late = await _sh(sandbox, place, f"{escape} sleep {mark}", timeout_s=2)
    assert "still running" in late.text and having(mark) == []
    (name,) = engine.containers()
    assert [line for line in engine.processes(name) if mark in line] == []


async def test_a_fork_bomb_is_bounded_and_ends_with_the_call(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    bomb = f"f() {{ sleep {mark} & f & f; }}; f"
    await _sh(sandbox, place, bomb, timeout_s=4)
    await eventually(lambda: having(mark) == [], 60.0)
    assert (await _sh(sandbox, place, "echo alive")).text == "alive\n"


async def test_a_container_bounds_the_memory_of_all_its_processes(choice: Callable[..., Sandbox], place: Place) -> None:
    take = "head -c 150000000 /dev/zero | tail -c 150000000 | head -c 3 | tr '\\0' x; echo end"
    assert (await _sh(choice(memory_bytes=512 << 20), place, take)).text == "xxxend\n"
    sandbox = choice(memory_bytes=64 << 20)
    taken = (await _sh(sandbox, place, take)).text
    assert "xxx" not in taken and "end" in taken.split()
    assert (await _sh(sandbox, place, "echo alive")).text == "alive\n"


async def test_other_calls_go_on_when_one_ends(sandbox: Sandbox, place: Place) -> None:
    async with shop_of(sandbox) as shop:

        async def run(command: str) -> Output:
            return await (await shop.toolbox.prepare("terminal", json.dumps({"command": command}), place)).run()

        slow = asyncio.create_task(run("sleep 4; echo slow"))
        await asyncio.sleep(0)
        assert [(await run("echo quick")).text for _ in range(3)] == ["quick\n"] * 3
        assert (await slow).text == "slow\n"


async def test_background_processes_end_with_all_that_they_started(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    async with shop_of(sandbox) as shop:

        async def act(**arguments: object) -> str:
            return (await (await shop.toolbox.prepare("process", json.dumps(arguments), place)).run()).text

        started = await act(action="start", command=f"setsid sleep {mark} & sleep {mark}")
        await eventually(lambda: len(having(mark)) >= 2, 60.0)
        scores = [score_of(pid) for pid in having(mark)]
        assert scores and set(scores) == {1000}
        await act(action="kill", id=started.split()[0])
        assert having(mark) == []
        await act(action="start", command=f"(setsid sleep {mark} &)")
    assert having(mark) == []


async def test_nobody_inside_can_signal_the_guardian_or_pass_for_another_call(sandbox: Sandbox, place: Place) -> None:
    said = await _sh(sandbox, place, "kill -9 1; kill -9 -1; echo no")
    assert said.is_error or "no" in said.text
    code = "import os\nfor f in (os.setgid, os.setregid):\n"
    code += " try:\n  f(*[0] * (2 if f is os.setregid else 1)); print('changed')\n"
    code += " except PermissionError: print('refused')"
    async with shop_of(sandbox) as shop:
        output = await (await shop.toolbox.prepare("execute_code", json.dumps({"code": code}), place)).run()
    assert output.text == "refused\nrefused\n"


async def test_a_container_that_somebody_removed_is_made_again(engine: Podman, sandbox: Sandbox, place: Place) -> None:
    assert (await _sh(sandbox, place, "echo one")).text == "one\n"
    engine("rm", "--force", "--time", "0", *engine.containers())
    deadline = time.monotonic() + 60
    while (await _sh(sandbox, place, "echo two")).text != "two\n":
        assert time.monotonic() < deadline
    assert len(engine.containers()) == 1


async def test_containers_whose_workspace_is_gone_are_removed_at_the_start(
    engine: Podman, choice: Callable[..., Sandbox], tmp_path: Path, place: Place
) -> None:
    await _sh(choice(), place, "true")
    assert len(engine.containers()) == 1
    os.rename(place.workspace, tmp_path / "gone")
    choice()
    assert engine.containers() == []


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_works_in_a_container_with_the_profile_of_deploy(engine: Podman) -> None:
    profile = Path(__file__).parents[2] / "deploy" / "seccomp.json"
    words = ["run", "--rm", "--network", "none", "--user", "1000:1000", "--cap-drop", "ALL"]
    words += ["--ulimit", "nofile=99:99", "--ulimit", "nproc=99:99", "--security-opt", "unmask=ALL"]
    inside = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--tmpfs", "/tmp", "echo", "works"]
    assert engine(*words, "--security-opt", f"seccomp={profile}", IMAGE, *inside) == "works\n"
    code = "import os; os.memfd_create('x')"
    with pytest.raises(OSError, match="Operation not permitted"):
        engine(*words, "--security-opt", f"seccomp={profile}", IMAGE, "python3", "-c", code)


def test_without_an_engine_or_an_image_shell_tools_are_off_and_it_says_why(engine: Podman, tmp_path: Path) -> None:
    missing = choose("docker", engine.options(tmp_path, program="/nonexistent/docker"))
    assert missing.kind == "refused" and "not installed" in missing.says
    empty = choose("docker", engine.options(tmp_path, image="localhost/none:1"))
    assert empty.kind == "refused" and "localhost/none:1" in empty.says
    with pytest.raises(ToolRefused, match="Shell tools are off"):
        empty.path_inside(None)  # type: ignore[arg-type]
    assert IMAGE in choose("docker", engine.options(tmp_path)).says
