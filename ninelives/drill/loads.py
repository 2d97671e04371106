"""The load on a rig's server, and a client that keeps every byte. Owns: the prompts (directives for the scripted
upstream), and starting and reading a run in each dialect. Refuses to know: when anything is killed."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ninelives.drill.checks import Told, frames_of, payload, position
from ninelives.drill.wire import DEADLINE_S, Exchange, get

EFFECTS = "effects"
"""The file in the workspace to which each terminal call appends its id."""
TAG = re.compile(r"\b(load-[0-9a-z-]+)\b")
FRAME_END = b"\n\n"
SNAPSHOT = b"event: response.snapshot\n"
OnFrame = Callable[[], None]
STREAMS = {
    "responses": "/v1/responses/{}?stream=true",
    "chat": "/v1/chat/completions/{}?stream=true",
    "runs": "/v1/runs/{}/events",
}
AFTER = {"responses": "&starting_after={}", "chat": "&starting_after={}", "runs": "?after={}"}


def terminal(seconds: float) -> str:
    """A call that leaves a trace, then takes a while."""
    command = f"echo $NINELIVES_CALL_ID >> {EFFECTS}; sleep {seconds:.3f}"
    return f"terminal:{json.dumps({'command': command})}"


class Hands(NamedTuple):
    """The calls that a load consists of, one of each effect."""

    write: Callable[[float], str]
    """Leaves a trace, then takes so many seconds."""
    keep: str
    look: str


SHELL = Hands(terminal, 'write_file:{"path":"same.txt","content":"same"}', 'read_file:{"path":"nothing.txt"}')
PROBES = Hands(
    lambda seconds: f'drill_write:{{"seconds":{seconds:.3f}}}',
    'drill_idempotent:{"seconds":0.02}',
    'drill_read:{"seconds":0.01}',
)


def prompt(kind: str, chance: random.Random, hands: Hands = SHELL) -> str:
    """The directives for one kind of load."""
    pace = chance.choice((0.001, 0.003, 0.006))
    if kind == "text":
        return f"[[tokens={chance.randint(10, 60)} pace={pace}]]"
    if kind == "big":
        calls = "|".join([hands.look] * 3)  # over the limit of the hot table, so that it is packed into segments (R11)
        return f"[[big=300000 tools={calls}]]"
    if kind == "reasoning":
        return f"[[reason={chance.randint(1, 6)} pace={pace}]] [[tools={hands.write(0.01)}]] [[tokens=8]]"
    if kind == "three":
        calls = "|".join(hands.write(chance.choice((0.0, 0.02, 0.06))) for _ in range(3))
        return f"[[tools={calls}]] [[pace={pace}]]"
    calls = "|".join((hands.look, hands.write(0.02), hands.keep, hands.write(0.01), hands.look))
    return f"[[parallel={calls}]] [[tokens=10 pace={pace}]]"


KINDS = {"text": 4, "three": 8, "parallel": 4, "reasoning": 4, "big": 1}
"""The weight of each kind."""


@dataclass
class Load:
    """One run, and what its client knows about it."""

    tag: str
    dialect: str
    text: str
    joins: dict[str, str] = field(default_factory=dict)
    """The conversation or session that it joins."""
    id: str = ""
    """As the dialect shows it. Empty as long as the client has not received it."""
    told: list[Told] = field(default_factory=list)
    seconds: float = DEADLINE_S
    """How long its client waits for the end of a stream."""
    waited: bool = False
    """It waited for an approval, and was stopped."""

    async def begin(self, port: int, on_frame: OnFrame | None = None) -> None:
        """Start the run and read its stream until it ends or breaks. `on_frame` is called for each frame."""
        headers = {"Idempotency_Key": self.tag}
        if "session" in self.joins:
            headers["X_Hermes_Session_Id"] = self.joins["session"]
        path, body = self._request()
        if self.dialect == "runs":
            exchange = await Exchange(port, "POST", path, body, None, **headers).run()
            if exchange.status == 202:
                self.id = exchange.json()["run_id"]
                await self.read(port, on_frame=on_frame)
            return
        await self._record(Exchange(port, "POST", path, body, on_data=_by_frame(on_frame), **headers), -1)

    def _request(self) -> tuple[str, dict[str, Any]]:
        if self.dialect == "chat":
            messages = [{"role": "user", "content": self.text}]
            return "/v1/chat/completions", {"messages": messages, "stream": True, "store": True}
        talk = {"conversation": self.joins["conversation"]} if "conversation" in self.joins else {}
        if self.dialect == "runs":
            return "/v1/runs", {"input": self.text}
        return "/v1/responses", {"input": self.text, "stream": True, "store": True, **talk}

    async def read(self, port: int, after: int = -1, on_frame: OnFrame | None = None) -> None:
        """Read the run's stream, from a position on."""
        path = STREAMS[self.dialect].format(self.id) + (AFTER[self.dialect].format(after) if after >= 0 else "")
        await self._record(Exchange(port, "GET", path, on_data=_by_frame(on_frame)), after)

    async def ask_again(self, port: int) -> None:
        """Repeat the request with its idempotency key. The answer is a snapshot and the rest, or the whole (C5)."""
        await self._record(Exchange(port, "POST", *self._request(), Idempotency_Key=self.tag), -1)

    async def _record(self, exchange: Exchange, after: int) -> None:
        try:
            await exchange.run(self.seconds)
        finally:
            if exchange.status == 200:
                self.learn(exchange, after)

    def learn(self, exchange: Exchange, after: int = -1) -> None:
        """Keep what was received, and the id in it. What follows a snapshot is the rest of a stream (C5)."""
        frames = frames_of(exchange.data)
        first = payload(frames[0]) if frames else {}
        if frames and frames[0].startswith(SNAPSHOT):
            after, frames = first.get("sequence_number", -1), frames[1:]
        self.told.append(Told(self.dialect, after, b"".join(frames)))
        shown = first.get("response", first).get("id")
        if not self.id and isinstance(shown, str):
            self.id = shown

    def last_seen(self) -> int:
        """The last position that its client received."""
        frames = [frame for told in self.told for frame in frames_of(told.data)]
        return max((place for frame in frames if (place := position(self.dialect, frame)) is not None), default=-1)

    @property
    def events(self) -> int:
        """How many frames its client received."""
        return sum(len(frames_of(told.data)) for told in self.told)


def _by_frame(on_frame: OnFrame | None) -> Callable[[bytes], None] | None:
    """`on_frame` as a callback for the data of an Exchange: called once per end of a frame."""
    if on_frame is None:
        return None

    def on_data(data: bytes) -> None:
        for _ in range(data.count(FRAME_END)):
            on_frame()

    return on_data


def drawn(chance: random.Random, n: int, text: str) -> Load:
    """A load with this text. Most are responses, some are chats and runs."""
    tag = f"load-{n}-{chance.getrandbits(24):x}"
    dialect = chance.choices(("responses", "chat", "runs"), (7, 2, 1))[0]
    joins = {}
    if dialect == "responses" and chance.random() < 0.5:
        how = chance.choice(("conversation", "session"))
        joins[how] = f"{how}-{tag}"
    return Load(tag, dialect, f"{tag} {text}", joins)


def draw(chance: random.Random, n: int) -> Load:
    """A load with the built-in tools."""
    return draw_with((SHELL,), (), chance, n)


def draw_with(hands: Sequence[Hands], calls: Sequence[str], chance: random.Random, n: int) -> Load:
    """A load with these tools. `calls` are calls of the user's own tools, NAME:{JSON}, which some loads make too."""
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    text = prompt(kind, chance, chance.choice(hands))
    if calls and kind in ("three", "reasoning"):
        text = f"[[tools={chance.choice(calls)}|{PROBES.write(0.01)}]] [[tokens=8 pace=0.003]]"
    return drawn(chance, n, text)


def draw_prompt(prompts: Sequence[str], chance: random.Random, n: int) -> Load:
    """A load with one of the user's prompts, for a real model."""
    load = drawn(chance, n, "")
    load.text = chance.choice(prompts)
    return load


class Unreadable(AssertionError):
    """A run that has ended cannot be read."""


class Refused(Unreadable):
    """The stream was answered with an error instead. Chat Completions does so for a run that failed before it had said
    anything, so that the failure has its status (B2)."""

    def __init__(self, text: str, code: str, message: str) -> None:
        super().__init__(text)
        self.code = code
        self.message = message


async def stream(port: int, dialect: str, shown: str, after: int = -1) -> bytes:
    """A whole stream of a run that has ended."""
    path = STREAMS[dialect].format(shown) + (AFTER[dialect].format(after) if after >= 0 else "")
    exchange = await get(port, path)
    if exchange.status == 200 and exchange.whole:
        return exchange.data
    text = f"{path} returned {exchange.status} and ends with {exchange.data[-300:]!r}"
    if exchange.status > 200 and exchange.whole and dialect == "chat":
        error = exchange.json()["error"]
        raise Refused(text, error["code"], error["message"])
    raise Unreadable(text)


async def cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
