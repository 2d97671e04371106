"""Clients that do not give up. Owns: four kinds of them, each of which brings one run to its end through a balancer
behind which anything may die: one that streams and comes back at its cursor, one that polls a background run, one that
repeats a call with its Idempotency-Key, and a second reader beside the first. Each keeps every byte that it was told.
Refuses to know: what is broken when, and what is right about what was told (but for what no server may ever answer)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import openai

from ninelives.drill.checks import ENDS, Finding, Told, frames_of, payload, position
from ninelives.drill.loads import AFTER, PROBES, STREAMS, Load
from tests.cluster.lines import Line, Request

Kind = Literal["follow", "poll", "call", "watch", "sdk"]
ENDED = ("completed", "failed", "cancelled", "incomplete")
PASSING = (0, 429, 500, 502, 503, 504)
"""What a client may be answered at a bad moment, and asks again after. (500 is judged on its own: see `refused`.)"""
PAUSE_S = (0.05, 0.4)
DEADLINE_S = 240.0
RUNS = {"text": 3, "three": 5, "parallel": 4, "reasoning": 3}
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "runs": "/v1/runs"}


class Refused(Exception):
    """It was given an answer for good that no server may give."""


@dataclass
class Client:
    """One run and the one who wants it."""

    load: Load
    kind: Kind
    chance: random.Random
    line: Line
    connections: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    """How often each status was answered."""
    found: list[Finding] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    arrivals: list[float] = field(default_factory=list)
    """When frames came (time.time), for whom it matters."""
    done: bool = False
    beside: Client | None = None
    """Whose run it watches."""
    sdk: openai.AsyncOpenAI | None = None
    """What a caller of kind `sdk` asks with, as it comes: no key of its own, and two retries."""
    given: str = ""
    """The error that the SDK gave its caller."""
    cut_off: tuple[float, float] = (0.0, 0.0)
    """When the SDK began to ask and when it gave up (time.time), if its last try got no answer of a replica."""

    async def bring_to_its_end(self, seconds: float = DEADLINE_S) -> None:
        """Whatever it takes, within a deadline."""
        ways = {"follow": self._follow, "poll": self._poll, "call": self._call, "watch": self._watch, "sdk": self._ask}
        try:
            async with asyncio.timeout(seconds):
                await ways[self.kind]()
            self.done = True
        except Refused:
            return
        except TimeoutError:
            self._wrong("stuck", f"its client ({self.kind}) has no end after {seconds:g} s")

    def _wrong(self, kind: Any, text: str) -> None:
        self.found.append(Finding(kind, self.load.tag, text))

    async def _pause(self) -> None:
        await asyncio.sleep(self.chance.uniform(*PAUSE_S))

    def _took(self, request: Request) -> bool:
        """Was it answered? If not: may it be asked again?"""
        self.connections += 1
        self.answers[request.status] += 1
        if request.status == 500:
            self._wrong("end", f"answered 500: {request.data[:300]!r}")
        if request.status in (200, 202):
            return True
        if request.status not in PASSING:
            kind = "lost" if request.status == 404 else "end"
            self._wrong(kind, f"answered {request.status}: {request.data[:300]!r}")
            raise Refused
        return False

    # one that streams

    async def _follow(self) -> None:
        while not self.load.id:
            await self._begin()
        while not self._ended():
            await self._come_back()

    async def _watch(self) -> None:
        """A second reader, who was given the id by the first."""
        assert self.beside is not None
        while not self.beside.load.id:
            if self.beside.done or self.beside.found:
                raise Refused
            await self._pause()
        core = self.beside.load.id.split("_", 1)[1]
        self.load.id = {"responses": "resp_", "runs": "run_"}[self.load.dialect] + core
        while not self._ended():
            await self._come_back()

    async def _begin(self) -> None:
        path, body = self.load._request()
        request = Request(self.line, "POST", path, body, self._count_frames, Idempotency_Key=self.load.tag)
        try:
            await request.follow()
        except asyncio.CancelledError:  # its time is over: what it knows by now is wanted all the same
            if request.status == 200 and self.load.dialect != "runs":
                self._keep(request, -1)
            raise
        if not self._took(request):
            await self._pause()
        elif self.load.dialect == "runs":
            if request.whole:
                self._named(str(request.json()["run_id"]))
        else:
            self._keep(request, -1)

    def _count_frames(self, data: bytes) -> None:
        self.arrivals += [time.time()] * data.count(b"\n\n")

    def _named(self, shown: str) -> None:
        self.ids.add(shown)
        self.load.id = shown
        if len(self.ids) > 1:
            self._wrong("rerun", f"one key was answered with {sorted(self.ids)}")

    def _keep(self, request: Request, after: int) -> None:
        """What was told; a reattach by key to a running run begins with a snapshot that is no event (G2)."""
        frames = frames_of(request.data)
        first = payload(frames[0]) if frames else {}
        data = request.data
        if first.get("type") == "response.snapshot":
            after = first["sequence_number"]
            data = b"".join(frames[1:])
        shown = first.get("response", first).get("id")
        if isinstance(shown, str):
            self._named(shown)
        self.load.told.append(Told(self.load.dialect, after, data))

    async def _come_back(self) -> None:
        dialect, after = self.load.dialect, self._cursor()
        path = STREAMS[dialect].format(self.load.id) + (AFTER[dialect].format(after) if after >= 0 else "")
        request = Request(self.line, "GET", path, on_data=self._count_frames)
        await request.follow()
        if request.status == 409 and dialect == "chat" and b"draft_dropped" in request.data:
            self.connections += 1
            self._since = len(self.load.told)  # it stood in a draft that is gone: all of it again (B6)
        elif self._took(request):
            self._keep(request, after)
        else:
            await self._pause()

    def _cursor(self) -> int:
        """Up to where it was told, since it last began at zero."""
        frames = [frame for told in self.load.told[self._since :] for frame in frames_of(told.data)]
        places = [at for frame in frames if (at := position(self.load.dialect, frame)) is not None]
        return max([*places, *(told.after for told in self.load.told[self._since :])], default=-1)

    def _ended(self) -> bool:
        """Has the last stream come to its end?"""
        frames = frames_of(self.load.told[-1].data) if self.load.told else []
        if self.load.dialect == "chat":
            return frames[-1:] == [b"data: [DONE]\n\n"]
        key = "event" if self.load.dialect == "runs" else "type"
        return any(payload(frame).get(key) in ENDS[self.load.dialect] for frame in frames[-2:])

    # one that polls

    async def _poll(self) -> None:
        body = {"input": self.load.text, "background": True}
        while not self.load.id:
            answer = await self.line.post("/v1/responses", body, 10.0, Idempotency_Key=self.load.tag)
            if self._took(answer) and answer.whole:
                self._named(answer.json()["id"])
            else:
                await self._pause()
        ended = ""
        while not ended:
            await self._pause()
            answer = await self.line.get(f"/v1/responses/{self.load.id}", 10.0)
            if self._took(answer) and answer.whole and answer.json()["status"] in ENDED:
                ended = answer.json()["status"]
        self.told_body = answer.json()

    # one that waits

    async def _call(self) -> None:
        body = {"input": self.load.text}
        while True:
            answer = await self.line.post("/v1/responses", body, 20.0, Idempotency_Key=self.load.tag)
            if self._took(answer) and answer.whole:
                self._named(answer.json()["id"])
                if answer.json()["status"] in ENDED:
                    self.told_body = answer.json()
                    return
            await self._pause()

    # one that calls as the SDK does

    async def _ask(self) -> None:
        assert self.sdk is not None
        began = time.time()
        try:
            shown = await self.sdk.responses.create(model="hermes-agent", input=self.load.text)
        except openai.APIError as error:
            self.given = repr(error)
            if not isinstance(error.body, dict):  # no answer of ours: a connection that broke, or a page of haproxy
                self.cut_off = began, time.time()
            return
        self.connections += 1
        self._named(shown.id)
        if shown.status not in ENDED:
            self._wrong("end", f"the SDK was given a response that is {shown.status}")

    told_body: dict[str, Any] | None = None
    """The object that a caller who does not stream was given last."""
    _since = 0


def gaps(client: Client) -> list[Finding]:
    """Numbers at one client, over all its connections: each goes on exactly where the last one stopped."""
    found = []
    last = -1
    for told in client.load.told:
        numbers = [n for frame in frames_of(told.data) if (n := position(told.dialect, frame)) is not None]
        if told.dialect != "responses" or not numbers:
            continue
        last = max(last, told.after)  # a snapshot holds what it skips
        end_again = len(numbers) == 1 and numbers[0] <= last  # resumed at the end (G5)
        if not end_again and numbers != list(range(last + 1, last + 1 + len(numbers))):
            text = f"after {last} came {numbers[:3]}...{numbers[-1]} ({len(numbers)} numbers)"
            found.append(Finding("numbers", client.load.tag, text))
        last = max(last, numbers[-1])
    return found


def wish(what: str, chance: random.Random) -> str:
    """The directives of one kind of run: a few seconds of work, so that whoever dies has some in hand."""

    def write() -> str:
        return PROBES.write(chance.choice((0.0, 0.1, 0.3, 0.8)))

    pace = f"[[pace={chance.choice((0.01, 0.02, 0.03))}]]"
    if what == "text":
        return f"[[tokens={chance.randint(40, 100)}]] {pace}"
    if what == "reasoning":
        return f"[[reason={chance.randint(1, 6)}]] [[tools={write()}]] [[tokens=40]] {pace}"
    if what == "three":
        return f"[[tools={'|'.join(write() for _ in range(3))}]] [[tokens=20]] {pace}"
    calls = (PROBES.look, write(), PROBES.keep, PROBES.keep, write(), PROBES.look)
    return f"[[parallel={'|'.join(calls)}]] [[tokens=40]] {pace}"


def drawn(chance: random.Random, n: int) -> tuple[Load, Kind]:
    """A run with tools of every effect, and who wants it."""
    what = chance.choices(list(RUNS), list(RUNS.values()))[0]
    tag = f"load-{n}-{chance.getrandbits(24):x}"
    kind: Kind = chance.choices(("follow", "poll", "call"), (6, 1, 1))[0]
    dialect = chance.choices(("responses", "runs", "chat"), (6, 1, 1))[0] if kind == "follow" else "responses"
    return Load(tag, dialect, f"{tag} {wish(what, chance)}"), kind
