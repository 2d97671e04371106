"""Everything that chance decides before a seed begins. Owns: the Plan of one seed: what the model will say, who calls
and how, which faults strike and when, how narrow the engine's limits are. A plan is a pure function of its seed.
Refuses to know: how any of it is carried out."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from ninelives.core.errors import AgentError
from ninelives.core.events import Effect, Usage
from ninelives.core.spec import Kept, OnDisconnect
from ninelives.engine.base import EngineLimits, Keep
from ninelives.models.base import CallPiece, Finished, Text, Thinking
from ninelives.testing.playbook import Step

EFFECTS: dict[str, Effect] = {"look": "read", "keep": "idempotent", "note": "write"}
HANG_S = 40.0
FaultKind = Literal[
    "crash", "crash_at_step", "drain", "zombie", "full", "broken", "freeze", "outage", "cut_off", "deaf", "hung"
]
FAULTS: tuple[FaultKind, ...] = ("crash", "crash_at_step", "crash_at_step", "drain", "zombie", "full", "broken")

PEER_FAULTS: tuple[FaultKind, ...] = ("crash", "crash_at_step", "drain", "freeze", "freeze", "outage", "cut_off")
"""Of processes that share a store. freeze: one stands still, maybe past its lease, and goes on; outage: nobody reaches
the store; cut_off: one does not. With dice of their own, deaf: the store does what one asks, and some of its answers
are lost; hung: they come late, maybe after the lease."""
LEASE_S = 15.0


@dataclass
class Reading:
    """One reader: which dialect, how slow, how many pieces it takes before it leaves (0: all)."""

    dialect: str
    pause_s: float = 0.0
    leaves_after: int = 0


@dataclass
class Calling:
    """One caller and its request."""

    name: str
    start_s: float
    book: list[list[Step]]
    joins: dict[str, str] = field(default_factory=dict)
    twins: int = 0
    """How many others send the very same request, with the same key, at about the same time."""
    kept: Kept = "stored"
    dialect: str = "responses"
    chore: bool = False
    on_disconnect: OnDisconnect = "detach"
    resend_s: float = 60.0
    """How long the same request joins a run whose connection broke, where the run is journaled and not stored."""
    returns_s: float = 0.0
    """Who left in the middle of an answer asks again so much later (0: never)."""
    readers: list[Reading] = field(default_factory=list)
    waits: bool = True
    gone_after: int = 0
    """The caller is gone after that many steps of the loop, in the middle of its request (0: it stays)."""
    cancel_s: float = 0.0
    delete_s: float = 0.0
    steers_s: list[float] = field(default_factory=list)
    """How long each steer comes after the one before."""
    follows: bool = False
    """Sends a next turn when it is done."""


@dataclass
class Fault:
    """Something goes wrong."""

    kind: FaultKind
    at_s: float = 0.0
    step: int = 0
    when: Literal["before", "after"] = "before"
    seconds: float = 0.0


@dataclass
class Plan:
    """One seed."""

    seed: int
    shuffle: float
    limits: EngineLimits
    callings: list[Calling]
    faults: list[Fault]
    ttl_s: float
    on_unknown: Literal["tell", "ask"]
    clock_jump_ms: int
    restart_at_end: bool
    eager: bool
    """Somebody who lists the runs stops each of them as soon as it is there."""
    replicas: int = 1
    """How many processes share the store; 1: one has it to itself."""
    lossy: float = 0.0
    """The share of rings that are lost between processes."""
    idle_one: bool = False
    """One of the processes only answers requests."""


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"plan {seed}")
    wide = chance.random() < 0.5
    limits = EngineLimits(
        concurrent_runs=256 if wide else chance.choice((1, 1, 2, 3)),
        queue=1024 if wide else chance.choice((0, 1, 2, 8)),
        chores=2,
        subscriber_bytes=chance.choice((300, 2_000, 1_048_576)),
        stage_bytes=chance.choice((50, 1_048_576)),
        stall_s=chance.choice((2.0, 60.0)),
        leave_grace_s=chance.choice((0.0, 0.5, 5.0)),
        keep=Keep(unstored_hours=chance.choice((0.0, 24.0))),
    )
    callings = [_calling(chance, n) for n in range(chance.choice((1, 2, 2, 3, 3, 4)))]
    faults = [_fault(chance) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))]
    faults.sort(key=lambda fault: fault.at_s)
    _steer(callings, random.Random(f"steers {seed}"))
    return Plan(
        seed=seed,
        shuffle=chance.choice((0.0, 0.3, 1.0)),
        limits=limits,
        callings=callings,
        faults=faults,
        ttl_s=chance.choice((5.0, 20.0, 20.0, 3600.0)),
        on_unknown="ask" if chance.random() < 0.2 else "tell",
        clock_jump_ms=chance.choice((0, 0, 0, 86_400_000, -86_400_000)),
        restart_at_end=chance.random() < 0.2,
        eager=chance.random() < 0.05,
    )


def peers_plan_of(seed: int) -> Plan:
    """The plan of a seed for several processes on one store."""
    chance = random.Random(f"peers {seed}")
    plan = plan_of(seed)
    plan.replicas = chance.choice((2, 2, 3))
    plan.limits = replace(plan.limits, lease_s=LEASE_S)
    for calling in plan.callings:
        calling.resend_s = 60.0  # a replica may be out of reach for longer than the shortest
    plan.lossy = chance.choice((0.0, 0.0, 0.3, 1.0))
    plan.idle_one = chance.random() < 0.2
    plan.faults = [_peer_fault(chance) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))]
    plan.faults += _answers(random.Random(f"answers {seed}"))
    plan.faults.sort(key=lambda fault: fault.at_s)
    return plan


def _answers(chance: random.Random) -> list[Fault]:
    kinds: dict[FaultKind, tuple[float, ...]] = {"deaf": (0.5, 3.0, 8.0), "hung": (3.0, LEASE_S + 1.0, LEASE_S + 8.0)}
    found = []
    for kind, lengths in kinds.items():
        at_s = chance.choice((0.0, chance.uniform(0.0, 0.3), chance.uniform(0.0, 4.0)))
        if chance.random() < 0.2:
            found.append(Fault(kind, at_s=at_s, seconds=chance.choice(lengths)))
    return found


def _peer_fault(chance: random.Random) -> Fault:
    fault = _fault(chance)
    fault.kind = chance.choice(PEER_FAULTS)
    if fault.kind in ("freeze", "outage", "cut_off"):
        fault.seconds = chance.choice((0.5, 3.0, LEASE_S - 1.0, LEASE_S + 1.0, LEASE_S + 8.0))
    return fault


def _fault(chance: random.Random) -> Fault:
    return Fault(
        kind=chance.choice(FAULTS),
        at_s=chance.choice((chance.uniform(0.0, 0.3), chance.uniform(0.0, 4.0))),
        step=chance.randint(1, 25),
        when=chance.choice(("before", "after")),
        seconds=chance.choice((0.05, 0.5, 3.0)),
    )


def _calling(chance: random.Random, n: int) -> Calling:
    kept: Kept = chance.choice(("stored",) * 6 + ("hours", "hours", "delivery", "delivery", "memory"))
    store = kept == "stored"
    calling = Calling(name=f"r{n}", start_s=chance.choice((0.0, 0.0, chance.uniform(0, 2))), book=_book(chance))
    calling.kept = kept
    calling.chore = kept == "memory" and chance.random() < 0.3
    calling.dialect = chance.choice(("responses", "responses", "runs", "chat"))
    calling.readers = [_reading(chance) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    if not store:
        calling.readers = [_reading(chance)] if chance.random() < 0.8 else []
    calling.waits = not calling.readers or (store and chance.random() < 0.5)
    if store and chance.random() < 0.6:
        calling.joins["key"] = f"key{n}"
        calling.twins = chance.choice((0, 0, 1, 2))
    if chance.random() < 0.5:
        calling.joins["conversation"] = chance.choice(("talk", "talk", "chat"))
    elif chance.random() < 0.3:
        calling.joins["session"] = "memory"
    calling.on_disconnect = "cancel" if chance.random() < 0.15 else "detach" if store else "park"
    calling.resend_s = chance.choice((5.0, 60.0))
    calling.returns_s = chance.choice((0.0, 0.3, 4.0, 20.0))
    if chance.random() < 0.1:
        calling.gone_after = chance.randint(1, 30)
    if chance.random() < 0.18:
        calling.cancel_s = chance.choice((0.001, chance.uniform(0, 0.5), chance.uniform(0, 8)))
    if chance.random() < 0.12:
        calling.delete_s = chance.choice((0.001, chance.uniform(0, 0.5), chance.uniform(0, 8)))
    calling.follows = store and chance.random() < 0.3
    return calling


def _steer(callings: list[Calling], chance: random.Random) -> None:
    """Some runs are written to while they work. Dice of their own, so that older seeds keep their plans."""
    for calling in callings:
        if chance.random() < 0.3 and not calling.chore:
            moments = (0.0, 0.001, chance.uniform(0, 0.3), chance.uniform(0, 3))
            calling.steers_s = [chance.choice(moments) for _ in range(chance.randint(1, 3))]


def _reading(chance: random.Random) -> Reading:
    return Reading(
        dialect=chance.choice(("responses", "responses", "runs", "chat")),
        pause_s=chance.choice((0.0, 0.0, 0.0, 0.2, 1.5)),
        leaves_after=chance.choice((0, 0, 0, 1, 3, 8)),
    )


def _book(chance: random.Random) -> list[list[Step]]:
    """What the model says to one request, message by message."""
    rounds = chance.choice((0, 0, 1, 1, 2, 3))
    book = [_asks(chance, n) for n in range(rounds)]
    book.append([*_words(chance), Finished(chance.choice(("stop", "stop", "stop", "length")), Usage(1, 1))])
    if chance.random() < 0.1:  # an upstream that fails, somewhere
        message = chance.choice(book)
        message.insert(chance.randint(0, len(message) - 1), AgentError("upstream_failed", "The upstream failed."))
    if chance.random() < 0.1:
        message = chance.choice(book)
        message.insert(chance.randint(0, len(message) - 1), HANG_S)
    return book


def _words(chance: random.Random) -> list[Step]:
    thoughts: list[Step] = [Thinking(f"hm{n} ") for n in range(chance.choice((0, 0, 0, 1, 2)))]
    return [*thoughts, *(Text(f"word{n} ") for n in range(chance.choice((1, 2, 3, 6))))]


def _asks(chance: random.Random, n: int) -> list[Step]:
    words = _words(chance) if chance.random() < 0.6 else []
    calls = [_call(chance, n, k) for k in range(chance.choice((1, 1, 1, 2, 3)))]
    pieces: list[Step] = []
    for k, (name, arguments) in enumerate(calls):  # in two pieces, so that its begin is told
        pieces += [CallPiece(k, name, ""), CallPiece(k, "", arguments)]
    return [*words, *pieces, Finished("tool_calls", Usage(1, 1))]


def _call(chance: random.Random, n: int, k: int) -> tuple[str, str]:
    name = chance.choice(("look", "keep", "note", "note", "nothing" if chance.random() < 0.1 else "look"))
    arguments: dict[str, object] = {"n": n * 10 + k}
    arguments["s"] = chance.choice((0.0, 0.0, 0.01, 0.3, 2.0))
    if chance.random() < 0.15:
        arguments["ask"] = True
    if chance.random() < 0.2:
        arguments["tells"] = chance.randint(1, 3)
    if chance.random() < 0.08:
        arguments["fails"] = True
    if chance.random() < 0.03:
        arguments["dies"] = True
    return name, json.dumps(arguments)
