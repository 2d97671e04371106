"""Does the sandbox hold? Owns: the attempts of `ninelives doctor` to get out of it, each of them real and judged from
outside if possible. Refuses to know: how a sandbox is made, and how findings are shown.

An attempt that succeeds does no harm: its target is bait that was made for it and is removed afterwards."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shlex
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from ninelives.tools.base import Output, Place, Threads, ToolRefused
from ninelives.tools.sandbox.base import PYTHONS, SHELL, Launch, Sandbox
from ninelives.tools.sandbox.cgroup import find_groups
from ninelives.tools.sandbox.launch import LaunchExecution, base_environ, ready_workspace, start_launcher
from ninelives.tools.sandbox.seccomp import CHECKED, MACHINES, REFUSED
from ninelives.tools.workspace import inside, open_file

_SECONDS = 15.0
_FORKS = 300
_TRIED = ("io_uring_setup", "userfaultfd", "keyctl", "add_key", "bpf", "perf_event_open", "mount")
"""System calls that the doctor tries. None of them does anything with the arguments that it passes."""
_PROBE_BYTES = 64 << 20
_BASH = Path("/usr/bin/bash")


class Finding(Struct, frozen=True):
    """The result of one attempt. ok: the sandbox held."""

    name: str
    ok: bool
    detail: str


class Run(Protocol):
    """Runs a shell script in the sandbox, with a bound on the memory of the call if one is given."""

    def __call__(self, script: str, call_bytes: int | None = None) -> Awaitable[Output]: ...


async def prove(sandbox: Sandbox, place: Place) -> list[Finding]:
    """Try to get out. `place` needs its own workspace, and its own state directory for the bait."""
    if sandbox.kind in ("off", "refused"):
        return [Finding("sandbox", False, sandbox.says)]
    threads = Threads(1)

    async def run(script: str, call_bytes: int | None = None) -> Output:
        workspace = await threads.run(ready_workspace, sandbox, place)
        launch = Launch(
            argv=(SHELL, "-c", "--", script),
            environ=base_environ(sandbox, place),
            workspace=workspace,
            folder=workspace,
            call_id=place.call_id,
            cpu_s=30,
            call_bytes=call_bytes,
        )
        bounded = msgspec.structs.replace(place, output_bytes=65_536)
        return await LaunchExecution(start_launcher(sandbox, launch), bounded, _SECONDS, threads).run()

    try:
        return [
            await _works(run),
            *await _files(run, place),
            await _environments(run),
            await _network(run, "TCP", socket.SOCK_STREAM),
            await _network(run, "UDP", socket.SOCK_DGRAM),
            await _memfd(run),
            await _system_calls(run),
            await _oom_score(run),
            await _realtime(run),
            await _named_pipe(run, place, threads),
            await _call_memory(run, sandbox),
            await _outlives(run),
            await _forks(run),
        ]
    except ToolRefused as refused:
        return [Finding("sandbox", False, str(refused))]
    finally:
        threads.close()


async def _works(run: Run) -> Finding:
    output = await run("echo one >proof && cat proof && rm proof")
    return Finding("run a command in the workspace", output.text == "one\n", output.text.strip()[:200])


async def _files(run: Run, place: Place) -> list[Finding]:
    with _bait(place.state) as (bait, secret):
        said = (await run(f"cat {shlex.quote(str(bait))}")).text
        read = Finding("read a file of the server", secret not in said, _last(said) or "it could be read")
        away = [bait, bait.with_suffix(".new"), Path(f"/usr/ninelives-{secret}"), Path(f"/etc/ninelives-{secret}")]
        said = (await run("; ".join(f"echo x >{shlex.quote(str(path))}" for path in away))).text
        done = [str(path) for path in away[1:] if path.exists()]
        if secret not in bait.read_text():
            done.append(str(bait))
        for path in away[1:]:
            path.unlink(missing_ok=True)
    wrote = Finding("write outside of the workspace", not done, f"written: {', '.join(done)}" if done else _last(said))
    return [read, wrote]


@contextmanager
def _bait(folder: Path) -> Iterator[tuple[Path, str]]:
    """A file of the server with a secret in it, such as its key file."""
    secret = secrets.token_hex(16)
    bait = folder / f"proof-{secrets.token_hex(4)}"
    with open(os.open(bait, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret)
    try:
        yield bait, secret
    finally:
        bait.unlink(missing_ok=True)


async def _environments(run: Run) -> Finding:
    """Those of this process, where the server's keys would be, of the first process and of the parent."""
    said = (await run(f"cat /proc/{os.getpid()}/environ /proc/1/environ /proc/$PPID/environ | tr '\\0' '\\n'")).text
    known = {*_proc(str(os.getpid()), "environ").split(b"\0"), *_proc("1", "environ").split(b"\0")}
    leaked = sorted(line.partition("=")[0] for line in said.splitlines() if len(line) > 12 and line.encode() in known)
    names = ", ".join(leaked[:5])
    return Finding("read the server's environment", not leaked, f"read: {names}" if leaked else "nothing of it is seen")


async def _network(run: Run, name: str, kind: socket.SocketKind) -> Finding:
    title = f"reach this machine by {name}"
    with socket.socket(socket.AF_INET, kind) as server:
        server.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            server.listen(1)
        server.setblocking(False)
        script = _knock(name, server.getsockname()[1])
        if script is None:
            return Finding(title, False, "not tried: there is neither Python nor bash below /usr")
        said = (await run(script)).text
        try:
            if kind is socket.SOCK_STREAM:
                server.accept()[0].close()
            else:
                server.recv(16)
        except BlockingIOError:
            return Finding(title, True, _last(said) or "nothing arrived")
    return Finding(title, False, "it arrived")


def _knock(name: str, port: int) -> str | None:
    if python := next((path for path in PYTHONS if os.access(path, os.X_OK)), None):
        kind = "SOCK_STREAM" if name == "TCP" else "SOCK_DGRAM"
        code = f"import socket as s; k = s.socket(s.AF_INET, s.{kind}); k.settimeout(3); "
        code += f"k.connect(('127.0.0.1', {port})); k.send(b'x')"
        return f"{python} -I -c {shlex.quote(code)}"
    if _BASH.exists():
        return f"{_BASH} -c 'echo x >/dev/{name.lower()}/127.0.0.1/{port}'"
    return None


async def _forks(run: Run) -> Finding:
    script = f"i=0; while [ $i -lt {_FORKS} ]; do sleep 9 & i=$((i+1)); echo $i; done"
    numbers = [int(word) for word in (await run(script)).text.split() if word.isdigit()]
    count = max(numbers, default=0)
    held = 0 < count < _FORKS
    return Finding("start processes without end", held, f"{count} were started{', then no more' if held else ''}")


async def _outlives(run: Run) -> Finding:
    mark = f"3{secrets.randbelow(10**9):09d}"  # seconds: unlike any other on the machine
    await run(f"setsid sleep {mark} >/dev/null 2>&1 & sleep {mark} >/dev/null 2>&1 & sleep 0.2")
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and mark.encode() in _proc(pid, "cmdline")]
    return Finding("outlive the call", not left, f"{len(left)} processes are left" if left else "nothing is left")


async def _memfd(run: Run) -> Finding:
    title = "hold memory that no process is charged for"
    code = "import os; f = os.memfd_create('x'); print('held', os.write(f, bytes(1 << 20)))"
    tried, said = await _python(run, code)
    held = tried and "held" not in said
    return Finding(title, held, "a memfd was made" if tried and not held else _last(said))


async def _system_calls(run: Run) -> Finding:
    """Calls that only get around a sandbox, and sockets that have no network namespace."""
    title = "make system calls that a command has no use for"
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        return Finding(title, False, f"there is no filter for {os.uname().machine}: every system call is allowed")
    numbers = {name: (REFUSED[name][machine.column], 0) for name in _TRIED}
    numbers["AF_VSOCK"] = (CHECKED["socket"].numbers[machine.column], 40)
    numbers["a user namespace"] = (CHECKED["unshare"].numbers[machine.column], 0x1000_0000)
    wanted = {"AF_VSOCK": "EAFNOSUPPORT", **{name: errno.errorcode[REFUSED[name][2]] for name in _TRIED}}
    code = f"import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True)\nfor name, (n, a) in {numbers!r}.items():\n"
    code += " r = libc.syscall(*map(ctypes.c_long, (n, a, 1, 0, 0, 0)))\n"
    code += " print(name, errno.errorcode[ctypes.get_errno()] if r < 0 else 'done', sep='=')"
    tried, said = await _python(run, code)
    if not tried:
        return Finding(title, False, _last(said))
    results = dict(line.partition("=")[::2] for line in said.splitlines() if "=" in line)
    passed = [name for name in numbers if results.get(name, "") not in (wanted.get(name, "EPERM"), "ENOSPC")]
    return Finding(title, not passed, f"not refused: {', '.join(passed)}" if passed else f"{len(numbers)} are refused")


async def _oom_score(run: Run) -> Finding:
    """Judged from outside: the score of a process that tried to lower it."""
    mark = f"3{secrets.randbelow(10**9):09d}"
    script = f"echo 0 >/proc/self/oom_score_adj; echo 0 >/proc/$$/oom_score_adj; sleep {mark}"
    running = asyncio.ensure_future(run(script))
    try:
        score = await _score_of(mark)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    own = int(_proc("self", "oom_score_adj") or 0)
    held = score is not None and score > own
    detail = f"its score is {score}, that of this process {own}: the kernel kills the higher one first"
    return Finding("be killed after the server when memory is short", held, detail)


async def _score_of(mark: str) -> int | None:
    for _ in range(int(_SECONDS / 0.02)):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if _proc(pid, "cmdline").split(b"\0")[:2] == [b"sleep", mark.encode()]:
                return int(_proc(pid, "oom_score_adj") or 0)
        await asyncio.sleep(0.02)
    return None


async def _realtime(run: Run) -> Finding:
    title = "take the processor with SCHED_FIFO"
    code = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); print('taken')"
    tried, said = await _python(run, code)
    held = tried and "taken" not in said
    return Finding(title, held, "it could" if tried and not held else _last(said))


async def _named_pipe(run: Run, place: Place, threads: Threads) -> Finding:
    """A file tool that opens a named pipe like a file would wait for ever."""
    title = "make a file tool wait at a named pipe"
    await run("mkfifo waits")
    pipe = inside(place.workspace, "waits")
    if not pipe.is_fifo():
        return Finding(title, False, "not tried: no named pipe could be made")
    try:
        async with asyncio.timeout(_SECONDS):
            (await threads.run(open_file, place.workspace, pipe)).close()
    except ToolRefused as refused:
        return Finding(title, True, str(refused))
    except TimeoutError:
        return Finding(title, False, "it waits")
    finally:
        await run("rm -f waits")
    return Finding(title, False, "it was opened")


async def _call_memory(run: Run, sandbox: Sandbox) -> Finding:
    title = "take more memory than a call may have"
    if sandbox.kind == "docker" and sandbox.holds.call_memory_bytes is not None:
        return Finding(title, True, f"the container has {sandbox.holds.call_memory_bytes >> 20} MiB (not tried)")
    if sandbox.groups is None:
        why = find_groups()
        each = f"{sandbox.bounds.memory_bytes >> 20} MiB" if sandbox.bounds else "no bound"
        note = f"no cgroup per call: {why}. One process has {each}. The kernel kills commands first"
        return Finding(title, True, note)
    output = await run(f"head -c {_PROBE_BYTES * 2} /dev/zero | tail -c {_PROBE_BYTES * 2} >/dev/null", _PROBE_BYTES)
    held = output.is_error
    return Finding(title, held, f"a call with {_PROBE_BYTES >> 20} MiB was {'killed' if held else 'not bounded'}")


async def _python(run: Run, code: str) -> tuple[bool, str]:
    """Whether a Python inside came to the code, and what it printed; if not, why it was not tried."""
    python = next((path for path in PYTHONS if os.access(path, os.X_OK)), None)
    if python is None:
        return False, "not tried: there is no Python below /usr"
    began = secrets.token_hex(8)
    said = (await run(f"{python} -I -c {shlex.quote(f'print({began!r}, flush=True){chr(10)}{code}')}")).text
    return (True, said.replace(f"{began}\n", "")) if began in said else (False, f"not tried: {_last(said)}")


def _proc(pid: str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it ended meanwhile, or this process may not read it either


def _last(text: str) -> str:
    """The last line of an error message."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("[exit code")]
    return lines[-1][:200] if lines else ""
