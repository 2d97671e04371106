"""What is asked of a target: the list of loads, long and quick. Refuses to know: how one is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.bench.figures import CHAT_DEFAULT, CONTROL, DIRECT, DURABLE, FLOOR

Kind = Literal["tiny", "first", "flood", "paced", "control", "readers", "length", "history", "resend", "idle"]
TOKENS_PER_S = 50
RUNS = 100
"""The runs that idle readers wait on."""


@dataclass(frozen=True)
class Load:
    """One asking. `size` is its number of streams, readers, events or turns; `only` the targets that it makes sense
    for, all where it is empty."""

    name: str
    kind: Kind
    says: str
    size: int
    n: int = 0
    pace_us: int = 0
    rounds: int = 1
    seconds: float = 30.0
    ramp_ms: int = 0
    whole: bool = False
    only: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """The options of the load client."""
        options = {
            "--mode": "flood" if self.kind == "control" else self.kind,
            "--streams": self.size,
            "--n": self.n,
            "--pace-us": self.pace_us,
            "--rounds": self.rounds,
            "--seconds": self.seconds,
            "--ramp-ms": self.ramp_ms,
            "--whole": int(self.whole),
        }
        return [str(part) for option in options.items() for part in option]

    @property
    def longest_s(self) -> float:
        """What it takes when nothing goes well."""
        return max(self.seconds, self.n * self.pace_us * self.rounds / 1e6 + self.ramp_ms / 1e3)


def tiny(concurrency: int, seconds: float) -> Load:
    """Requests that cost little but themselves."""
    says = f"requests of 3 tokens, not streamed, {concurrency} at a time for {seconds:g} s"
    return Load(f"tiny-{concurrency}", "tiny", says, concurrency, 3, seconds=seconds, whole=True)


def first(streams: int) -> Load:
    """How long a person waits for the first word."""
    says = f"time from POST to first delta, {streams} streams one after the other, each in a new session"
    return Load("first", "first", says, streams, 5, pace_us=1000)


def flood(rounds: int) -> Load:
    """All that goes through."""
    says = f"32 streams x 500 tokens as fast as they go, {rounds} rounds"
    return Load("flood-32", "flood", says, 32, 500, rounds=rounds)


def control(burn_us: int) -> Load:
    """The negative control: the bench must see what was planted in the floor."""
    says = f"the negative control: the floor, and the floor with {burn_us} µs of CPU planted in each event"
    return Load("control", "control", says, 32, 200, only=(DIRECT, FLOOR, CONTROL))


def paced(streams: int, seconds: float, rate: int = TOKENS_PER_S) -> Load:
    """Streams as models make them."""
    says = f"{streams} streams x {rate} tokens/s for {seconds:g} s each"
    ramp_ms = int(min(1.0, seconds / 4) * 1000)
    n = max(1, round(seconds * rate))
    return Load(f"paced-{streams}", "paced", says, streams, n, pace_us=1_000_000 // rate, ramp_ms=ramp_ms)


def readers(count: int) -> Load:
    """Those who wait."""
    says = f"{count} readers wait on {RUNS} runs, then all get the end (a fresh server)"
    return Load(f"readers-{count}", "readers", says, count, only=(DURABLE,))


def length(events: int) -> Load:
    """What a long answer costs while it grows and afterwards."""
    says = f"one response of {events} events: snapshot, replay, and the live cost of the last thousand over the first"
    return Load(f"length-{events}", "length", says, events, events, pace_us=200, only=(DURABLE,))


def history(turns: int, times: int) -> Load:
    """What a long conversation costs."""
    says = f"time to first delta after {turns} earlier turns, {times} times"
    return Load(f"history-{turns}", "history", says, turns, 3, rounds=times, only=(DIRECT, DURABLE))


def resend(messages: int, times: int) -> Load:
    """What a chat that resends its whole conversation costs."""
    says = f"time to first delta of a chat with {messages} earlier messages, {times} times"
    return Load(f"resend-{messages}", "resend", says, messages, 3, rounds=times, only=(DIRECT, FLOOR, CHAT_DEFAULT))


def idle(starts: int, seconds: float) -> Load:
    """What it costs to be there."""
    says = f"start to /health (median of {starts}), then nothing for {seconds:g} s (a fresh server)"
    return Load("idle", "idle", says, 0, rounds=starts, seconds=seconds, only=(FLOOR, DURABLE))


def plan(quick: bool, seconds: float | None, burn_us: int) -> list[Load]:
    """All loads in the order they run; `seconds` is the length of each paced one."""
    if quick:
        pace = seconds or 1.5
        small = [idle(1, 1.5), tiny(1, 0.4), tiny(32, 0.5), first(40), paced(50, pace), paced(200, pace), flood(2)]
        long = [length(10_000), history(10, 10), history(100, 10), resend(2_000, 20)]
        return [*small, readers(1000), *long, control(burn_us)]
    pace = seconds or 5.0
    return [
        idle(5, 5.0),
        *(tiny(concurrency, 2.0) for concurrency in (1, 8, 32)),
        first(200),
        *(paced(streams, pace) for streams in (50, 100, 200, 250)),
        paced(400, pace, 25),
        flood(5),
        *(readers(count) for count in (1_000, 10_000)),
        *(length(events) for events in (1_000, 10_000, 50_000)),
        *(history(turns, 30) for turns in (10, 100, 1_000)),
        resend(2_000, 100),
        control(burn_us),
    ]
