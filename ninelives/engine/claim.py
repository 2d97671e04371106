"""The life of a claim as a table, and what a signal does in each of its phases. Owns: ClaimPhase, ClaimEvent, the
table `LIFE`, and `SIGNALS`. Refuses to know: stores, agents and how a worker is stopped.

Theory of operation. A claim is this process's right to write to one run. It begins when the run is opened or claimed
here, and ends when that right is given back, used up by the end of the run, or gone. `ClaimedRun.advance` is the only
way from one phase to the next: a pair that the table does not have is a bug, and raises. So a question such as "may a
run that is being parked be cancelled?" has one answer, in one place. docs/architecture.md shows both tables."""

from __future__ import annotations

from enum import Enum

from ninelives.journal.values import SignalKind


class ClaimPhase(Enum):
    """Where a claim stands."""

    __hash__ = object.__hash__  # Enum's own is a call of Python, and these are looked up a dozen times in a run
    OPENED = "opened"
    """This process opened the run and holds it. Its worker has not begun."""
    CLAIMED = "claimed"
    """This process took over a run that nobody held. Its worker has not begun."""
    DRIVING = "driving"
    """Its agent works."""
    PARKING = "parking"
    """The claim is given back at the next safe point."""
    ENDING = "ending"
    """The end of the run is being written."""
    RELEASED = "released"
    """The run is parked or ended, and that is committed."""
    LAPSED = "lapsed"
    """The lease is over. The run may be somebody else's; if not, it is given back when its worker has ended."""
    LOST = "lost"
    """The run is somebody else's, or was deleted. Nothing more is written."""


class ClaimEvent(Enum):
    """What can happen to a claim."""

    __hash__ = object.__hash__
    DRIVE = "drive"
    """Its worker begins."""
    ANSWERED = "answered"
    """The question with which the last attempt was parked has an answer."""
    DRAIN = "drain"
    """The server stops, or room on the disk is short."""
    LEAVE = "leave"
    """The caller of a run that is not stored has left (B6)."""
    ASK = "ask"
    """The run has asked a person, and that is committed."""
    STEER = "steer"
    """Somebody wrote to the run while it works."""
    INTERRUPT = "interrupt"
    """Another request takes its place: the run ends at the next safe point, and what it did stands."""
    CANCEL = "cancel"
    """Somebody wants the run stopped."""
    FAIL = "fail"
    """The agent failed, or the server cannot keep the run."""
    END = "end"
    """The agent has said how the run ends."""
    SETTLED = "settled"
    """The parking or the end is committed."""
    LAPSE = "lapse"
    """No beat came through for a whole lease, or nobody drives the run."""
    FENCE = "fence"
    """The store refused a write of this claim, or the run was deleted."""


class IllegalStep(Exception):
    """An event that cannot happen in this phase: a bug in the engine."""


_P, _E = ClaimPhase, ClaimEvent
_WAITING = {_E.DRIVE: _P.DRIVING, _E.DRAIN: _P.PARKING, _E.LEAVE: _P.PARKING, _E.CANCEL: _P.ENDING}
_GONE = {_E.LAPSE: _P.LAPSED, _E.FENCE: _P.LOST}


def _stays(phase: ClaimPhase, *events: ClaimEvent) -> dict[ClaimEvent, ClaimPhase]:
    return dict.fromkeys(events, phase)


LIFE: dict[ClaimPhase, dict[ClaimEvent, ClaimPhase]] = {
    _P.OPENED: {**_WAITING, **_GONE, **_stays(_P.OPENED, _E.STEER, _E.INTERRUPT)},
    _P.CLAIMED: {**_WAITING, **_GONE, **_stays(_P.CLAIMED, _E.STEER, _E.INTERRUPT, _E.ANSWERED), _E.FAIL: _P.ENDING},
    _P.DRIVING: {
        **dict.fromkeys((_E.DRAIN, _E.LEAVE, _E.ASK), _P.PARKING),
        **dict.fromkeys((_E.CANCEL, _E.FAIL, _E.END), _P.ENDING),
        **_stays(_P.DRIVING, _E.STEER, _E.INTERRUPT),
        **_GONE,
    },
    _P.PARKING: {
        **_stays(_P.PARKING, _E.DRIVE, _E.DRAIN, _E.LEAVE, _E.ASK, _E.STEER),
        **dict.fromkeys((_E.CANCEL, _E.FAIL, _E.END), _P.ENDING),
        _E.SETTLED: _P.RELEASED,
        **_GONE,
    },
    _P.ENDING: {
        **_stays(_P.ENDING, _E.DRIVE, _E.DRAIN, _E.LEAVE, _E.ASK, _E.CANCEL, _E.FAIL, _E.END),
        _E.SETTLED: _P.RELEASED,
        **_GONE,
    },
    _P.RELEASED: _stays(_P.RELEASED, _E.DRAIN, _E.LEAVE, _E.CANCEL, _E.LAPSE, _E.FENCE),
    _P.LAPSED: {
        **_stays(_P.LAPSED, _E.DRIVE, _E.DRAIN, _E.LEAVE, _E.CANCEL, _E.FAIL, _E.END, _E.LAPSE),
        _E.SETTLED: _P.RELEASED,
        _E.FENCE: _P.LOST,
    },
    _P.LOST: _stays(_P.LOST, _E.DRIVE, _E.DRAIN, _E.LEAVE, _E.CANCEL, _E.FAIL, _E.END, _E.LAPSE, _E.FENCE),
}
"""What follows on what. A cell that is missing cannot happen."""

WRITES = frozenset({_P.OPENED, _P.CLAIMED, _P.DRIVING, _P.PARKING, _P.ENDING})
"""The phases in which this process may write to the run."""

SIGNALS: dict[SignalKind, dict[ClaimPhase, ClaimEvent]] = {
    "cancel": dict.fromkeys((_P.OPENED, _P.CLAIMED, _P.DRIVING, _P.PARKING), _E.CANCEL),
    "approval": {_P.CLAIMED: _E.ANSWERED},
    "interrupt": dict.fromkeys((_P.OPENED, _P.CLAIMED, _P.DRIVING), _E.INTERRUPT),
    "steer": dict.fromkeys((_P.OPENED, _P.CLAIMED, _P.DRIVING, _P.PARKING), _E.STEER),
}
"""What a signal does to a claim. In all other phases it stays with the store: whoever claims the run next finds it, and
the end of the run drops it, unless it is a steer. A cancel, an interrupt or the awaited approval makes a run that
nobody holds claimable (Catalog.claimable)."""
