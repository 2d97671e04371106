"""Real processes, real kills. Owns: the chain of server lives over one data directory: load, SIGKILL, restart (and
again in the middle of the recovery), wait until every run has ended (P4), gather the evidence of each from outside,
judge. Everything random comes from one seed. Refuses to know: what is right; that is checks.py."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.checks import Evidence, Finding, Told, calls_of, frames_of, judge, next_turn, position
from tests.crash.loads import EFFECTS, TAG, Load, cancel_all, draw, stream
from tests.crash.processes import Server, Upstream
from tests.crash.wire import all_done, get, post

RECOVERY_S = 30.0
"""P4."""
MOST_PLACES = 150
"""A run with more is resumed at two of them only."""
ENDED = ("completed", "failed", "cancelled", "incomplete")


@dataclass
class Tally:
    """What a drill has seen."""

    kills: int = 0
    runs: int = 0
    events: int = 0
    unknown: int = 0
    found: list[Finding] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    """Seconds from a restart until every run had ended."""

    def count(self, *kinds: str) -> int:
        """How many findings of these kinds."""
        return sum(finding.kind in kinds for finding in self.found)


class Rig:
    """`async with Rig(folder, seed) as rig: await rig.kill(40)`."""

    def __init__(self, folder: Path, seed: int, **environ: str) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.environ = environ
        self.tally = Tally()
        self.server: Server
        self.upstream: Upstream
        self.loads: list[Load] = []
        """Those that were begun and not judged yet."""
        self.asks: dict[str, list[list[dict[str, Any]]]] = {}
        self._drawn = 0
        self._clients: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Rig:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.upstream = await Upstream.start(self.folder)
        try:
            self.server = await self.start()
        except BaseException:
            await self.upstream.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._clients)
        await self.server.kill()
        await self.upstream.kill()

    async def start(self, *under: str, waits: bool = True) -> Server:
        """A new life on the same data directory, `under` a program that watches it or breaks its calls."""
        begin = Server.start if waits else Server.spawn
        return await begin(self.folder, self.upstream.port, under, **self.environ)

    async def kill(self, kills: int, in_flight: int = 4) -> Tally:
        """So many kills, in batches of one under load and up to three in the recovery; all is judged after each. Four
        deaths in a row are no five: no run is ever sealed here."""
        goal = self.tally.kills + kills
        while self.tally.kills < goal:
            more = min(self.chance.choice((0, 1, 2, 3)), goal - self.tally.kills - 1)
            await self._work_and_kill(in_flight)
            for _ in range(more):
                await self._restart_and_kill()
            await self.settle()
        return self.tally

    # killing

    async def _work_and_kill(self, in_flight: int) -> None:
        """Clients begin and read; the server dies at a random time, or with the nth frame that one of them got."""
        victims = [self._draw() for _ in range(in_flight)]
        frames = self.chance.randint(1, 60 * in_flight) if self.chance.random() < 0.5 else None
        seconds = self.chance.uniform(0.0, 0.7)
        if frames is not None:
            self._kill_at(victims, frames)
        self._clients = [asyncio.create_task(load.begin(self.server.port)) for load in victims]
        if frames is None:
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait(self._clients, timeout=2.0)  # fewer frames than drawn: all clients are done then
        await self._dead()

    def _draw(self) -> Load:
        self._drawn += 1
        self.loads.append(draw(self.chance, self._drawn))
        return self.loads[-1]

    def _kill_at(self, loads: list[Load], frames: int) -> None:
        left = [frames]

        def heard() -> None:
            left[0] -= 1
            if not left[0]:
                self.server.signal(signal.SIGKILL)

        for load in loads:
            load.heard = heard

    async def _restart_and_kill(self) -> None:
        """Death in the middle of the start or of the recovery."""
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

    # settling

    async def settle(self) -> None:
        """Restart, wait until every run has ended, and judge each."""
        self.server = await self.start()
        for load in self.loads:
            load.heard = lambda: None
            await self.find(load)
        known = [load for load in self.loads if load.id]
        self._clients = [asyncio.create_task(self._come_back(load)) for load in known]
        stuck = await self.ended(known)
        self.tally.recoveries.append(time.monotonic() - self.server.started)
        if not stuck:
            await all_done(self._clients)
        else:
            await cancel_all(self._clients)
        self.take_asks()
        await self._judge([load for load in known if load.tag not in stuck])
        self.loads = []

    async def find(self, load: Load) -> None:
        """A client that was never told an id finds its run by its key, or there is none and nothing was done for it."""
        found = (await get(self.server.port, f"/v1/runs?idempotency_key={load.tag}")).json()["data"]
        if len(found) > 1:
            self._found("rerun", load.tag, f"one key started {len(found)} runs")
        if found and not load.id:
            prefix = {"responses": "resp_", "chat": "chatcmpl-", "runs": "run_"}[load.dialect]
            load.id = prefix + found[0]["run_id"].removeprefix("run_")
        if load.id and not found:
            self._found("lost", load.tag, f"{load.id} was told and is gone")
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
        """Wait until all have ended; those that have not within the time of P4."""
        waiting = {load.tag: load for load in loads}
        with suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_S - (time.monotonic() - self.server.started)):
                while waiting:
                    shown = await all_done(get(self.server.port, run_path(load)) for load in waiting.values())
                    over = [tag for tag, s in zip(waiting, shown, strict=True) if s.json()["status"] in ENDED]
                    for tag in over:
                        del waiting[tag]
                    await asyncio.sleep(0.03)
        for tag in waiting:
            self._found("stuck", tag, f"it has not ended {RECOVERY_S:g} s after the restart")
        return set(waiting)

    def take_asks(self) -> None:
        """Read on in the log of the upstream."""
        for request in self.upstream.news():
            messages = request["messages"]
            users = [text_of(message) for message in messages if message["role"] == "user"]
            if users and (found := TAG.search(users[-1])):
                self.asks.setdefault(found[1], []).append(messages)

    # judging

    async def _judge(self, loads: list[Load]) -> None:
        for load in self.loads:
            if not load.id and self.asks.get(load.tag):
                self._found("ask", load.tag, "the model was asked for a run that was never accepted")
        every_k = self.chance.randrange(len(loads)) if loads else 0
        gathered = await all_done(self.evidence(load, all_places=n == every_k) for n, load in enumerate(loads))
        for load, evidence in zip(loads, gathered, strict=True):
            self.tally.found += judge(evidence)
            if evidence.status != "completed":
                self._found("end", load.tag, f"it ended {evidence.status}: {evidence.body.get('error')}")
            self.tally.runs += 1
            self.tally.events += load.events
            self.tally.unknown += sum(c.outcome == "unknown" for c in calls_of(evidence.replay["runs"]).values())
        for load, evidence in list(zip(loads, gathered, strict=True))[:3]:
            await self._next_turn(load, evidence)

    def _traces(self) -> list[str]:
        files = (self.folder / "data" / "workspaces").glob(f"*/{EFFECTS}")
        return [line for path in files for line in path.read_text().split()]

    def lines(self) -> int:
        """How many calls have left their trace."""
        return len(self._traces())

    def effects(self, run: str) -> Counter[str]:
        """How often each call of a run was really carried out."""
        return Counter(line for line in self._traces() if core(run) in line)

    async def evidence(self, load: Load, *, all_places: bool) -> Evidence:
        """All that can be known from outside of a run that has ended; resumed at all places, or at two."""
        port = self.server.port
        shown = (await get(port, run_path(load))).json()
        found = Evidence(load.tag, load.dialect, shown["status"], shown["output"], list(load.told))
        for dialect in {load.dialect, "runs"}:
            name = load.id if dialect == load.dialect else "run_" + core(load.id)
            found.replay[dialect] = await stream(port, dialect, name)
            places = [position(dialect, frame) for frame in frames_of(found.replay[dialect])]
            ks = sorted({place for place in places if place is not None})
            ks = ks if all_places and len(ks) <= MOST_PLACES else self.chance.sample(ks, min(2, len(ks)))
            tails = await all_done(stream(port, dialect, name, k) for k in ks)
            found.tails += [Told(dialect, k, tail) for k, tail in zip(ks, tails, strict=True)]
        if load.dialect == "responses":
            found.body = (await get(port, f"/v1/responses/{load.id}")).json()
        found.asks = self.asks.get(load.tag, [])
        found.effects = self.effects(load.id)
        return found

    async def _next_turn(self, load: Load, evidence: Evidence) -> None:
        """The next turn by chain, conversation or session is asked with the whole settled turn."""
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
        self.tally.found += next_turn(evidence, self.asks[tag][0])


def run_path(load: Load) -> str:
    """Where a run of any dialect is shown."""
    return f"/v1/runs/run_{core(load.id)}"


def core(shown: str) -> str:
    """The part of an id that all dialects share (G7)."""
    return shown.removeprefix("resp_").removeprefix("chatcmpl-").removeprefix("run_")


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, a string or parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
