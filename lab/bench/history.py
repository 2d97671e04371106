"""The loads `history` and `resend`: the time to the first delta at the end of a long conversation. In `history`
Ninelives keeps the turns itself and is asked with previous_response_id; direct is sent them all, as a client without
such a server must. In `resend` each target is sent all of them, as chat clients do. Refuses to know: what is good."""

from __future__ import annotations

from lab.bench.client import Meter, doubts
from lab.bench.figures import DIRECT, Figure, spread
from lab.bench.loads import Load
from lab.bench.targets import Ground, Target
from lab.bench.wire import Caller, Unexpected, order, posted, request, stream


def _chain(target: Target, turns: int) -> str:
    """So many turns, each the next of the one before; the id of the last."""
    caller, last = Caller(target), ""
    for _ in range(turns):
        more = {"previous_response_id": last} if last else {}
        got = caller.ask(target.path, posted(target, order(1, 0), **more))
        if got.get("status") != "completed":
            raise Unexpected(f"a turn of the history ended as {got.get('status')}: {got.get('error')}")
        last = str(got["id"])
    caller.close()
    return last


def _sent(target: Target, turns: int, last: str, load: Load) -> bytes:
    text = order(load.n, 1000)
    if target.name != DIRECT:
        return request(target, target.path, posted(target, text, stream=True, previous_response_id=last))
    earlier: list[dict[str, str]] = []
    for _ in range(turns):
        earlier += [{"role": "user", "content": order(1, 0)}, {"role": "assistant", "content": "@1234567890123456 . "}]
    messages = [*earlier, {"role": "user", "content": text}]
    return request(target, target.path, posted(target, text, stream=True, messages=messages))


def measure(on: Ground, target: Target, load: Load) -> Figure:
    """So many first deltas after so many turns."""
    last = "" if target.name == DIRECT else _chain(target, load.size)
    stream(target, _sent(target, load.size, last, load))  # the first pays for caches, as the load `first` does
    meter = Meter(on, target)
    waits = [stream(target, _sent(target, load.size, last, load)).first_s * 1e3 for _ in range(load.rounds)]
    values = spread(waits, "first_ms") | meter.stop(0.0, load.rounds) | {"reached": 1.0}
    return Figure(load.name, load.kind, target.name, values, doubts=doubts(on, target, values))


WORDS = "The quick brown fox jumps over the lazy dog, and then it comes back to ask for more of the same thing. "


def _resent(target: Target, load: Load) -> bytes:
    """A chat request with so many earlier messages. The last one is new, so that no run is joined."""
    roles = ("user", "assistant")
    earlier = [{"role": roles[n % 2], "content": f"{n} {WORDS}"} for n in range(load.size)]
    messages = [*earlier, {"role": "user", "content": order(load.n, 1000)}]
    return request(target, target.path, posted(target, "", stream=True, messages=messages))


def measure_resent(on: Ground, target: Target, load: Load) -> Figure:
    """So many first deltas of chats that bring so many earlier messages."""
    for _ in range(3):
        stream(target, _resent(target, load))
    meter = Meter(on, target)
    waits = [stream(target, _resent(target, load)).first_s * 1e3 for _ in range(load.rounds)]
    values = spread(waits, "first_ms") | meter.stop(0.0, load.rounds) | {"reached": 1.0}
    return Figure(load.name, load.kind, target.name, values, doubts=doubts(on, target, values))
