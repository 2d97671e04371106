"""What Landlock holds, and that it says what it does not hold. All of it is tried for real."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninelives.tools.base import Output, Place, ToolRefused
from ninelives.tools.sandbox.base import Sandbox
from ninelives.tools.sandbox.kinds import choose
from ninelives.tools.sandbox.landlock import abi
from ninelives.tools.sandbox.proof import prove
from tests.tools.conftest import both_loops, eventually
from tests.tools.sandboxes import having, heard, new_mark, place_in, sandbox_of, server_with, shop_of, tell

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def sandbox() -> Sandbox:
    return sandbox_of("landlock")


@pytest.fixture
def place() -> Iterator[Place]:
    """Below folders that may be passed: where the server is root, commands run as somebody else."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = place_in(Path(folder))
        for each in (Path(folder), Path(folder, "data"), made.workspace.parent):
            each.chmod(0o711)
        yield made


async def _sh(sandbox: Sandbox, place: Place, command: str, **more: object) -> Output:
    async with shop_of(sandbox) as shop:
        arguments = json.dumps({"command": command, **more})
        return await (await shop.toolbox.prepare("terminal", arguments, place)).run()


def test_the_sandbox_says_that_it_is_partial(sandbox: Sandbox) -> None:
    assert sandbox.kind == "landlock" and "partial" in sandbox.says and "UDP" in sandbox.says


@both_loops
async def test_a_command_works_in_the_workspace(sandbox: Sandbox, place: Place) -> None:
    output = await _sh(
        sandbox, place, "pwd; mkdir a; cd a; echo one >file; cat file; mv file ../b; mktemp >/dev/null; cd"
    )
    assert output == Output(f"{place.workspace}\none\n")
    assert (await _sh(sandbox, place, "id -u; cat b; export X=1; cd a")).text.endswith("one\n")
    assert (await _sh(sandbox, place, "pwd; echo $X")).text == f"{place.workspace}/a\n1\n"


@pytest.mark.skipif(not shutil.which("git"), reason="git is missing")
async def test_git_works_where_the_machine_has_a_configuration_of_its_own(sandbox: Sandbox, place: Place) -> None:
    """/etc/gitconfig is closed. git ends with an error where the file is there and cannot be read."""
    made = await _sh(sandbox, place, "git init -q . && git config user.name me && git status --short --branch")
    assert not made.is_error and made.text.startswith("## No commits yet on"), made


async def test_files_outside_are_closed(sandbox: Sandbox, place: Place) -> None:
    data = place.workspace.parents[1]
    (data / "key").write_text("sk-secret")
    (data / "key").chmod(0o666)
    (place.workspace / "link").symlink_to(data / "key")
    own = f"/proc/{os.getpid()}"
    for path in (
        data / "key",
        "../../key",
        "link",
        "/etc/passwd",
        f"{own}/environ",
        f"{own}/cmdline",
        "/proc/1/environ",
    ):
        quoted = shlex.quote(str(path))
        output = await _sh(sandbox, place, f"cat {quoted}; echo x >{quoted}; ln {quoted} hard; cat hard")
        assert output.is_error and "sk-secret" not in output.text and "root:" not in output.text, path
    for path in ("/tmp/new-ninelives", "/var/tmp/new-ninelives", data / "new"):
        assert (await _sh(sandbox, place, f"echo x >{shlex.quote(str(path))}")).is_error
    assert (data / "key").read_text() == "sk-secret" and not (data / "new").exists()


async def test_the_server_cannot_be_signalled(sandbox: Sandbox, place: Place) -> None:
    if abi() < 6 and not IS_ROOT:
        pytest.skip("this kernel's Landlock does not keep signals in")
    output = await _sh(sandbox, place, f"kill -0 {os.getpid()} || echo refused; kill -0 $PPID || echo refused")
    assert output.text.count("refused") == 2


@pytest.mark.skipif(abi() < 4, reason="this kernel's Landlock does not know TCP")
async def test_tcp_is_closed(sandbox: Sandbox, place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
        async with shop_of(sandbox) as shop:
            output = await (await shop.toolbox.prepare("execute_code", json.dumps({"code": code}), place)).run()
        assert output.is_error and "PermissionError" in output.text


@pytest.mark.parametrize("name", ["terminal", "process"])
async def test_the_group_does_not_survive_a_server_that_is_killed(sandbox: Sandbox, place: Place, name: str) -> None:
    mark = new_mark()
    arguments = {"command": f"sleep {mark} & sleep {mark}"} | ({"action": "start"} if name == "process" else {})
    with server_with(sandbox, place, name, json.dumps(arguments)) as server:
        heard(server)
        tell(server, "go\n")
        await eventually(lambda: len(having(mark)) == 2)
        server.kill()
    await eventually(lambda: not having(mark))


async def test_the_doctor_tells_what_it_does_not_hold(sandbox: Sandbox, place: Place) -> None:
    findings = {finding.name: finding.ok for finding in await prove(sandbox, place)}
    assert len(findings) == 14
    assert not findings.pop("reach this machine by UDP")
    assert findings.pop("start processes without end") == IS_ROOT
    if abi() < 4:
        findings.pop("reach this machine by TCP")
    assert all(findings.values()), findings


@pytest.mark.skipif(not IS_ROOT, reason="nobody is dropped")
async def test_folders_that_the_dropped_user_cannot_pass_are_told(sandbox: Sandbox, place: Place) -> None:
    place.workspace.parents[1].chmod(0o700)
    with pytest.raises(ToolRefused, match=r"cannot pass .*/data\. .*chmod g\+x"):
        await _sh(sandbox, place, "true")
    assert [finding.ok for finding in await prove(sandbox, place)] == [False]


def test_a_kernel_without_landlock_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninelives.tools.sandbox.landlock.abi", lambda: 0)
    found = choose("landlock")
    assert found.kind == "refused" and "no Landlock" in found.says
