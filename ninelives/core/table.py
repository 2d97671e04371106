"""Which event may come when. Owns: the phases of a run and the transition table. An event without a cell is illegal.
Refuses to know: what an event changes (state.py)."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from ninelives.core import events as e


class Phase(IntEnum):
    """Where a run stands. READY: the model is asked next. ACTING: calls are due."""

    NEW = 0
    QUEUED = 1
    READY = 2
    DRAFTING = 3
    ACTING = 4
    WAITING = 5
    STOPPING = 6
    COMPLETED = 7
    FAILED = 8
    CANCELLED = 9
    INTERRUPTED = 10


class Next(IntEnum):
    """A cell whose phase depends on what is due: ACTING while calls are due, else READY."""

    SETTLE = -1


_ENDS: dict[type[e.Event], Phase | Next] = {
    e.CancelRequested: Phase.STOPPING,
    e.RunFailed: Phase.FAILED,
    e.RunInterrupted: Phase.INTERRUPTED,
}

TABLE: tuple[dict[type[e.Event], Phase | Next], ...] = (
    # NEW
    {e.RunAccepted: Phase.QUEUED},
    # QUEUED
    {
        e.AttemptStarted: Phase.READY,
        e.CancelRequested: Phase.STOPPING,
        e.RunFailed: Phase.FAILED,
        e.SteerUnused: Phase.QUEUED,
    },
    # READY
    _ENDS
    | {
        e.AttemptStarted: Phase.READY,
        e.TextDelta: Phase.DRAFTING,
        e.ReasoningDelta: Phase.DRAFTING,
        e.CallBegun: Phase.READY,
        e.MessageCompleted: Next.SETTLE,
        e.ToolStarted: Phase.ACTING,
        e.ApprovalRequested: Phase.WAITING,
        e.SteerApplied: Phase.READY,
        e.SteerUnused: Phase.READY,
        e.RunCompleted: Phase.COMPLETED,
    },
    # DRAFTING: no RunInterrupted, because what a run did so far stands then, and a draft cannot
    {
        e.CancelRequested: Phase.STOPPING,
        e.RunFailed: Phase.FAILED,
        e.AttemptStarted: Phase.READY,
        e.TextDelta: Phase.DRAFTING,
        e.ReasoningDelta: Phase.DRAFTING,
        e.CallBegun: Phase.DRAFTING,
        e.MessageCompleted: Next.SETTLE,
        e.SteerUnused: Phase.DRAFTING,
    },
    # ACTING
    _ENDS
    | {
        e.AttemptStarted: Phase.ACTING,
        e.ToolStarted: Phase.ACTING,
        e.ToolProgressed: Phase.ACTING,
        e.ToolFinished: Next.SETTLE,
        e.ApprovalRequested: Phase.WAITING,
        e.SteerUnused: Phase.ACTING,
    },
    # WAITING
    _ENDS
    | {
        e.AttemptStarted: Phase.WAITING,
        e.ApprovalGiven: Phase.ACTING,
        e.ToolFinished: Phase.WAITING,
        e.SteerUnused: Phase.WAITING,
    },
    # STOPPING
    {
        e.AttemptStarted: Phase.STOPPING,
        e.ToolFinished: Phase.STOPPING,
        e.SteerUnused: Phase.STOPPING,
        e.RunCancelled: Phase.CANCELLED,
        e.RunFailed: Phase.FAILED,
    },
    # COMPLETED, FAILED, CANCELLED, INTERRUPTED: nothing follows
    {},
    {},
    {},
    {},
)

DELTAS = frozenset({e.TextDelta, e.ReasoningDelta, e.CallBegun})
"""Provisional events. All others are facts."""
TERMINAL = frozenset({Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED, Phase.INTERRUPTED})
Status = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
STATUS: dict[Phase, Status] = {
    Phase.NEW: "queued",
    Phase.QUEUED: "queued",
    Phase.READY: "in_progress",
    Phase.DRAFTING: "in_progress",
    Phase.ACTING: "in_progress",
    Phase.WAITING: "in_progress",
    Phase.STOPPING: "in_progress",
    Phase.COMPLETED: "completed",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
    Phase.INTERRUPTED: "incomplete",
}
