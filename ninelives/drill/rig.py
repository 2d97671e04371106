"""One cycle of a drill. Owns: the sequence of servers over one data directory. Put load on one, SIGKILL it, restart it
(and perhaps kill it again during recovery), wait until every run has ended (P4), then check each. Everything random
comes from one seed. Refuses to know: what can be known of a run (witness.py) and what is right (checks.py)."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ninelives.drill.checks import Evidence, Finding, calls_of, judge, next_turn
from ninelives.drill.loads import TAG, Load, Unreadable, cancel_all
from ninelives.drill.processes import Server, Upstream
from ninelives.drill.wire import DEADLINE_S, all_done, post
from ninelives.drill.witness import Setup, Witness, run_path

ENDED = ("completed", "failed", "cancelled", "incomplete")
WAITING = "waiting_for_approval"


@dataclass
class Tally:
    """The counts and findings of a drill."""

    kills: int = 0
    boundaries: int = 0
    """Kills that were at a write of the journal."""
    runs: int = 0
    events: int = 0
    calls: int = 0
    """Tool calls in the streams."""
    executed: int = 0
    """How often counted tools really ran."""
    unknown: int = 0
    waited: int = 0
    """Runs that waited for an approval. They were stopped."""
    found: list[Finding] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a restart until every run had ended."""
    restarts: list[float] = field(default_factory=list)
    """Seconds until a restarted server listened."""

    def count(self, *kinds: str) -> int:
        """The number of findings of these kinds."""
        return sum(finding.kind in kinds for finding in self.found)


class Rig:
    """`async with Rig(folder, seed) as rig: await rig.kill(40)`."""

    def __init__(self, folder: Path, seed: int, setup: Setup | None = None, **environ: str) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.setup = setup or Setup()
        self.witness = Witness(folder, self.setup, self.chance)
        self.environ = environ
        self.module: tuple[str, ...] = self.setup.launch.module
        """What `python -m` runs for the next server: ninelives, or a victim."""
        self.tally = Tally()
        self.server: Server
        self.upstream: Upstream | None = None
        self.loads: list[Load] = []
        """Started, and not checked yet."""
        self.asks: dict[str, list[list[dict[str, Any]]]] = {}
        self._drawn = 0
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Rig:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.setup.scripted:
            self.upstream = await Upstream.start(self.folder)
        try:
            self.server = await self.start()
        except BaseException:
            await self._end_upstream()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._clients)
        await self.server.kill()
        await self._end_upstream()

    async def _end_upstream(self) -> None:
        if self.upstream is not None:
            await self.upstream.kill()

    async def start(self, *under: str, waits: bool = True) -> Server:
        """Start a server on the same data directory. `under`: a program that traces it or injects faults."""
        begin = Server.start if waits else Server.spawn
        given = self.setup.launch
        launch = replace(given, environ={**given.environ, **self.environ}, under=under, module=self.module)
        return await begin(self.folder, self.upstream.port if self.upstream else None, launch)

    async def kill(self, kills: int, in_flight: int = 4) -> Tally:
        """Kill so many times, in batches: one kill under load, then up to three during recovery. Check every run after
        each batch. Four deaths in a row stay below the limit of strikes (R7), so no run is given up here."""
        goal = self.tally.kills + kills
        while self.tally.kills < goal:
            more = min(self.chance.choice((0, 1, 2, 3)), goal - self.tally.kills - 1)
            await self._work_and_kill(in_flight)
            for _ in range(more):
                await self._restart_and_kill()
            await self.recover_and_judge()
        return self.tally

    # killing

    async def _work_and_kill(self, in_flight: int) -> None:
        """Start clients, and kill the server at a random time or when they have received the nth frame."""
        victims = [self._draw() for _ in range(in_flight)]
        frames = self.chance.randint(1, 60 * in_flight) if self.chance.random() < 0.5 else None
        seconds = self.chance.uniform(0.0, self.setup.window_s)
        on_frame = None if frames is None else self._kill_at(frames)
        self._clients = [asyncio.create_task(load.begin(self.server.port, on_frame)) for load in victims]
        if frames is None:
            await asyncio.sleep(seconds)
        else:
            timeout = 3 * self.setup.window_s  # fewer frames than drawn: all clients are done then
            await asyncio.wait(self._clients, timeout=timeout)
        await self._dead()

    def _draw(self) -> Load:
        self._drawn += 1
        self.loads.append(self.setup.draw(self.chance, self._drawn))
        self.loads[-1].seconds = max(DEADLINE_S, self.setup.recovery_s)
        return self.loads[-1]

    def _kill_at(self, frames: int) -> Callable[[], None]:
        """Call the result for each frame: the nth kills the server."""
        left = frames

        def on_frame() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.server.signal(signal.SIGKILL)

        return on_frame

    async def _restart_and_kill(self) -> None:
        """Restart, and kill during the start or the recovery."""
        if self.chance.random() < 0.2:
            self.server = await self.start(waits=False)
            await asyncio.sleep(self.chance.uniform(0.1, 0.6))
        else:
            self.server = await self.start()
            self._clients = [asyncio.create_task(load.read(self.server.port)) for load in self.loads if load.id]
            await asyncio.sleep(self.chance.uniform(0.0, 0.4))
        await self._dead()

    async def _dead(self) -> None:
        await self.server.kill()
        await all_done(self._clients)
        self._clients = []
        self.tally.kills += 1

    # recovery

    async def recover_and_judge(self) -> None:
        """Restart, wait until every run has ended, and check each."""
        self.server = await self.start()
        self.tally.restarts.append(time.monotonic() - self.server.started)
        for load in self.loads:
            await self.find(load)
        known = [load for load in self.loads if load.id]
        self._clients = [asyncio.create_task(self._come_back(load)) for load in known]
        stuck = await self.ended(known)
        self.tally.recoveries.append(time.monotonic() - self.server.started)
        if stuck:
            await cancel_all(self._clients)
        for load, end in zip(known, await asyncio.gather(*self._clients, return_exceptions=True), strict=True):
            if isinstance(end, TimeoutError):
                self._found("stuck", load.tag, "the run has ended, but its client's stream has not")
            elif isinstance(end, Exception):
                raise end
        self._clients = []
        self.take_asks()
        await self._judge([load for load in known if load.tag not in stuck])
        self.loads = []

    async def find(self, load: Load) -> None:
        """Look up a run by its idempotency key, for a client that never received an id."""
        found = (await self.server.shown(f"/v1/runs?idempotency_key={load.tag}"))["data"]
        if len(found) > 1:
            self._found("rerun", load.tag, f"one key started {len(found)} runs")
        if found and not load.id:
            prefix = {"responses": "resp_", "chat": "chatcmpl-", "runs": "run_"}[load.dialect]
            load.id = prefix + found[0]["run_id"].removeprefix("run_")
        if load.id and not found:
            self._found("lost", load.tag, f"{load.id} was sent to a client and is gone")
            load.id = ""

    def _found(self, kind: Any, tag: str, text: str) -> None:
        self.tally.found.append(Finding(kind, tag, text))

    async def _come_back(self, load: Load) -> None:
        port, last = self.server.port, load.last_seen()
        if load.dialect == "responses" and self.chance.random() < 0.3 and "session" not in load.joins:
            await load.ask_again(port)
        elif load.dialect == "chat":
            await load.read(port)
        else:
            await load.read(port, last)

    async def ended(self, loads: list[Load]) -> set[str]:
        """Wait until all have ended. Returns the tags of those that have not in time (P4)."""
        waiting = {load.tag: load for load in loads}
        with suppress(TimeoutError):
            async with asyncio.timeout(self.setup.recovery_s - (time.monotonic() - self.server.started)):
                while waiting:
                    shown = await all_done(self.server.shown(run_path(load)) for load in waiting.values())
                    for load, body in zip(list(waiting.values()), shown, strict=True):
                        if body["status"] in ENDED:
                            del waiting[load.tag]
                        elif body["status"] == WAITING and not load.waited:
                            await self._stop(load)
                    await asyncio.sleep(0.03)
        for tag in waiting:
            self._found("stuck", tag, f"the run has not ended {self.setup.recovery_s:g} s after the restart")
        return set(waiting)

    async def _stop(self, load: Load) -> None:
        """Stop a run that waits for an approval: nobody answers here, and waiting for a person is no fault (P4)."""
        load.waited = True
        self.tally.waited += 1
        await post(self.server.port, f"{run_path(load)}/stop", {})

    def take_asks(self) -> None:
        """Read what is new in the log of the upstream."""
        for request in self.upstream.news() if self.upstream else ():
            messages = request["messages"]
            users = [text_of(message) for message in messages if message["role"] == "user"]
            if users and (found := TAG.search(users[-1])):
                self.asks.setdefault(found[1], []).append(messages)

    # checks

    async def _judge(self, loads: list[Load]) -> None:
        for load in self.loads:
            if not load.id and self.asks.get(load.tag):
                self._found("ask", load.tag, "the model was asked for a run that was never accepted")
        every_k = self.chance.randrange(len(loads)) if loads else 0
        work = [self._read_all(load, all_places=n == every_k) for n, load in enumerate(loads)]
        read = [(load, one) for load, one in zip(loads, await all_done(work), strict=True) if one is not None]
        for load, evidence in read:
            self.tally.found += judge(evidence)
            as_asked = evidence.status == "completed" or load.waited or not self.setup.scripted
            if not as_asked:
                self._found("end", load.tag, f"the run ended {evidence.status}: {evidence.body.get('error')}")
            calls = calls_of(evidence.replay["runs"])
            self.tally.runs += 1
            self.tally.events += load.events
            self.tally.calls += len(calls)
            self.tally.executed += sum(evidence.effects.values())
            self.tally.unknown += sum(call.outcome == "unknown" for call in calls.values())
        for load, evidence in read[:3]:
            await self._next_turn(load, evidence)

    async def _read_all(self, load: Load, *, all_places: bool) -> Evidence | None:
        try:
            evidence = await self.evidence(load, all_places=all_places)
        except Unreadable as error:
            self._found("lost", load.tag, str(error))
            return None
        except TimeoutError:
            self._found("stuck", load.tag, "the run has ended, but reading it does not finish")
            return None
        for wrong in await self.witness.receipt(self.server, load, evidence):
            self._found("rerun", load.tag, wrong)
        return evidence

    async def evidence(self, load: Load, *, all_places: bool) -> Evidence:
        """All evidence of a run that has ended. Its streams are resumed at all positions, or at two."""
        found = await self.witness.evidence(self.server, load, all_places=all_places)
        found.asks = self.asks.get(load.tag, [])
        return found

    def lines(self) -> int:
        """The number of calls that have left a trace."""
        return len(self.witness.traces())

    def effects(self, run: str) -> Counter[str]:
        """How often each call of a run really ran."""
        return self.witness.effects(run)

    async def _next_turn(self, load: Load, evidence: Evidence) -> None:
        """Start another turn, and check that the model is sent the whole settled turn before it."""
        if not self.setup.scripted or load.waited:
            return
        tag = f"{load.tag}-next"
        body: dict[str, Any] = {"input": f"{tag} go on"}
        headers = {}
        if "session" in load.joins:
            headers = {"X_Hermes_Session_Id": load.joins["session"]}
        elif "conversation" in load.joins:
            body["conversation"] = load.joins["conversation"]
        elif load.dialect == "responses":
            body["previous_response_id"] = load.id
        else:
            return
        answer = await post(self.server.port, "/v1/responses", body, **headers)
        if answer.status != 200:
            self._found("ask", load.tag, f"the next turn was answered {answer.status}: {answer.data[:300]!r}")
            return
        self.take_asks()
        if tag in self.asks:
            self.tally.found += next_turn(evidence, self.asks[tag][0])
        else:
            self._found("ask", load.tag, "the model was not asked for the next turn")


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, a string or parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
