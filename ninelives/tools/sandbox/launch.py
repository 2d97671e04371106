"""Launching a program of a tool call in a sandbox. Owns: the launcher that waits for permission, the handshake with it,
the environment that a program begins with, and the execution that runs one to its end. Refuses to know: which tool
the program is for, and how the sandbox is made.

Theory of operation (R8 in docs/architecture.md). start_launcher() spawns the launcher. Before all else it enters the
cgroup of its call, if there is one, and raises its OOM score, which nobody inside a sandbox can write any more. Then it
is a shell in the sandbox, with an empty environment. It reports that it is ready and waits for one line on a socket
that only this server holds. The identity of the outermost process goes into ToolStarted. Once that is committed,
permit() waits until the launcher is ready and writes the line. The launcher then sets its bounds and becomes the
program.

A launcher that is ready has its sandbox, and bubblewrap has arranged to die with the server. So a program that has
permission always has somebody who ends it. If the server dies before permission, the socket closes and the launcher
exits without having done anything. If it dies later, bubblewrap dies with it. Without bubblewrap, a watcher in the
launcher's group sees the socket close and kills the group. The next start finds what left the group (reaper.py)."""

from __future__ import annotations

import asyncio
import math
import shutil
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ninelives.core.events import Process
from ninelives.tools.base import Output, Place, Threads, ToolRefused, bounded
from ninelives.tools.sandbox.base import SHELL, Bounds, CallFile, CallGroup, Launch, Sandbox, hand_over, real_path
from ninelives.tools.sandbox.child import Child, Collected, spawn
from ninelives.tools.sandbox.reaper import CALL, LAUNCHER, end_leftover, identify

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NOT_RUN = "[it was not run: its launcher did not start]"

_READY_S = 30.0
_NICE = 10
# If the machine runs out of memory, the kernel kills commands first and not the server.
_LOWER = """if [ -n "$1" ]; then echo 0 >"$1/cgroup.procs" || exit 125; fi
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
shift
exec "$@"
"""
_GATE = """echo ready >&0
read -r go && [ "$go" = go ] || exit 125
"""
_WATCHER = """exec 3<&0 </dev/null
{ read -r end <&3; kill -9 0; } >/dev/null 2>&1 &
exec 3<&-
"""
# A bound that cannot be set is lower already.
_BOUNDS = """{{ ulimit -c 0; ulimit -v {memory}; ulimit -f {file}; ulimit -n {files}; ulimit -t {cpu}; }} 2>/dev/null
"""
_PROCESSES = "{{ ulimit -u {count} || ulimit -p {count}; }} 2>/dev/null\n"  # bash || dash
_FILE = "ulimit -f {file} 2>/dev/null\n"
_ENTER = """cd -- "$1" || exit 125
shift
"""
_BECOME = f'exec /usr/bin/env -i {LAUNCHER}=$$ "$@" </dev/null'
# The first process of a pid namespace must stay: it ignores most signals, and it reaps orphans.
_STAY = '/usr/bin/env -i "$@" </dev/null; exit $?'


def base_environ(sandbox: Sandbox, place: Place) -> dict[str, str]:
    """The environment that every program begins with. It has the call's id, as idempotency key."""
    home = str(real_path(place.workspace))
    environ = {"PATH": SEARCH_PATH, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", CALL: place.call_id}
    if sandbox.kind == "landlock":
        environ["TMPDIR"] = home  # /tmp is shared with the machine, and closed
        environ["GIT_CONFIG_NOSYSTEM"] = "1"  # git ends where /etc/gitconfig is there and cannot be read
    return environ


def ready_workspace(sandbox: Sandbox, place: Place) -> Path:
    """Make sure that the workspace belongs to the right user, and return its real path. Blocks: call it in a thread."""
    workspace = real_path(place.workspace)
    try:
        hand_over(workspace, sandbox.uid)
        sandbox.ready(workspace)
    except OSError as error:
        raise ToolRefused(f"The command could not be started: {workspace.name}: {error.strerror}.") from error
    if not workspace.is_dir():
        raise ToolRefused("The command could not be started: the workspace is gone.")
    return workspace


def file_room(room: int) -> int | None:
    """Launch.file_bytes for this room in the workspace. None: the bound of the sandbox is less."""
    return room if room < Bounds().file_bytes else None


def cpu_seconds(seconds: float) -> int:
    """CPU time for a call that may take `seconds`. It is never the first bound that is reached."""
    return math.ceil(min(seconds, 86_400.0)) + 1


def start_launcher(sandbox: Sandbox, launch: Launch) -> WaitingLauncher:
    """Spawn a launcher, which waits for permission. Not async, so that no cancellation can lose it."""
    assignments = (f"{name}={value}" for name, value in launch.environ.items())
    argv = (SHELL, "-c", _script(sandbox, launch), "sh", str(launch.folder), *assignments, *launch.argv)
    start = sandbox.wrap(argv, launch)
    if sandbox.gate_outside:
        start.argv = (SHELL, "-c", f'{_GATE}{_WATCHER}exec "$@"', "sh", *start.argv)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    group: CallGroup | None = None
    try:
        group = sandbox.groups.make(_of_call(sandbox.bounds, launch)) if sandbox.groups else None
        lowered = (SHELL, "-c", _LOWER, "sh", str(group.path) if group else "", *_niceness())
        child = spawn((*lowered, *start.argv), start.environ, Path("/"), theirs.fileno(), start.fds)
    except OSError as error:
        ours.close()
        if group is not None:
            group.remove()
        if start.sweep is not None:
            start.sweep()
        raise ToolRefused(f"The command could not be started: {error.strerror}.") from error
    finally:
        theirs.close()
        start.close()
    left = tuple(filter(None, (start.sweep, group.remove if group else None)))
    return WaitingLauncher(child, ours, launch.call_id, sandbox.contained, left)


def _of_call(bounds: Bounds | None, launch: Launch) -> Bounds:
    known = bounds or Bounds()
    return known if launch.call_bytes is None else replace(known, call_bytes=launch.call_bytes)


def _niceness() -> tuple[str, ...]:
    """Lower the priority: a flood of processes must leave the server its share of the machine."""
    nice = shutil.which("nice", path=SEARCH_PATH)
    return (nice, "-n", str(_NICE)) if nice else ()


def _script(sandbox: Sandbox, launch: Launch) -> str:
    bounds = _ulimits(sandbox.bounds, launch.cpu_s) if sandbox.bounds else ""
    if launch.file_bytes is not None:
        bounds += _FILE.format(file=launch.file_bytes // 512)
    if sandbox.gate_outside:
        return f"{bounds}{_ENTER}{_BECOME}"
    if sandbox.contained:
        return f"{_GATE}{bounds}{_ENTER}{_STAY}"
    return f"{_GATE}{_WATCHER}{bounds}{_ENTER}{_BECOME}"


def _ulimits(bounds: Bounds, cpu_s: int) -> str:
    lines = _BOUNDS.format(
        memory=bounds.memory_bytes // 1024, file=bounds.file_bytes // 512, files=bounds.files, cpu=cpu_s
    )
    return lines + (_PROCESSES.format(count=bounds.processes) if bounds.processes is not None else "")


class WaitingLauncher:
    """A launcher that waits for permission, and the process that it becomes."""

    def __init__(
        self,
        child: Child,
        gate: socket.socket,
        call_id: str,
        contained: bool,
        sweeps: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.child = child
        self.process: Process | None = identify(child.pid)
        self._gate = gate
        self._call_id = call_id
        self.contained = contained
        self._sweeps = tuple(sweeps)
        self._asked = False

    async def permit(self) -> bool:
        """Let it begin. False if it could not; then it has done nothing."""
        if self._asked or self._gate.fileno() < 0:
            raise RuntimeError("an execution runs once")
        self._asked = True
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_READY_S):
                if not await loop.sock_recv(self._gate, 64):
                    return False
                await loop.sock_sendall(self._gate, b"go\n")
        except (TimeoutError, ConnectionError):
            return False
        return True

    async def sweep(self, threads: Threads) -> None:
        """Kill what left the process group. Call it after the child has ended."""
        await self._sweep_elsewhere(threads)
        if not self.contained and self.process is not None:
            await threads.run(end_leftover, self.process, self._call_id)

    async def end(self, threads: Threads) -> None:
        """Kill it if it still runs, and release what is held for it."""
        self.close()
        await self.child.end()
        await self._sweep_elsewhere(threads)

    async def _sweep_elsewhere(self, threads: Threads) -> None:
        """End what is in the cgroup or the container of the call. Nothing happens the second time."""
        sweeps, self._sweeps = self._sweeps, ()
        for sweep in sweeps:
            await threads.run(sweep)

    def close(self) -> None:
        """Close the socket. If the sandbox does not contain its processes, this alone ends the group."""
        self._gate.close()


async def no_note(result: Collected) -> str:
    """Nothing to add."""
    return ""


def full_note(place: Place) -> Callable[[Collected], Awaitable[str]]:
    """For a command that ran in a full workspace, where it could delete files and not write any."""

    async def note(result: Collected) -> str:
        refusal = await place.quota.refusal()
        return f"[it could write no file: {refusal}]" if refusal else ""

    return note


class LaunchExecution:
    """Runs a program to its end, within the time and the bytes of its place."""

    def __init__(
        self,
        waiting: WaitingLauncher,
        place: Place,
        seconds: float,
        threads: Threads,
        files: tuple[CallFile, ...] = (),
        after: Callable[[Collected], Awaitable[str]] = no_note,
    ) -> None:
        self.process = waiting.process
        self._waiting = waiting
        self._place = place
        self._seconds = seconds
        self._threads = threads
        self._files = files
        self._after = after

    async def run(self) -> Output:
        """Give permission and collect the output. `after` gets the result and may add a note."""
        keep = self._place.output_bytes
        full = asyncio.ensure_future(self._place.quota.exceeded())
        full.add_done_callback(self._end_if_full)
        try:
            if not await self._waiting.permit():
                return await self._not_run()
            if self._waiting.contained:  # the sandbox has mounted them by now
                for file in self._files:
                    file.forget_name()
            result = await self._waiting.child.collect(keep, self._seconds, self._sweep)
            text = await self._threads.run(bounded, result.kept, keep, result.total)  # 100 ms for a megabyte of NULs
            how = full.result() if full.done() and full.exception() is None else exit_note(result.code, self._seconds)
            notes = [note for note in (how, await self._after(result)) if note]
        finally:
            full.cancel()
            await self.abandon()
        gap = "\n" if notes and text and not text.endswith("\n") else ""
        return Output(f"{text}{gap}{chr(10).join(notes)}", is_error=result.code != 0)

    async def abandon(self) -> None:
        """Kill the launcher. Without permission it has done nothing."""
        for file in self._files:
            file.close()
        await self._waiting.end(self._threads)

    def _end_if_full(self, full: asyncio.Future[str]) -> None:
        if not full.cancelled() and full.exception() is None:
            self._waiting.child.kill()

    async def _sweep(self) -> None:
        await self._waiting.sweep(self._threads)

    async def _not_run(self) -> Output:
        result = await self._waiting.child.collect(2000, 1.0)
        said = bounded(result.kept, 2000).strip()
        return Output(f"{NOT_RUN} {said}".strip(), is_error=True)


def exit_note(code: int | None, seconds: float) -> str:
    """A note about the exit; empty for success."""
    if code is None:
        return f"[killed: it was still running after {seconds:g} s]"
    if code < 0:
        return f"[ended by signal {-code}]"
    if 128 < code < 160:
        return f"[exit code {code}, as after signal {code - 128}]"
    return f"[exit code {code}]" if code else ""
