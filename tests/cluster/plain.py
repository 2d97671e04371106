"""A rolling restart behind a balancer, as it is shipped (A9). Owns: chats of clients that never try again, at a steady
pace, the restart of each replica, and the count of what they saw. Refuses to know: clients that come back."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

from ninelives.drill.checks import frames_of, payload
from tests.cluster.judging import Result, spread
from tests.cluster.lines import Request
from tests.cluster.replicas import Cluster, Replica, Shape

PACE_S = 0.6
CALM_S = 2.0
TOKENS = 20
ROUNDS = 2


class Plain:
    """One rolling restart under plain chats."""

    def __init__(self, cluster: Cluster, rounds: int) -> None:
        self.cluster = cluster
        self.rounds = rounds
        self.result = Result(f"rolling restart behind {cluster.shape.balancer}", 0)
        self.seconds: list[float] = []
        self.drains: list[float] = []
        self.over = False

    async def roll(self) -> Result:
        """Chats every PACE_S, streamed or not, while each replica stops and comes back."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._chats(group))
            for _ in range(self.rounds):
                for replica in self.cluster.replicas:
                    await asyncio.sleep(CALM_S)
                    await self._restart(replica)
            await asyncio.sleep(CALM_S)
            self.over = True
        half, most = spread(self.drains)
        median, longest = spread(self.seconds)
        self.result.rows = {
            "restarts (SIGTERM)": len(self.drains),
            "drain p50 / max (s)": f"{half} / {most}",
            "chats": len(self.seconds),
            "chat p50 / max (s)": f"{median} / {longest}",
            "errors callers saw": len(self.result.found),
        }
        return self.result

    async def _restart(self, replica: Replica) -> None:
        began = time.monotonic()
        replica.signal(signal.SIGTERM)
        if (code := await replica.gone()) != 0:
            self.result.wrong("end", replica.name, f"SIGTERM ended it with {code}:\n{replica.last_lines()}")
        self.drains.append(time.monotonic() - began)
        await self.cluster.start(replica)

    async def _chats(self, group: asyncio.TaskGroup) -> None:
        loop, due, count = asyncio.get_running_loop(), asyncio.get_running_loop().time(), 0
        while not self.over:
            group.create_task(self._chat(f"chat {count}", stream=count % 2 == 0))
            count, due = count + 1, due + PACE_S
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _chat(self, name: str, *, stream: bool) -> None:
        messages = [{"role": "user", "content": f"{name} [[tokens={TOKENS} pace=0.02]]"}]
        body = {"model": "hermes-agent", "messages": messages, "stream": stream}
        began = time.monotonic()
        request = await Request(self.cluster.line, "POST", "/v1/chat/completions", body).follow(20.0)
        self.seconds.append(time.monotonic() - began)
        said = _text(request.data, stream=stream) if request.status == 200 and request.whole else ""
        if not said.endswith(f"tok{TOKENS - 1} "):
            self.result.wrong("end", name, f"(stream={stream}) was answered {request.status}: {request.data[-300:]!r}")


def _text(data: bytes, *, stream: bool) -> str:
    if not stream:
        return str(json.loads(data)["choices"][0]["message"]["content"])
    frames = [frame for frame in frames_of(data) if frame != b"data: [DONE]\n\n"]
    deltas = [choice["delta"].get("content") or "" for frame in frames for choice in payload(frame).get("choices", [])]
    return "".join(deltas) if data.endswith(b"data: [DONE]\n\n") else ""


async def plain(folder: Path, shape: Shape, rounds: int = ROUNDS) -> Result:
    """The whole trial."""
    async with Cluster(folder, shape) as cluster:
        return await Plain(cluster, rounds).roll()
