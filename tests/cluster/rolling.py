"""A rolling restart under load (A9, P10): every replica gets SIGTERM in turn and comes back. Owns: callers with the
openai SDK as it comes, streaming clients that resume at their cursor, the restart, and the count of steps. Refuses to
know: other faults."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

import openai

from ninelives.drill.checks import calls_of
from ninelives.drill.loads import PROBES, Load
from ninelives.drill.processes import ROOT
from ninelives.drill.wire import KEY
from tests.cluster.clients import ENDED, Client, Kind
from tests.cluster.judging import Judge, Read, Result, spread
from tests.cluster.replicas import Cluster, Shape

STEPS = 3
TEXT = f"[[tools={PROBES.write(0.15)}|{PROBES.keep}|{PROBES.look}]] [[tokens=20 pace=0.02]]"
CALM_S = 2.0
"""Between two restarts: longer than a run takes."""
MIXED_S = 20.0
WORKERS = {"wait": 4, "background": 3, "chat": 2, "follow": 8}


class Rolling:
    """One rolling restart."""

    def __init__(self, cluster: Cluster, seed: int, calm_s: float = CALM_S) -> None:
        self.cluster = cluster
        self.calm_s = calm_s
        self.chance = random.Random(seed)
        self.result = Result("rolling restart", seed)
        self.clients: list[Client] = []
        self.chats = 0
        self.drains: list[float] = []
        self.over = False
        self.again = 0
        """Model calls that were made again because they had given nothing yet."""
        self._count = 0
        self._asked = 0

    async def roll(self) -> Result:
        """Load, and each replica in turn; then every run is judged."""
        sdk = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{self.cluster.line.port}/v1", api_key=KEY)
        works = {"wait": self._wait, "background": self._background, "chat": self._chat}
        async with asyncio.TaskGroup() as group:
            for kind, count in WORKERS.items():
                for _ in range(count):
                    work = self._follow() if kind == "follow" else self._call(kind, works[kind], sdk)
                    group.create_task(work)
            await self._restart_all()
            self.over = True
        await sdk.close()
        read = await Judge(self.cluster, self.chance).judge(self.clients, self.result)
        self._steps(read)
        self._rows(read)
        await self._one_run_each()
        return self.result

    async def _one_run_each(self) -> None:
        """A call that the SDK repeated goes on with the run of its first try (G13)."""
        if self.cluster.database is None:
            return
        (row,) = await self.cluster.database.ask("SELECT count(*) AS runs FROM runs")
        self.result.rows["runs in the database"] = row["runs"]
        made = len(self.clients) + self.chats  # chats are journaled too, and kept for a day (B6)
        if row["runs"] != made:
            text = f"{made} requests were made, and {row['runs']} runs were started"
            self.result.wrong("rerun", "all", text)

    async def _restart_all(self) -> None:
        for replica in self.cluster.replicas:
            await asyncio.sleep(self.calm_s)
            began = time.monotonic()
            replica.signal(signal.SIGTERM)
            code = await replica.gone()
            self.drains.append(time.monotonic() - began)
            if code != 0:
                self.result.wrong("end", replica.name, f"SIGTERM ended it with {code}:\n{replica.last_lines()}")
            replica.release = ROOT
            await self.cluster.start(replica)
        await asyncio.sleep(self.calm_s)

    def _new(self, kind: Kind) -> Client:
        self._count += 1
        tag = f"load-{self._count}-{self.chance.getrandbits(24):x}"
        client = Client(Load(tag, "responses", f"{tag} {TEXT}"), kind, self.chance, self.cluster.line)
        return client

    async def _follow(self) -> None:
        while not self.over:
            client = self._new("follow")
            self.clients.append(client)
            await client.bring_to_its_end()

    async def _call(self, kind: str, work: Any, sdk: openai.AsyncOpenAI) -> None:
        """Anything that comes out of the SDK is an error that it did not retry, or not often enough."""
        while not self.over:
            client = self._new("call")
            try:
                await work(sdk, client)
            except openai.APIError as error:
                self.result.wrong("end", client.load.tag, f"a caller ({kind}) was given {error!r}")

    async def _wait(self, sdk: openai.AsyncOpenAI, client: Client) -> None:
        self._ended(client, await sdk.responses.create(model="hermes-agent", input=client.load.text))

    async def _background(self, sdk: openai.AsyncOpenAI, client: Client) -> None:
        shown = await sdk.responses.create(model="hermes-agent", input=client.load.text, background=True)
        while shown.status not in ENDED:
            await asyncio.sleep(0.1)
            shown = await sdk.responses.retrieve(shown.id)
        self._ended(client, shown)

    def _ended(self, client: Client, shown: Any) -> None:
        client.load.id = shown.id
        self.clients.append(client)

    async def _chat(self, sdk: openai.AsyncOpenAI, client: Client) -> None:
        """Not stored: it ends where it began, or is tried again by the SDK. No two are alike: of two like ones, whose
        callers send no ids, the second may join the run of the first by a retry (G13)."""
        self._asked += 1
        messages: Any = [{"role": "user", "content": f"load-chat {self._asked} [[tokens=20 pace=0.02]]"}]
        answer = await sdk.chat.completions.create(model="hermes-agent", messages=messages)
        if not str(answer.choices[0].message.content).endswith("tok19 "):
            self.result.wrong("end", "chat", f"it was answered {answer.choices[0].message.content!r}")
        self.chats += 1

    def _steps(self, read: Read) -> None:
        """No step is repeated: each call once, and no message that had begun was dropped. (A model call that had given
        nothing yet is made again elsewhere: that is the safe point.)"""
        for tag, one in read.items():
            if len(calls_of(one.replay["runs"])) != STEPS or set(one.effects.values()) != {1}:
                self.result.wrong("rerun", tag, f"its calls were carried out {dict(one.effects)}")
            if b"message.dropped" in one.replay["runs"]:
                self.result.wrong("rerun", tag, "a message that was streaming was not finished")
            self.again += max(0, len(one.asks) - STEPS - 1)

    def _rows(self, read: Read) -> None:
        followed = [client for client in self.clients if client.kind == "follow"]
        half, most = spread(self.drains)
        self.result.rows = {
            "network": self.cluster.ground.name,
            "restarts (SIGTERM)": len(self.drains),
            "drain p50 / max (s)": f"{half} / {most}",
            "runs of SDK callers": len(self.clients) - len(followed),
            "chats of SDK callers": self.chats,
            "runs followed": len(followed),
            "times they resumed": sum(client.connections - 1 for client in followed),
            "runs completed": len(read),
            "tool executions": sum(sum(one.effects.values()) for one in read.values()),
            "errors callers saw": sum("a caller" in finding.text for finding in self.result.found),
            "events lost or changed": self.result.count("lost", "changed", "numbers"),
            "model calls cut before their first token": self.again,
            "steps repeated": self.result.count("rerun"),
        }


async def upgrade(folder: Path, seed: int, before: Path) -> Result:
    """The same from the release in `before` to this one, both on one store for a minute. The first new replica changes
    the schema."""
    async with Cluster(folder, Shape(own_networks=False, release=before)) as cluster:
        assert cluster.database is not None
        schema = "SELECT max(version) AS version FROM schema_versions"
        (old,) = await cluster.database.ask(schema)
        result = await Rolling(cluster, seed, MIXED_S).roll()
        (new,) = await cluster.database.ask(schema)
        result.name = "rolling upgrade"
        result.rows["schema"] = f"{old['version']} to {new['version']}"
        return result


async def rolling(folder: Path, seed: int, shape: Shape | None = None) -> Result:
    """The whole trial."""
    async with Cluster(folder, shape) as cluster:
        return await Rolling(cluster, seed).roll()
