"""What the clients of a rig ask for, and a client that keeps every byte. Owns: the prompts (directives of the scripted
upstream), and how a run is begun and read in each dialect. Refuses to know: when anything is killed."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.drill.checks import Told, frames_of, payload, position
from holdfast.drill.wire import DEADLINE_S, Exchange, get

EFFECTS = "effects"
"""The file in the workspace to which each terminal call appends its id."""
TAG = re.compile(r"\b(load-[0-9a-z-]+)\b")
STREAMS = {
    "responses": "/v1/responses/{}?stream=true",
    "chat": "/v1/chat/completions/{}?stream=true",
    "runs": "/v1/runs/{}/events",
}
AFTER = {"responses": "&starting_after={}", "chat": "&starting_after={}", "runs": "?after={}"}


def terminal(seconds: float) -> str:
    """A call that leaves a trace, and takes a while after it."""
    command = f"echo $HOLDFAST_CALL_ID >> {EFFECTS}; sleep {seconds:.3f}"
    return f"terminal:{json.dumps({'command': command})}"


class Hands(NamedTuple):
    """The calls that a load is made of, one of each effect."""

    write: Callable[[float], str]
    """Takes so many seconds, and leaves a trace before."""
    keep: str
    look: str


SHELL = Hands(terminal, 'write_file:{"path":"same.txt","content":"same"}', 'read_file:{"path":"nothing.txt"}')
PROBES = Hands(
    lambda seconds: f'drill_write:{{"seconds":{seconds:.3f}}}',
    'drill_idempotent:{"seconds":0.02}',
    'drill_read:{"seconds":0.01}',
)


def prompt(kind: str, chance: random.Random, hands: Hands = SHELL) -> str:
    """The directives of one kind of load."""
    pace = chance.choice((0.001, 0.003, 0.006))
    if kind == "text":
        return f"[[tokens={chance.randint(10, 60)} pace={pace}]]"
    if kind == "big":
        calls = "|".join([hands.look] * 3)  # past the bound of a tail: it is packed into segments while it runs
        return f"[[big=300000 tools={calls}]]"
    if kind == "reasoning":
        return f"[[reason={chance.randint(1, 6)} pace={pace}]] [[tools={hands.write(0.01)}]] [[tokens=8]]"
    if kind == "three":
        calls = "|".join(hands.write(chance.choice((0.0, 0.02, 0.06))) for _ in range(3))
        return f"[[tools={calls}]] [[pace={pace}]]"
    calls = "|".join((hands.look, hands.write(0.02), hands.keep, hands.write(0.01), hands.look))
    return f"[[parallel={calls}]] [[tokens=10 pace={pace}]]"


KINDS = {"text": 4, "three": 8, "parallel": 4, "reasoning": 4, "big": 1}
"""How often each is drawn."""


@dataclass
class Load:
    """One run, as its client knows it."""

    tag: str
    dialect: str
    text: str
    joins: dict[str, str] = field(default_factory=dict)
    """conversation or session."""
    id: str = ""
    """As the dialect shows it; empty while nobody was told."""
    told: list[Told] = field(default_factory=list)
    heard: Callable[[], None] = lambda: None
    """Called for each frame as it arrives."""
    seconds: float = DEADLINE_S
    """Its client waits so long for the end of a stream."""
    waited: bool = False
    """It waited for a person, and was stopped."""

    async def begin(self, port: int) -> None:
        """Ask for it and read until the end or the cut."""
        headers = {"Idempotency_Key": self.tag}
        if "session" in self.joins:
            headers["X_Hermes_Session_Id"] = self.joins["session"]
        path, body = self._request()
        exchange = Exchange(port, "POST", path, body, **headers)
        if self.dialect == "runs":
            await exchange.run()
            if exchange.status == 202:
                self.id = exchange.json()["run_id"]
                await self.read(port)
            return
        await self._record(exchange, -1)

    def _request(self) -> tuple[str, dict[str, Any]]:
        if self.dialect == "chat":
            messages = [{"role": "user", "content": self.text}]
            return "/v1/chat/completions", {"messages": messages, "stream": True, "store": True}
        talk = {"conversation": self.joins["conversation"]} if "conversation" in self.joins else {}
        if self.dialect == "runs":
            return "/v1/runs", {"input": self.text}
        return "/v1/responses", {"input": self.text, "stream": True, "store": True, **talk}

    async def read(self, port: int, after: int = -1) -> None:
        """Come back, from a position on."""
        path = STREAMS[self.dialect].format(self.id) + (AFTER[self.dialect].format(after) if after >= 0 else "")
        await self._record(Exchange(port, "GET", path), after)

    async def ask_again(self, port: int) -> None:
        """The same request with the same key: a snapshot and the rest, or the whole (C5)."""
        exchange = Exchange(port, "POST", *self._request(), Idempotency_Key=self.tag)
        exchange.heard = self._count
        await exchange.run(self.seconds)
        first = payload(frames_of(exchange.data)[0]) if exchange.data else {}
        if first.get("type") == "response.snapshot":
            rest = exchange.data.split(b"\n\n", 1)[1]
            self.told.append(Told(self.dialect, first["sequence_number"], rest))
        elif exchange.status == 200:
            self.told.append(Told(self.dialect, -1, exchange.data))

    async def _record(self, exchange: Exchange, after: int) -> None:
        exchange.heard = self._count
        try:
            await exchange.run(self.seconds)
        finally:
            if exchange.status == 200:
                self.learn(exchange, after)

    def _count(self, data: bytes) -> None:
        for _ in range(data.count(b"\n\n")):
            self.heard()

    def learn(self, exchange: Exchange, after: int = -1) -> None:
        """Keep what was told, and the id that it tells."""
        self.told.append(Told(self.dialect, after, exchange.data))
        first = payload(frames_of(exchange.data)[0]) if exchange.data else {}
        shown = first.get("response", first).get("id")
        if not self.id and isinstance(shown, str):
            self.id = shown

    def last_seen(self) -> int:
        """Up to where its client was told."""
        frames = [frame for told in self.told for frame in frames_of(told.data)]
        return max((place for frame in frames if (place := position(self.dialect, frame)) is not None), default=-1)

    @property
    def events(self) -> int:
        """How many frames its client was told."""
        return sum(len(frames_of(told.data)) for told in self.told)


def drawn(chance: random.Random, n: int, text: str) -> Load:
    """A load with this text: mostly responses, some chat and runs."""
    tag = f"load-{n}-{chance.getrandbits(24):x}"
    dialect = chance.choices(("responses", "chat", "runs"), (7, 2, 1))[0]
    joins = {}
    if dialect == "responses" and chance.random() < 0.5:
        how = chance.choice(("conversation", "session"))
        joins[how] = f"{how}-{tag}"
    return Load(tag, dialect, f"{tag} {text}", joins)


def draw(chance: random.Random, n: int) -> Load:
    """One load with the tools that come with the server."""
    return draw_with((SHELL,), (), chance, n)


def draw_with(hands: Sequence[Hands], calls: Sequence[str], chance: random.Random, n: int) -> Load:
    """One load with these tools; `calls` are the user's own, NAME:{JSON}, which some loads make too."""
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    text = prompt(kind, chance, chance.choice(hands))
    if calls and kind in ("three", "reasoning"):
        text = f"[[tools={chance.choice(calls)}|{PROBES.write(0.01)}]] [[tokens=8 pace=0.003]]"
    return drawn(chance, n, text)


def draw_prompt(prompts: Sequence[str], chance: random.Random, n: int) -> Load:
    """One of the user's own prompts, for a model that reads it."""
    load = drawn(chance, n, "")
    load.text = chance.choice(prompts)
    return load


class Unreadable(AssertionError):
    """A run that has ended cannot be read."""


async def stream(port: int, dialect: str, shown: str, after: int = -1) -> bytes:
    """A whole stream of a run that has ended."""
    path = STREAMS[dialect].format(shown) + (AFTER[dialect].format(after) if after >= 0 else "")
    exchange = await get(port, path)
    if exchange.status != 200 or not exchange.whole:
        raise Unreadable(f"{path} was answered {exchange.status} and ends {exchange.data[-300:]!r}")
    return exchange.data


async def cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """End tasks and see that they are ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
