"""What bubblewrap must hold (requirement E4, promise P17). All of it is tried for real."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from ninelives.core.events import Process
from ninelives.tools.base import Output, Place, Threads, ToolRefused
from ninelives.tools.registry import shell_tools
from ninelives.tools.sandbox.base import (
    UID,
    Bounds,
    CallFile,
    CallGroups,
    Holds,
    HostSandbox,
    Kind,
    Launch,
    Sandbox,
    Start,
    hand_over,
)
from ninelives.tools.sandbox.kinds import NoSandbox, choose
from ninelives.tools.sandbox.proof import prove
from ninelives.tools.sandbox.reaper import end_leftover, identify
from tests.tools.conftest import alive, both_loops, children, eventually, open_files
from tests.tools.sandboxes import having, heard, new_mark, place_in, responsive, sandbox_of, server_with, shop_of, tell

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def sandbox() -> Sandbox:
    return sandbox_of("bwrap")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def _sh(sandbox: Sandbox, place: Place, command: str, **more: object) -> Output:
    async with shop_of(sandbox) as shop:
        arguments = json.dumps({"command": command, **more})
        return await (await shop.toolbox.prepare("terminal", arguments, place)).run()


@both_loops
async def test_a_command_works_in_the_workspace_under_its_own_path(sandbox: Sandbox, place: Place) -> None:
    output = await _sh(sandbox, place, "pwd; echo one >file; cat file; echo two >&2; id -un; cd; pwd")
    assert output == Output(f"{place.workspace}\none\ntwo\nagent\n{place.workspace}\n")
    assert (place.workspace / "file").read_text() == "one\n"
    assert (place.workspace / "file").stat().st_uid == (UID if IS_ROOT else os.geteuid())


@both_loops
async def test_exit_codes_and_signals_come_through(sandbox: Sandbox, place: Place) -> None:
    assert await _sh(sandbox, place, "printf part; exit 3") == Output("part\n[exit code 3]", is_error=True)
    output = await _sh(sandbox, place, "kill -TERM $$")
    assert output.is_error and "as after signal 15" in output.text


@pytest.mark.parametrize("top", ["/tmp", "/var/tmp"])  # one below the sandbox's own /tmp, one not
async def test_nothing_outside_of_the_workspace_can_be_written(sandbox: Sandbox, top: str) -> None:
    with tempfile.TemporaryDirectory(dir=top) as folder:
        place = place_in(Path(folder))
        data = place.workspace.parents[1]
        (data / "key").write_text("sk-secret")
        (place.workspace / "out").symlink_to(data)
        system = ["/usr/new", "/etc/new", "/new", "/root/new", "/proc/1/root/new", "/dev/new", "/run/ninelives/new"]
        for target in (*system, data / "key", data / "new", "../up", "out/key", "out/new"):
            output = await _sh(sandbox, place, f"echo x >{shlex.quote(str(target))}")
            assert output.is_error or (top == "/tmp" and target not in system), target
        assert (data / "key").read_text() == "sk-secret"
        assert sorted(os.listdir(data)) == ["key", "tools", "workspaces"]
        assert os.listdir(data / "workspaces") == ["one"]
        assert not any(map(os.path.exists, system))


async def test_the_servers_key_config_and_store_cannot_be_read(sandbox: Sandbox, place: Place) -> None:
    data = place.workspace.parents[1]
    for name in ("key", "ninelives.db", "ninelives.toml"):
        (data / name).write_text("sk-secret")
        (data / name).chmod(0o644)  # even where nothing but the sandbox protects it
    other = data / "workspaces" / "two"
    other.mkdir(mode=0o755)
    (other / "file").write_text("sk-secret")
    (place.workspace / "link").symlink_to(data / "key")
    paths = [data / "key", data / "ninelives.db", data / "ninelives.toml", other / "file", "../two/file", "link"]
    paths += [f"/proc/1/root{data}/key", "/proc/self/cwd/../../key", "/etc/shadow"]
    for path in map(shlex.quote, map(str, paths)):
        output = await _sh(sandbox, place, f"cat {path}; ln {path} hard && cat hard")
        assert output.is_error and "sk-secret" not in output.text and "root:" not in output.text, path
    assert (await _sh(sandbox, place, f"ls {data} ; ls {data}/workspaces")).text == "workspaces\none\n"


async def test_no_environment_in_sight_has_a_secret_of_the_server(sandbox: Sandbox, place: Place) -> None:
    look = f"cat /proc/*/environ /proc/$PPID/environ /proc/{os.getpid()}/environ 2>/dev/null | tr '\\0' '\\n'; ps ax"
    with server_with(sandbox, place, "terminal", json.dumps({"command": look})) as server:
        heard(server)
        assert b"sk-in-the-environ" in _environ(server.pid)
        tell(server, "go\n")
        said = json.loads(heard(server))
        server.communicate("done\n")
    assert f"HOME={place.workspace}" in said and f"NINELIVES_CALL_ID={place.call_id}" in said
    assert "sk-in" not in said and "API_KEY" not in said and "PYTHONPATH" not in said
    assert len(said[said.index("COMMAND") :].splitlines()) < 8  # the launcher, the shell, ps


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_there_is_no_network(sandbox: Sandbox, place: Place) -> None:
    code = (
        "import socket\n"
        "def knock(kind, family, where):\n"
        "    with socket.socket(family, kind) as s:\n"
        "        s.settimeout(2)\n"
        "        try:\n"
        "            s.connect(where); s.send(b'x'); print('sent')\n"
        "        except OSError as error:\n"
        "            print(type(error).__name__)\n"
        "knock(socket.SOCK_STREAM, socket.AF_INET, ('127.0.0.1', {tcp}))\n"
        "knock(socket.SOCK_DGRAM, socket.AF_INET, ('127.0.0.1', {udp}))\n"
        "knock(socket.SOCK_STREAM, socket.AF_INET, ('192.0.2.1', 80))\n"
        "knock(socket.SOCK_DGRAM, socket.AF_INET, ('192.0.2.1', 53))\n"
        "knock(socket.SOCK_STREAM, socket.AF_UNIX, '\\0ninelives-test-{tcp}')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        port = tcp.getsockname()[1]
        with socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0ninelives-test-{port}")
            abstract.listen()
            for listening in (tcp, udp, abstract):
                listening.setblocking(False)
            async with shop_of(sandbox) as shop:
                arguments = json.dumps({"code": code.format(tcp=port, udp=udp.getsockname()[1])})
                output = await (await shop.toolbox.prepare("execute_code", arguments, place)).run()
            # A datagram to the sandbox's own loopback is "sent" there; what counts is that nothing arrives here.
            assert output.text.split()[0] == "ConnectionRefusedError" and "sent" not in output.text.split()[2:]
            for listening in (tcp, udp, abstract):
                with pytest.raises(BlockingIOError):
                    listening.recv(1) if listening is udp else listening.accept()


async def test_a_fork_bomb_is_bounded_and_the_server_answers_on(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    most = 0
    done = threading.Event()

    def count() -> None:
        nonlocal most
        while not done.wait(0.05):
            most = max(most, len(having(mark)))

    watcher = threading.Thread(target=count)
    watcher.start()
    try:
        async with responsive(1.0):
            # A shell that cannot fork gives up, the outermost one too: the bomb is one that goes on without it.
            bomb = f"f() {{ sleep {mark} & f | f & }}; (f; f) & exec sleep 60"
            output = await _sh(sandbox, place, bomb, timeout_s=2.0)
    finally:
        done.set()
        watcher.join()
    assert "killed: it was still running after 2 s" in output.text
    assert 0 < most <= 64
    await eventually(lambda: not having(mark))
    assert (await _sh(sandbox, place, "echo fine")).text == "fine\n"


async def test_a_gigabyte_of_output_is_counted_and_not_kept(sandbox: Sandbox, place: Place) -> None:
    small = msgspec.structs.replace(place, output_bytes=65_536)
    async with responsive(1.0):
        output = await _sh(sandbox, small, "head -c 1000000000 /dev/zero | tr '\\0' x")
    assert output.text == "x" * 65_536 + "\n[output cut: the first 65536 bytes of 1000000000 are shown]"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/usr/bin/python3 -c 'bytearray(3 << 30)'", "MemoryError"),
        ("truncate -s 2G big || echo refused", "refused"),
        ("head -c 300000000 /dev/zero >/tmp/big", "No space left"),
        ("head -c 100000000 /dev/zero >/dev/shm/big", "No space left"),
        ("ulimit -u unlimited || ulimit -p unlimited", "not permitted"),
        ("unshare --user true", "unshare failed"),
        ("cat /proc/self/oom_score_adj; nice", f"1000\n{min(19, os.nice(0) + 10)}\n"),
        ("grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status | tr -d '\\t\\n'", "CapEff:0000000000000000"),
    ],
)
async def test_memory_files_and_rights_are_bounded(sandbox: Sandbox, place: Place, command: str, says: str) -> None:
    assert says in (await _sh(sandbox, place, command)).text


@both_loops
async def test_nothing_survives_the_call(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    daemon = f"setsid sleep {mark} >/dev/null 2>&1 </dev/null &"
    hard = f"(trap '' HUP TERM; sleep {mark} &); env -i setsid -f sleep {mark} >&- 2>&-"
    assert (await _sh(sandbox, place, f"{daemon} {hard}; sleep 0.2; echo done")).text == "done\n"
    await eventually(lambda: not having(mark))
    late = await _sh(sandbox, place, f"{daemon} sleep {mark}", timeout_s=0.5)
    assert "killed" in late.text and children() == set()
    await eventually(lambda: not having(mark))  # the kernel ends what is left of a namespace in its own time


@both_loops
async def test_at_cancellation_all_is_killed_and_nothing_leaks(sandbox: Sandbox, place: Place) -> None:
    await _sh(sandbox, place, "true")
    before, mark = open_files(), new_mark()
    async with shop_of(sandbox) as shop:
        arguments = json.dumps({"command": f"setsid sleep {mark} & sleep {mark}"})
        execution = await shop.toolbox.prepare("terminal", arguments, place)
        task = asyncio.create_task(execution.run())
        await eventually(lambda: len(having(mark)) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not having(mark) and children() == set())
    await eventually(lambda: open_files() == before)


@pytest.fixture
def bystander() -> Iterator[int]:
    """The pid of a process that nobody may kill but this test."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process.pid
        process.kill()


async def test_killing_everybody_kills_only_those_inside(sandbox: Sandbox, place: Place, bystander: int) -> None:
    # Nobody outside is in danger if the sandbox fails: without its own process ids, nothing is killed.
    apart = f'ids=$(readlink /proc/self/ns/pid) && [ "$ids" != "{os.readlink("/proc/self/ns/pid")}" ] || exit 3; '
    output = await _sh(sandbox, place, apart + "sleep 300 & sleep 300 & kill -9 -1; kill -9 1; kill -9 0; echo not so")
    assert output.is_error and "as after signal 9" in output.text
    output = await _sh(sandbox, place, apart + f"kill -9 -1; kill -9 {bystander}; echo still here")
    assert output.text.endswith("still here\n") and alive(bystander)


@both_loops
async def test_nothing_happens_before_permission(sandbox: Sandbox, place: Place) -> None:
    mark = place.workspace / "mark"
    async with shop_of(sandbox) as shop:
        execution = await shop.toolbox.prepare("terminal", '{"command": "touch mark"}', place)
        assert execution.process is not None and execution.process == identify(execution.process.pid)
        pid = execution.process.pid
        assert os.getsid(pid) == pid and pid in children()
        await asyncio.sleep(0.3)  # long enough for the launcher to come as far as it can
        assert not mark.exists()
        await execution.run()
        assert mark.exists() and not alive(pid)
        execution = await shop.toolbox.prepare("terminal", '{"command": "touch mark2"}', place)
        await execution.abandon()
        await execution.abandon()
        assert children() == set() and not (place.workspace / "mark2").exists()
        with pytest.raises(RuntimeError):
            await execution.run()


@pytest.mark.parametrize("uid", [0, 4321] if IS_ROOT else [0])
@pytest.mark.parametrize("name", ["terminal", "process", "execute_code"])
async def test_nothing_survives_a_server_that_is_killed(sandbox: Sandbox, place: Place, name: str, uid: int) -> None:
    place = _reachable(place, uid)
    mark = new_mark()
    command = f"setsid sleep {mark} >/dev/null 2>&1 & sleep {mark}"
    code = f"import os; os.system({command!r})"
    arguments = {"command": command} | ({"action": "start"} if name == "process" else {})
    raw = json.dumps({"code": code} if name == "execute_code" else arguments)
    with server_with(sandbox, place, name, raw, uid) as server:
        process = Process(*json.loads(heard(server)))
        tell(server, "go\n")
        await eventually(lambda: len(having(mark)) == 2)
        server.kill()
    await eventually(lambda: not having(mark) and not alive(process.pid), 5)


def _reachable(place: Place, uid: int) -> Place:
    """A server that is not root needs folders that it can pass; those of pytest are root's."""
    if uid:
        for folder in place.workspace.parents:
            if folder.stat().st_uid == 0 and folder != Path("/") and folder != Path("/tmp"):
                folder.chmod(folder.stat().st_mode | 0o011)
        for folder in (place.workspace, place.state):
            os.chown(folder, uid, uid)
    return place


@pytest.mark.parametrize("permit", ["go\n", ""])
async def test_what_a_killed_server_could_have_left_is_ended_by_its_name(
    sandbox: Sandbox, place: Place, permit: str
) -> None:
    """As if bubblewrap had not died with its parent: the group of the outermost process is what the name stands for."""
    mark = new_mark()
    async with shop_of(sandbox) as shop:
        execution = await shop.toolbox.prepare("terminal", json.dumps({"command": f"sleep {mark}"}), place)
        assert execution.process is not None
        task = asyncio.create_task(execution.run()) if permit else None
        await eventually(lambda: not permit or having(mark))
        assert await asyncio.to_thread(end_leftover, execution.process, place.call_id)
        await eventually(lambda: not having(mark))
        output = await (task or execution.run())
        assert output.is_error and ("signal 9" in output.text or "not run" in output.text)


async def test_a_server_killed_before_permission_leaves_nothing(sandbox: Sandbox, place: Place) -> None:
    with server_with(sandbox, place, "terminal", '{"command": "touch mark"}') as server:
        process = Process(*json.loads(heard(server)))
        server.send_signal(signal.SIGKILL)
    await eventually(lambda: not alive(process.pid))
    assert not (place.workspace / "mark").exists()


async def test_a_server_that_is_killed_leaves_no_file_behind(
    sandbox: Sandbox, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = tmp_path / "lent"
    lent.mkdir(mode=0o711)
    monkeypatch.setattr("tempfile.tempdir", str(lent))
    async with shop_of(sandbox) as shop:
        command = "touch began; while ! [ -e go ]; do sleep 0.02; done; mkdir sub; cd sub"
        execution = await shop.toolbox.prepare("terminal", json.dumps({"command": command}), place)
        assert len(os.listdir(lent)) == 1
        task = asyncio.create_task(execution.run())
        await eventually((place.workspace / "began").exists)
        assert os.listdir(lent) == []
        (place.workspace / "go").touch()
        assert await task == Output("")
    assert (await _sh(sandbox, place, "pwd")).text == f"{place.workspace}/sub\n"
    assert os.listdir(lent) == []


async def test_a_command_has_no_descriptor_but_its_own(sandbox: Sandbox, place: Place) -> None:
    kept = os.open(place.workspace, os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        output = await _sh(sandbox, place, "ls /proc/self/fd | tr '\\n' ' '; ls /proc/1/fd | tr '\\n' ' '")
    finally:
        os.close(kept)
    own, _, first = output.text.partition("3 ")
    assert own == "0 1 2 " and set(first.split()) <= {"0", "1", "2", "10", "11"}


async def test_the_escape_attempts_of_the_doctor_all_fail(sandbox: Sandbox, place: Place) -> None:
    findings = await prove(sandbox, place)
    assert len(findings) == 14 and all(finding.ok for finding in findings), findings
    assert list(place.state.iterdir()) == [] and list(place.workspace.iterdir()) == []


async def test_a_call_whose_sandbox_does_not_come_up_is_told_so_in_its_own_words(place: Place) -> None:
    class Broken(HostSandbox):
        kind: Kind = "bwrap"
        says = ""
        uid: int | None = None
        bounds: Bounds | None = None
        groups: CallGroups | None = None
        holds = Holds(network=False)
        contained = True

        def path_inside(self, file: CallFile) -> str:
            return str(file.path)

        def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
            return Start(("/bin/sh", "-c", "echo 'bwrap: no room' >&2; exit 1"), {})

    output = await _sh(Broken(), place, "touch mark")
    assert output == Output("[it was not run: its launcher did not start] bwrap: no room", is_error=True)


async def test_a_workspace_where_the_sandbox_has_its_own_files_is_refused(sandbox: Sandbox, place: Place) -> None:
    for path in ("/usr/local", "/etc", "/", "/proc/self", "/dev/shm"):
        launch = Launch(("true",), {}, Path(path), Path(path), place.call_id, 5)
        with pytest.raises(ToolRefused, match=r"data_dir"):
            sandbox.wrap(("true",), launch)


def test_without_bubblewrap_shell_tools_are_not_there_and_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = choose("auto")
    assert found.kind == "refused" and "apt-get install bubblewrap" in found.says
    assert "landlock" in found.says and "off" in found.says
    threads = Threads()
    assert shell_tools(found, threads, None) == []  # type: ignore[arg-type]
    threads.close()
    with pytest.raises(ToolRefused, match="Shell tools are off"):
        found.wrap(("true",), Launch(("true",), {}, tmp_path, tmp_path, "c", 5))


@pytest.mark.parametrize("says", ["bwrap: No permissions to create new namespace", ""])
def test_a_bubblewrap_that_does_not_work_here_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    for name in ("bwrap", "setpriv"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = choose("auto")
    assert found.kind == "refused" and "does not work here" in found.says and says in found.says
    assert isinstance(found, NoSandbox)


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError):
        choose("vm")


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
def test_a_workspace_is_handed_over_with_all_that_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    (workspace / "deep" / "er").mkdir(parents=True)
    (workspace / "deep" / "er" / "file").write_text("")
    outside.write_text("")
    (workspace / "link").symlink_to(outside)
    (workspace / "hard").hardlink_to(outside)
    hand_over(workspace, None)
    assert workspace.stat().st_uid == 0
    hand_over(workspace, UID)
    for path in (workspace, workspace / "deep", workspace / "deep/er", workspace / "deep/er/file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (UID, UID)
    assert (workspace / "link").lstat().st_uid == UID
    assert outside.stat().st_uid == 0


async def test_files_that_root_left_in_a_workspace_can_be_used_by_the_first_command(
    sandbox: Sandbox, place: Place
) -> None:
    (place.workspace / "old").mkdir()
    (place.workspace / "old" / "file").write_text("one\n")
    output = await _sh(sandbox, place, "echo two >>old/file && cat old/file && touch old/new")
    assert output == Output("one\ntwo\n")
