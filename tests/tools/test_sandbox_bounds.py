"""What a command inside a sandbox may take from the machine: memory, system calls, the order in which the kernel kills.
All of it is tried for real, in bubblewrap and under Landlock (E4, P17)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninelives.tools.base import Output, Place
from ninelives.tools.sandbox.base import Sandbox
from ninelives.tools.sandbox.cgroup import find_groups
from ninelives.tools.sandbox.seccomp import (
    CHECKED,
    FAMILIES,
    MACHINES,
    NEW_NAMESPACES,
    REFUSED,
    SHM_BYTES,
    filter_program,
)
from tests.tools.conftest import eventually
from tests.tools.sandboxes import having, new_mark, place_in, sandbox_of, score_of, shop_of

ALLOWED, KILLED, ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


@pytest.fixture(params=["bwrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return sandbox_of(request.param)


@pytest.fixture
def place() -> Iterator[Place]:
    """Below folders that may be passed: where the server is root, commands run as somebody else."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = place_in(Path(folder))
        for each in (Path(folder), Path(folder, "data"), made.workspace.parent):
            each.chmod(0o711)
        yield made


async def _sh(sandbox: Sandbox, place: Place, command: str) -> Output:
    deadline = time.monotonic() + 60
    async with shop_of(sandbox) as shop:
        while True:
            output = await (await shop.toolbox.prepare("terminal", json.dumps({"command": command}), place)).run()
            # Under Landlock all calls of the machine share one limit of processes: another test may have reached it.
            if "Cannot fork" not in output.text or time.monotonic() > deadline:
                return output


def _python(code: str) -> str:
    return f"/usr/bin/python3 -I -c {shlex.quote(code)}"


_TRY = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(word) for word in words))
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"""


async def test_memory_cannot_be_held_where_no_process_is_charged_for_it(sandbox: Sandbox, place: Place) -> None:
    """3.2 GB in a memfd were held by a process of 24 MB."""
    code = f"""{_TRY}
try:
    fd = os.memfd_create("held")
    for _ in range(64):
        os.write(fd, b"x" * (1 << 20))
    print("memfd", os.fstat(fd).st_size)
except OSError as error:
    print("memfd", errno.errorcode[error.errno])
print("shm", call({CHECKED["shmget"].numbers[_column()]}, 0, 1 << 30, 0o1600))
"""
    assert (await _sh(sandbox, place, _python(code))).text == "memfd ENOSYS\nshm EPERM\n"


def _column() -> int:
    return MACHINES[os.uname().machine].column


async def test_a_command_cannot_lower_its_oom_score(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    command = f"echo 0 >/proc/self/oom_score_adj; echo -1000 >/proc/$$/oom_score_adj; sleep {mark}"
    running = asyncio.create_task(_sh(sandbox, place, command))
    try:
        await eventually(lambda: having(mark), 60.0)
        scores = [score_of(pid) for pid in having(mark)]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert scores == [1000]


async def test_odd_socket_families_are_refused_and_usual_ones_are_not(sandbox: Sandbox, place: Place) -> None:
    code = """
import errno, socket
for family in ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_TIPC", "AF_CAN"):
    try:
        socket.socket(getattr(socket, family), socket.SOCK_DGRAM if family != "AF_ALG" else socket.SOCK_SEQPACKET)
        print(family)
    except OSError as error:
        print(family, errno.errorcode[error.errno])
"""
    says = (await _sh(sandbox, place, _python(code))).text.splitlines()
    assert says[:4] == ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"]
    assert says[4:] == [f"{name} EAFNOSUPPORT" for name in ("AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_TIPC", "AF_CAN")]


async def test_calls_that_only_an_attacker_needs_are_refused(sandbox: Sandbox, place: Place) -> None:
    tried = {name: row for name, row in REFUSED.items() if name not in ("clone3", "reboot")}
    lines = [f"print({name!r}, call({row[_column()]}, 0, 0, 0, 0, 0, 0))" for name, row in tried.items()]
    lines.append(f"print('unshare', call({CHECKED['unshare'].numbers[_column()]}, 0x10000000))")
    lines.append(f"print('clone', call({CHECKED['clone'].numbers[_column()]}, 0x10000011, 0, 0, 0, 0))")
    lines.append(f"print('attach', call({CHECKED['ptrace'].numbers[_column()]}, 16, os.getppid(), 0, 0))")
    lines.append("try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); print('fifo done')")
    lines.append("except OSError as error: print('fifo', errno.errorcode[error.errno])")
    says = (await _sh(sandbox, place, _python("\n".join([_TRY, *lines])))).text.splitlines()
    more = [f"{name} EPERM" for name in ("unshare", "clone", "attach", "fifo")]
    assert says == [f"{name} {errno.errorcode[row[2]]}" for name, row in tried.items()] + more


_PROGRAMS = {
    "python": _python(
        "import asyncio, multiprocessing as m, subprocess, tempfile, threading; "
        "t = threading.Thread(target=print, args=('thread',), kwargs={'flush': True}); t.start(); t.join(); "
        "p = m.get_context('fork').Process(target=print, args=('fork',), kwargs={'flush': True}); p.start(); p.join(); "
        "print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout, end=''); "
        "asyncio.run(asyncio.sleep(0)); print(tempfile.TemporaryFile().write(b'four'))"
    ),
    "git": "export GIT_CONFIG_NOSYSTEM=1; git init -q . && "
    "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --format=%s",
    "bash": "bash -c 'cat <(echo one) <<<two; echo {1..3} | tr 1 2; (echo sub) & wait; exec 3<>/dev/null; echo end'",
    "node": "node -e \"new (require('worker_threads').Worker)('console.log(1)', {eval: true}); "
    "require('fs').writeFileSync('f', 'x'); console.log(require('child_process').execSync('echo child').toString())\"",
    "perl": "perl -e 'if (fork) { wait; print qq(parent\\n) } else { exit 0 }'",
    "gcc": "echo 'int main(void) { return 0; }' >a.c && gcc -o a a.c && ./a && echo built",
}
_SAY = {
    "python": "thread\nfork\nchild\n4\n",
    "git": "x\n",
    "bash": "one\n2 2 3\nsub\nend\n",
    "node": None,
    "perl": "parent\n",
    "gcc": "built\n",
}


@pytest.mark.parametrize("program", _PROGRAMS)
async def test_usual_programs_work_under_the_filter(sandbox: Sandbox, place: Place, program: str) -> None:
    if shutil.which(program.replace("python", "python3"), path="/usr/local/bin:/usr/bin") is None:
        pytest.skip(f"{program} is not installed")
    output = await _sh(sandbox, place, _PROGRAMS[program])
    said = _SAY[program]
    assert not output.is_error and (said is None or output.text == said), output.text


class _Kernel:
    """Runs a filter as the kernel does."""

    def __init__(self, machine: str) -> None:
        data = filter_program(machine)
        assert data is not None
        self._steps = [struct.unpack_from("=HBBI", data, at) for at in range(0, len(data), 8)]
        self._arch = MACHINES[machine].arch

    def __call__(self, number: int, *arguments: int, arch: int | None = None) -> int:
        words = [*arguments, *[0] * (6 - len(arguments))]
        data = struct.pack("<iIQ6Q", number, self._arch if arch is None else arch, 0, *words)
        value, at = 0, 0
        while True:
            code, yes, no, given = self._steps[at]
            at += 1
            match code:
                case 0x20:
                    value = struct.unpack_from("<I", data, given)[0]
                case 0x06:
                    return int(given)
                case 0x15 | 0x25 | 0x35 | 0x45:
                    tests = {0x15: value == given, 0x25: value > given, 0x35: value >= given, 0x45: value & given}
                    at += yes if tests[code] else no
                case _:
                    raise AssertionError(f"no such instruction: {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_its_table_and_nothing_else(machine: str) -> None:
    kernel, column = _Kernel(machine), MACHINES[machine].column
    refused = {row[column]: row[2] for row in REFUSED.values()}
    checked = {check.numbers[column] for check in CHECKED.values()}
    for number in set(range(600)) - checked:
        assert kernel(number) == (ERROR | refused[number] if number in refused else ALLOWED), number
    numbers = {name: check.numbers[column] for name, check in CHECKED.items()}
    for family in range(64):
        right = ALLOWED if family in FAMILIES else ERROR | errno.EAFNOSUPPORT
        assert kernel(numbers["socket"], family) == kernel(numbers["socketpair"], family) == right
    for bit in range(64):
        flag = 1 << bit
        right = ERROR | errno.EPERM if flag & NEW_NAMESPACES else ALLOWED
        assert kernel(numbers["clone"], flag) == kernel(numbers["unshare"], flag) == right
    assert [kernel(numbers["ptrace"], request) == ALLOWED for request in (0, 16, 0x4206)] == [True, False, False]
    sizes = (0, SHM_BYTES, SHM_BYTES + 1, 1 << 32, 1 << 63)
    assert [kernel(numbers["shmget"], 0, size) == ALLOWED for size in sizes] == [True, True, False, False, False]
    assert kernel(numbers["semget"], 0, 64) == ALLOWED and kernel(numbers["semget"], 0, 65) != ALLOWED
    policies = [kernel(numbers["sched_setscheduler"], 0, policy) == ALLOWED for policy in range(7)]
    assert policies == [True, False, False, True, True, True, False]
    assert kernel(numbers["ioctl"], 0, 0x5412) == ERROR | errno.EPERM and kernel(numbers["ioctl"], 0, 0x5413) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_of_another_architecture_is_killed(machine: str) -> None:
    kernel = _Kernel(machine)
    assert kernel(0, arch=0x4000_0003) == KILLED
    if machine == "x86_64":
        assert kernel(0x4000_0000) == kernel(0x4000_0000 + 319) == ERROR | errno.ENOSYS


def test_a_system_without_proc_has_no_cgroup_per_call_and_says_so(tmp_path: Path) -> None:
    assert find_groups(tmp_path / "none") == "this machine has no cgroup version 2"


def test_an_architecture_without_a_table_has_no_filter() -> None:
    assert filter_program("riscv64") is None
