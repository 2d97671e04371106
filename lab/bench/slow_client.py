"""The client of the load generator in Python. It counts stamps, not frames: a server may merge deltas as it likes.
Modes: paced (one job per stream, starts spread over the ramp), flood (pace 0, all at once), first (jobs one after the
other), tiny (so many at a time for some seconds). Refuses to know: what is on the other side."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field

STAMP = re.compile(rb"@(\d{9,}) ")
ON_TIME_S, GRACE_S, PAUSE_S = 0.1, 1.0, 0.01


@dataclass(frozen=True)
class Want:
    """What is asked, with the defaults of load.c."""

    url: str = ""
    path: str = "/v1/chat/completions"
    key: str = ""
    mode: str = "paced"
    model: str = "hermes-agent"
    body_extra: str = "{}"
    streams: int = 1
    n: int = 400
    pace_us: int = 20_000
    rounds: int = 1
    ramp_ms: int = 0
    whole: int = 0
    seconds: float = 30.0

    @property
    def pace_s(self) -> float:
        """Between two tokens; only some modes have any."""
        return self.pace_us / 1e6 if self.mode in ("paced", "first") else 0.0

    def request(self) -> bytes:
        """One request; the number in its prompt makes it unlike any other."""
        text = f"{time.monotonic_ns()} [[bench n={self.n} pace_us={round(self.pace_s * 1e6)}]]"
        said = {"input": text} if "/responses" in self.path else {"messages": [{"role": "user", "content": text}]}
        body = json.dumps({"model": self.model, "stream": not self.whole, **said, **json.loads(self.body_extra)})
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@dataclass
class Got:
    """What was seen of all jobs."""

    tokens: int = 0
    delivered: int = 0
    on_time: int = 0
    finished: int = 0
    errors: int = 0
    wrong: int = 0
    sample: str = ""
    last: float = 0.0
    latency: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    request: list[float] = field(default_factory=list)


def spread(seconds: list[float]) -> dict[str, float]:
    """As load.c prints one, in µs."""
    values = sorted(seconds)
    places = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
    at = {
        name: values[min(len(values) - 1, int(len(values) * share))] if values else 0.0
        for name, share in places.items()
    }
    return {"count": len(values), **{name: round(value * 1e6, 1) for name, value in at.items()}}


class Failed(Exception):
    """A job that got no answer."""


class Job:
    """One request and its answer on a connection that lives on."""

    def __init__(self, want: Want, got: Got) -> None:
        self._want, self._got = want, got
        self._begun = False
        self._lines: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._mark = b"response.output_text.delta" if "/responses" in want.path else b"chat.completion.chunk"

    async def run(self) -> None:
        """Ask, read, count."""
        try:
            await self._run()
        except (OSError, Failed, asyncio.IncompleteReadError, ValueError) as error:
            self._got.errors += 1
            self._got.sample = self._got.sample or (str(error) or type(error).__name__)[:300]
            self.close()
            await asyncio.sleep(PAUSE_S)  # a server that refuses is not to be hammered

    def close(self) -> None:
        """Hang up."""
        if self._lines is not None:
            self._lines[1].close()
            self._lines = None

    async def _run(self) -> None:
        if self._lines is None:
            host, _, port = self._want.url.rpartition("://")[2].partition(":")
            self._lines = await asyncio.open_connection(host, int(port), limit=1 << 24)
        reader, writer = self._lines
        began, self._begun = time.monotonic(), False
        writer.write(self._want.request())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status, streamed = int(head[9:12]), b"text/event-stream" in head
        if length := re.search(rb"content-length: *(\d+)", head):
            body = await reader.readexactly(int(length[1]))
            tokens, done = self._count(body, began) if status == 200 else 0, True
        else:
            tokens, done, body = await self._stream(reader, began)
        if status != 200:
            raise Failed(body.decode("utf-8", "replace").replace('"', "'"))
        if tokens != self._want.n or not done if streamed else tokens < self._want.n:
            self._got.wrong += 1  # a body may repeat its text, a stream has each token once
            return
        self._got.finished += 1
        self._got.last = time.monotonic()
        self._got.request.append(self._got.last - began)

    async def _stream(self, reader: asyncio.StreamReader, began: float) -> tuple[int, bool, bytes]:
        tokens, done, rest = 0, False, b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            *lines, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
            for line in lines:
                done = done or line.startswith(b"data: [DONE]")
                if line.startswith(b"data:") and self._mark in line:
                    tokens += self._count(line, began)
        await reader.readuntil(b"\r\n")
        return tokens, done, rest

    def _count(self, text: bytes, began: float) -> int:
        want, got, now = self._want, self._got, time.monotonic()
        ages = [now - int(ns) / 1e9 for ns in STAMP.findall(text)]
        in_time = not want.pace_s or now <= began + want.n * want.pace_s + GRACE_S
        if ages and not self._begun:
            got.first.append(now - began)
            self._begun = True
        got.tokens += len(ages)
        got.latency += ages
        got.delivered += len(ages) if in_time else 0
        got.on_time += sum(age < ON_TIME_S for age in ages) if in_time else 0
        got.last = now
        return len(ages)


async def _paced(want: Want, got: Got) -> int:
    """Streams that start spread over the ramp; how many did not end in time."""
    phases = random.Random(1)  # the same phases in every run

    async def one(at: float) -> None:
        await asyncio.sleep(at)
        job = Job(want, got)
        for _ in range(want.rounds):
            await job.run()
        job.close()

    tasks = [asyncio.create_task(one(phases.random() * want.ramp_ms / 1e3)) for _ in range(want.streams)]
    length = want.ramp_ms / 1e3 + want.n * want.pace_s * want.rounds + GRACE_S + 0.5 if want.pace_s else want.seconds
    _, left = await asyncio.wait(tasks, timeout=length)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return len(left)


async def _in_turn(want: Want, got: Got) -> int:
    job = Job(want, got)
    for _ in range(want.streams * want.rounds):
        await job.run()
    job.close()
    return 0


async def _tiny(want: Want, got: Got) -> int:
    stop = time.monotonic() + want.seconds

    async def one() -> None:
        job = Job(want, got)
        while time.monotonic() < stop:
            await job.run()
        job.close()

    await asyncio.gather(*(one() for _ in range(want.streams)))
    return 0


MODES = {"paced": _paced, "flood": _paced, "first": _in_turn, "tiny": _tiny}


async def load(want: Want) -> str:
    """Make it; what was seen, as load.c prints it."""
    got, began = Got(), time.monotonic()
    unfinished = await MODES[want.mode](want, got)
    span = max(1e-9, got.last - began) if got.last else 1.0
    expected = got.tokens if want.mode == "tiny" else want.streams * want.rounds * want.n
    return json.dumps(
        {
            "span_s": span,
            "cpu_s": time.process_time(),
            "expected": expected,
            "tokens": got.tokens,
            "delivered_share": got.delivered / max(1, expected),
            "on_time_share": got.on_time / max(1, expected),
            "tokens_per_s": got.tokens / span,
            "requests": got.finished,
            "requests_per_s": got.finished / span,
            "errors": got.errors,
            "wrong": got.wrong,
            "unfinished": unfinished,
            "error_sample": got.sample,
            "latency_us": spread(got.latency),
            "first_us": spread(got.first),
            "request_us": spread(got.request),
        }
    )
