"""The JSON of a run. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
A field that is always sent has no default. Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ninelives.core.events import Choice
from ninelives.dialects.fields import Count, Json, Seconds
from ninelives.dialects.responses.shapes import ResponseUsage

RunStatus = Literal[
    "queued", "running", "waiting_for_approval", "stopping", "completed", "failed", "cancelled", "incomplete"
]


class RunStarted(Struct, frozen=True):
    """The run goes on by itself."""

    run_id: Annotated[str, Meta(pattern="^run_")]
    status: Literal["started"]


class OpenQuestion(Struct, frozen=True):
    """The call that waits for a person. POST /v1/runs/{id}/approval answers."""

    tool: str
    toolCallId: str
    arguments: str
    """All of them, as the model wrote them."""
    call: str
    """All that will run, for a person: the tool and its decoded arguments. What cannot be seen is escaped."""
    why: str
    """Why a person is asked. Empty in questions of older releases."""
    digest: str
    expires_at: Seconds
    choices: tuple[Choice, ...]


class RunObject(Struct, frozen=True):
    """A run, whatever API began it."""

    object: Literal["hermes.run"]
    run_id: Annotated[str, Meta(pattern="^run_")]
    status: RunStatus
    session_id: str | None
    title: str
    """The first words of the request."""
    model: str
    created_at: Seconds
    updated_at: Seconds
    last_event: str
    output: str
    usage: ResponseUsage
    usage_incomplete: bool
    usage_estimated: bool
    """The upstream left out counts, so some of them are estimates."""
    cost: Annotated[float, Meta(ge=0)]
    """By the upstream's own bill or the prices of the configuration; 0 where there are none."""
    attempt: Count
    recoveries: Count
    """How often it went on after a crash. A restart and an answered question do not count."""
    error: str | None
    ignored_tools: tuple[str, ...] | UnsetType = UNSET
    """Types of tools that the request named and that were left out, if there are any."""
    approval: OpenQuestion | UnsetType = UNSET
    """While it waits for a person."""
    pending_steer: str | UnsetType = UNSET
    """What was written to the run and not used: yet, or at all if it has ended."""
    pending_steer_ids: list[str] | UnsetType = UNSET


class RunStopped(Struct, frozen=True):
    """It ends soon, or has ended."""

    run_id: str
    status: RunStatus


class RunSteerAccepted(Struct, frozen=True):
    """The steer is stored. The model reads it before its next message."""

    object: Literal["hermes.run.steer"]
    run_id: str
    steer_id: str
    accepted: Annotated[bool, Meta(extra_json_schema={"enum": [True]})]  # msgspec < 0.22 refuses Literal[True]


class RunForked(Struct, frozen=True):
    """The new run, and after which entry of the other one it begins."""

    run_id: Annotated[str, Meta(pattern="^run_")]
    status: Literal["started"]
    forked_from: str
    from_seq: int


class Pinned(Struct, frozen=True):
    """Whether retention leaves it alone."""

    run_id: str
    pinned: bool


class Approved(Struct, frozen=True):
    """The answer that was taken."""

    object: Literal["hermes.run.approval_response"]
    run_id: str
    toolCallId: str
    choice: Choice
    resolved: Count
    """How many questions it answered."""


class ReceiptObject(Struct, frozen=True):
    """What happened to a run: attempts, steps, unknown outcomes, approvals, tokens."""

    object: Literal["hermes.run.receipt"]
    run_id: str
    status: RunStatus
    attempts: list[Json]
    recoveries: Count
    steps: list[Json]
    repeated: list[str]
    unknown_outcomes: list[str]
    drafts_dropped: Count
    approvals: list[Json]
    steers: list[Json]
    forked_from: Json | None
    reused: list[str]
    """Calls whose results were taken over from the run that this one was forked from."""
    usage: ResponseUsage
    usage_incomplete: bool
    usage_estimated: bool
    usage_saved_by_recovery: ResponseUsage
    error: Json | None
