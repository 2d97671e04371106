"""Processes in the background: the `process` tool. Owns: which processes run for which owner, their last output, and
their end, at the latest when the server stops. Refuses to know: how they are launched (sandbox/launch.py).

Theory of operation. Each process has a sandbox of its own and waits for permission like any command. With permission
it belongs to Processes and no longer to the call. Nothing about it is on disk: it dies with the server, through
bubblewrap or the launcher's watcher. An id contains a code of the server's start. So an id from an earlier start is
recognized, and the model is told that the process was lost."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ninelives.core.events import Effect, Process
from ninelives.tools.arguments import as_struct, schema_of
from ninelives.tools.base import ApprovalClass, Execution, Output, Place, Reach, Threads, ToolRefused, Use, bounded
from ninelives.tools.builtin.terminal import checked_command, session_start
from ninelives.tools.sandbox.base import SHELL, Launch, Sandbox
from ninelives.tools.sandbox.child import Ring
from ninelives.tools.sandbox.launch import (
    NOT_RUN,
    WaitingLauncher,
    cpu_seconds,
    exit_note,
    file_room,
    start_launcher,
)

PER_OWNER = 8
IN_TOTAL = 64
LOG_BYTES = 262_144
LIFE_S = 86_400.0
_FINISHED_KEPT = 16
_FIRST_LOOK_S = 0.3
"""How long start watches the process, so that it reports a typo at once."""
_ID = re.compile(r"\Aproc_([0-9a-f]{8})_[0-9a-f]{12}\Z")


class _ProcessArguments(Struct, forbid_unknown_fields=True):
    action: Literal["start", "poll", "log", "kill", "list"]
    command: Annotated[str, Meta(description="For start: shell command.")] = ""
    id: Annotated[str, Meta(description="For poll, log, kill.")] = ""


class Running:
    """One background process, also after its end."""

    def __init__(self, owner: str, name: str, command: str, waiting: WaitingLauncher) -> None:
        self.owner = owner
        self.name = name
        self.command = command
        self.waiting = waiting
        self.log = Ring(LOG_BYTES)
        self.seen = 0
        """The position up to which its output was polled."""
        self.began = time.monotonic()
        self.ended: float | None = None
        self._full = ""

    def end_if_full(self, full: asyncio.Future[str]) -> None:
        """Kill it, because it has written more than the workspace may hold."""
        if not full.cancelled() and full.exception() is None:
            self._full = full.result()
            self.waiting.child.kill()

    @property
    def status(self) -> str:
        """Its status as a text."""
        if self.ended is None:
            return f"running for {time.monotonic() - self.began:.0f} s"
        how = (self._full or exit_note(self.waiting.child.code, 0)).strip("[]") or "exit code 0"
        return f"ended after {self.ended - self.began:.0f} s: {how}"


class Processes:
    """The background processes of this server."""

    def __init__(self, threads: Threads, per_owner: int = PER_OWNER, in_total: int = IN_TOTAL) -> None:
        self._threads = threads
        self._per_owner = per_owner
        self._in_total = in_total
        self._start = secrets.token_hex(4)
        self._known: dict[str, Running] = {}
        self._sweeps: set[asyncio.Task[None]] = set()
        self._closed = False

    def check_room(self, owner: str) -> None:
        """Raises ToolRefused if the owner or the server has reached its limit."""
        running = [each for each in self._known.values() if each.ended is None]
        if self._closed:
            raise ToolRefused("The server is stopping: no process can be started.")
        if sum(each.owner == owner for each in running) >= self._per_owner:
            raise ToolRefused(f"{self._per_owner} processes are running, which is the most. Kill one first.")
        if len(running) >= self._in_total:
            raise ToolRefused("The server has as many background processes as it may have. Try later.")

    def admit(self, place: Place, command: str, waiting: WaitingLauncher) -> Running:
        """Take over a process that has just got permission."""
        owner, name = place.owner, f"proc_{self._start}_{secrets.token_hex(6)}"
        running = self._known[name] = Running(owner, name, command, waiting)
        full = asyncio.ensure_future(place.quota.exceeded())
        full.add_done_callback(running.end_if_full)
        loop = asyncio.get_running_loop()
        overdue = loop.call_later(LIFE_S, waiting.child.kill)

        def ended() -> None:
            overdue.cancel()
            full.cancel()
            running.ended = time.monotonic()
            waiting.close()
            sweep = loop.create_task(waiting.sweep(self._threads), name="sweep")
            self._sweeps.add(sweep)
            sweep.add_done_callback(self._sweeps.discard)

        waiting.child.follow(running.log.append, ended)
        self._forget_old(owner)
        return running

    def get(self, owner: str, name: str) -> Running:
        """The owner's process of that id. Raises ToolRefused, which says what happened to it, if there is none."""
        found = self._known.get(name)
        if found is not None and found.owner == owner:
            return found
        form = _ID.match(name)
        if form and form[1] != self._start:
            raise ToolRefused(f"{name} was lost when the server stopped: it does not run any more. Start it again.")
        raise ToolRefused(f"There is no process {name[:64]!r}. Use action list to see those that there are.")

    def of(self, owner: str) -> list[Running]:
        """All processes of an owner, oldest first."""
        return [each for each in self._known.values() if each.owner == owner]

    def all(self) -> list[Running]:
        """All processes of all owners, also those that have ended."""
        return list(self._known.values())

    def forget(self, name: str) -> None:
        """Forget a process that has ended, with its log."""
        if name in self._known and self._known[name].ended is not None:
            del self._known[name]

    async def kill(self, running: Running) -> None:
        """Kill it and everything it started, and wait until it is gone."""
        waiting = running.waiting
        waiting.child.kill()
        await waiting.sweep(self._threads)
        await waiting.end(self._threads)

    async def abandon(self, waiting: WaitingLauncher) -> None:
        """Kill a launcher that did not get permission."""
        await waiting.end(self._threads)

    async def close(self) -> None:
        """Kill all. No more can be started."""
        self._closed = True
        await asyncio.gather(*(self.kill(each) for each in self._known.values()))
        await asyncio.gather(*self._sweeps)

    def _forget_old(self, owner: str) -> None:
        finished = [each for each in self.of(owner) if each.ended is not None]
        for each in finished[: max(0, len(finished) - _FINISHED_KEPT)]:
            del self._known[each.name]


class ProcessTool:
    """Start, watch and end background processes."""

    name = "process"
    schema = schema_of(_ProcessArguments)
    effect: Effect = "write"
    approval: ApprovalClass = "exec"
    local: Use = "workspace"
    label = "Background process"
    emoji = "⚙️"

    def __init__(self, sandbox: Sandbox, threads: Threads, processes: Processes) -> None:
        apart = "Each has a network of its own that nothing else reaches. " if sandbox.kind == "bwrap" else ""
        self.description = (
            "Run shell commands in the background. start gives an id; poll gives status and new output, log the last "
            f"output, kill ends it at once. {apart}All end when the server stops."
        )
        self._sandbox = sandbox
        self._threads = threads
        self._processes = processes

    def reach(self, arguments: dict[str, object]) -> Reach:
        """See Tool: to look at a process changes nothing."""
        asked = as_struct(_ProcessArguments, arguments)
        if asked.action == "start":
            return Reach(self.approval, command=asked.command)
        return Reach("write" if asked.action == "kill" else "none")

    async def prepare(self, arguments: dict[str, object], place: Place) -> Execution:
        """For start: start the launcher, which waits for permission. The other actions need nothing."""
        asked = as_struct(_ProcessArguments, arguments)
        match asked.action:
            case "start":
                return await self._start(asked, place)
            case "list":
                return _ProcessAction(lambda: self._list(place))
            case _:
                running = self._processes.get(place.owner, asked.id)
                answers = {"poll": self._poll, "log": self._log, "kill": self._kill}
                return _ProcessAction(lambda: answers[asked.action](running, place))

    async def _start(self, asked: _ProcessArguments, place: Place) -> Execution:
        command = checked_command(asked.command)
        self._processes.check_room(place.owner)
        if refusal := await place.quota.refusal():
            raise ToolRefused(refusal)
        known = await self._threads.run(session_start, self._sandbox, place)
        launch = Launch(
            argv=(SHELL, "-c", "--", command),
            environ=known.shell.environ_over(known.base),
            workspace=known.workspace,
            folder=known.folder,
            call_id=place.call_id,
            cpu_s=cpu_seconds(LIFE_S),
            file_bytes=file_room(await place.quota.room()),
        )
        return _Start(start_launcher(self._sandbox, launch), self._processes, command, place)

    async def _list(self, place: Place) -> Output:
        lines = [f"{each.name}  {each.status}  {_line(each.command)}" for each in self._processes.of(place.owner)]
        return Output("\n".join(lines) or "[no processes since the server's start]")

    async def _poll(self, running: Running, place: Place) -> Output:
        position, running.seen = running.seen, running.log.total
        return _output_since(running, position, place)

    async def _log(self, running: Running, place: Place) -> Output:
        running.seen = running.log.total
        return _output_since(running, 0, place)

    async def _kill(self, running: Running, place: Place) -> Output:
        was_running = running.ended is None
        await self._processes.kill(running)
        return Output(f"{running.name} {'was killed' if was_running else f'had {running.status} already'}")


class _Start:
    """A process that waits for permission. With permission it passes to Processes."""

    def __init__(self, waiting: WaitingLauncher, processes: Processes, command: str, place: Place) -> None:
        self.process: Process | None = waiting.process
        self._waiting: WaitingLauncher | None = waiting
        self._processes = processes
        self._command = command
        self._place = place

    async def run(self) -> Output:
        """Give permission."""
        waiting = self._waiting
        if waiting is None:
            raise RuntimeError("an execution runs once")
        try:
            self._processes.check_room(self._place.owner)
            if not await waiting.permit():
                result = await waiting.child.collect(2000, 1.0)
                said = bounded(result.kept, 2000).strip()
                return Output(f"{NOT_RUN} {said}".strip(), is_error=True)
            running = self._processes.admit(self._place, self._command, waiting)
            self._waiting = None
        finally:
            await self.abandon()
        if not await waiting.child.wait(_FIRST_LOOK_S):
            return Output(f"{running.name} was started")
        running.seen = running.log.total
        output = _output_since(running, 0, self._place)
        return Output(output.text, is_error=waiting.child.code != 0)

    async def abandon(self) -> None:
        """Kill the launcher, if it did not get permission."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            await self._processes.abandon(waiting)


class _ProcessAction:
    """An action that starts nothing."""

    def __init__(self, work: Callable[[], Awaitable[Output]]) -> None:
        self.process: Process | None = None
        self._work = work

    async def run(self) -> Output:
        """Perform the action."""
        return await self._work()

    async def abandon(self) -> None:
        """Nothing was started."""


def _output_since(running: Running, position: int, place: Place) -> Output:
    data, lost = running.log.since(position)
    room = min(LOG_BYTES, place.output_bytes)
    if len(data) > room:
        data, lost = data[-room:], lost + len(data) - room
    gap = f"[{lost} bytes before this are gone]\n" if lost else ""
    return Output(f"{running.name} {running.status}\n{gap}{bounded(data, room)}".rstrip("\n"))


def _line(command: str) -> str:
    first = command.strip().splitlines()[0]
    return first if len(first) <= 80 else f"{first[:79]}…"
