"""Whoever is asked, the right one hears it: cancel, approval and deletion through another replica than the one that
drives the run. Owns: the three and how long each takes until the run has really stopped, or gone on. Refuses to know:
faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from ninelives.drill.checks import frames_of, payload
from ninelives.drill.wire import until
from tests.cluster.judging import Result, spread
from tests.cluster.lines import Request, until_so
from tests.cluster.replicas import Cluster, Replica, Shape

LONG = "[[tokens=3000 pace=0.02]]"
ASKS = '[[tools=drill_write:{"seconds":0}]]'
BOUND_S = 10.0
"""A trial on a busy machine, and a reader elsewhere looks only now and then whether its run is still there. What is
normal is in the table."""


class Stream(Request):
    """A reader that runs beside the trial."""

    def __init__(self, replica: Replica, method: str, path: str, body: dict[str, object] | None = None) -> None:
        super().__init__(replica.line, method, path, body)
        self.task = asyncio.create_task(self.follow(60.0))

    @property
    def id(self) -> str:
        """Of the response that it tells."""
        return str(payload(frames_of(self.data)[0])["response"]["id"])

    async def over(self) -> float:
        """Wait for the end: when that was (monotonic)."""
        await asyncio.wait_for(self.task, 60.0)
        return time.monotonic()

    async def after(self, count: int) -> None:
        """Wait until it was told so many frames."""
        await until(lambda: self.data.count(b"\n\n") >= count or self.task.done(), what=f"{count} frames")
        assert not self.task.done(), f"it ended: {self.status} {self.data[-300:]!r}"


class Elsewhere:
    """A runs, B is asked, C looks on."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.result = Result("through another replica", seed)
        self.times: dict[str, list[float]] = {}

    def three(self, n: int) -> tuple[Replica, Replica, Replica]:
        """Each in each part, in turn."""
        replicas = self.cluster.replicas
        a, b, c = (replicas[(n + place) % len(replicas)] for place in range(3))
        return a, b, c

    def took(self, what: str, seconds: float, run: str) -> None:
        """One measurement."""
        self.times.setdefault(what, []).append(seconds)
        if seconds > BOUND_S:
            self.result.wrong("stuck", run, f"{what} took {seconds:.1f} s")

    async def _running(self, n: int, text: str) -> tuple[Stream, Stream, Replica]:
        """A run on A, its readers on A and C, and B."""
        a, b, c = self.three(n)
        first = Stream(a, "POST", "/v1/responses", {"input": f"load-{n} {text}", "stream": True})
        await first.after(8)
        second = Stream(c, "GET", f"/v1/responses/{first.id}?stream=true")
        await second.after(8)
        return first, second, b

    async def _told(self, what: str, began: float, first: Stream, second: Stream) -> None:
        """How long it took until it was answered, which is now, and until each of both readers was at the end."""
        self.took(f"{what} answered", time.monotonic() - began, first.id)
        self.took(f"{what} at its reader", await first.over() - began, first.id)
        self.took(f"{what} at a reader elsewhere", await second.over() - began, first.id)

    async def cancel(self, n: int) -> None:
        """Through B: the stream on A ends, that on C too, and the upstream is let go of."""
        first, second, b = await self._running(n, LONG)
        began = time.monotonic()
        answer = await b.line.post(f"/v1/responses/{first.id}/cancel")
        await self._told("cancel", began, first, second)
        if answer.status != 200 or answer.json()["status"] != "cancelled":
            self.result.wrong("end", first.id, f"cancel was answered {answer.status}: {answer.data[:300]!r}")
        for stream in (first, second):
            last = payload(frames_of(stream.data)[-2]) if stream.whole else {}
            if last.get("response", {}).get("status") != "cancelled":
                self.result.wrong("end", first.id, f"a stream ends with {stream.data[-200:]!r}")

    async def delete(self, n: int) -> None:
        """Through B: gone for all, and both streams end, without [DONE]."""
        first, second, b = await self._running(n, LONG)
        began = time.monotonic()
        answer = await b.line.delete(f"/v1/responses/{first.id}")
        await self._told("delete", began, first, second)
        if answer.status != 200:
            self.result.wrong("end", first.id, f"delete was answered {answer.status}: {answer.data[:300]!r}")
        for replica in self.cluster.replicas:
            if (status := (await replica.line.get(f"/v1/responses/{first.id}")).status) != 404:
                self.result.wrong("end", first.id, f"deleted, and {replica.name} answers {status}")

    async def approve(self, n: int) -> None:
        """Through B: the tool runs, once, and the run goes on to its end."""
        a, b, c = self.three(n)
        run = (await a.line.post("/v1/runs", {"input": f"load-{n} {ASKS}"})).json()["run_id"]
        stream = Stream(a, "GET", f"/v1/runs/{run}/events")
        path = f"/v1/runs/{run}"
        await self._shows(c, path, "waiting_for_approval")
        began = time.monotonic()
        answer = await b.line.post(f"{path}/approval", {"choice": "once"})
        if answer.status != 200:
            self.result.wrong("end", run, f"approval was answered {answer.status}: {answer.data[:300]!r}")
        await until(lambda: self._traces(run) > 0, what="the effect")
        self.took("approval to the tool's effect", time.monotonic() - began, run)
        self.took("approval to the end at its reader", await stream.over() - began, run)
        again = await c.line.post(f"{path}/approval", {"choice": "once"})
        if again.status != 409:
            self.result.wrong("rerun", run, f"a second approval was answered {again.status}")
        await self._shows(b, path, "completed")
        if (count := self._traces(run)) != 1:
            self.result.wrong("rerun", run, f"the approved tool ran {count} times")

    async def _shows(self, replica: Replica, path: str, status: str) -> None:
        async def so() -> bool:
            answer = await replica.line.get(path)
            return bool(answer.whole and answer.json().get("status") == status)

        await until_so(so, what=f"{path} is {status}")

    def _traces(self, run: str) -> int:
        traces = self.cluster.traces
        lines = traces.read_text().splitlines() if traces.exists() else []
        return sum(run.removeprefix("run_") in line for line in lines)

    async def all(self, times: int) -> Result:
        """Each so often."""
        acts: tuple[Callable[..., object], ...] = (self.cancel, self.approve, self.delete)
        for n in range(times):
            for act in acts:
                await act(n)  # type: ignore[misc]
        await self._upstream_is_left(2 * times)
        self.result.rows = {"network": self.cluster.ground.name, "times": times}
        for what, seconds in self.times.items():
            half, most = spread(seconds, 1000)
            self.result.rows[f"{what}, ms p50 / max"] = f"{half} / {most}"
        return self.result

    async def _upstream_is_left(self, stopped: int) -> None:
        """No model call goes on for a run that was cancelled or deleted."""

        async def so() -> bool:
            return int((await self.cluster.upstream_line.get("/_stats")).json()["closed_early"]) >= stopped

        await until_so(so, what=f"{stopped} runs were stopped, and the model calls of all of them")


async def elsewhere(folder: Path, seed: int, times: int = 10, shape: Shape | None = None) -> Result:
    """The whole trial."""
    async with Cluster(folder, shape or Shape(approval="on-write")) as cluster:
        return await Elsewhere(cluster, seed).all(times)
