"""The JSON of the run inspector. Owns: its Structs. Answers are built with them, and /openapi.json describes them.
Refuses to know: where values come from."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ninelives.dialects.fields import Count, Json, Seconds
from ninelives.dialects.runs.shapes import OpenQuestion, RunStatus

StepKind = Literal["queued", "model", "tool", "waiting"]
StepOutcome = Literal["open", "completed", "failed", "unknown", "dropped", "interrupted", "denied", "expired"]
"""dropped: a crash cut a message, which was asked for again. interrupted: a crash cut a call, which was made again."""
AttemptEnd = Literal["open", "ended", "crash", "parked"]


class RunStep(Struct, kw_only=True):
    """A piece of a run's time."""

    seq: int
    """The entry that it begins with. It names the step in addresses."""
    end_seq: int | None = None
    kind: StepKind
    name: str
    label: str = ""
    emoji: str = ""
    attempt: int
    started_at: Seconds
    first_at: Seconds | None = None
    """When the first piece of a message came."""
    ended_at: Seconds | None = None
    outcome: StepOutcome = "open"
    effect: str = ""
    call_id: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    deltas: int = 0
    asks: list[str] = []
    """The tools that a message called."""
    reused_in: list[int] = []
    """The attempts after a crash that took its result over instead of making the call again."""
    again: bool = False
    """The same call was begun before, and a crash cut it."""
    copied: bool = False
    """Taken over from the run that this one was forked from."""
    choice: str = ""
    by: str = ""


class RunAttempt(Struct, kw_only=True):
    """One attempt at a run."""

    attempt: int
    seq: int
    started_at: Seconds
    ended_at: Seconds | None = None
    """Of a crash: when the attempt wrote its last entry."""
    end: AttemptEnd = "open"
    clean: bool = True
    reused: int = 0
    """Finished calls that it did not make again."""


class RunMark(Struct, frozen=True, kw_only=True):
    """A moment: somebody wrote to the run, or cancelled it."""

    seq: int
    at: Seconds
    kind: Literal["steer", "steer_unused", "cancel"]
    text: str = ""
    by: str = ""


class ForkSource(Struct, frozen=True):
    """Where a forked run began."""

    run_id: str
    seq: int


class ToolGlyph(Struct, frozen=True):
    """A call in the list of runs."""

    name: str
    emoji: str
    outcome: StepOutcome


class RunLine(Struct, frozen=True, kw_only=True):
    """A run in the list."""

    run_id: Annotated[str, Meta(pattern="^run_")]
    status: RunStatus
    title: str
    model: str
    api: str
    owner: str
    session_id: str | None
    created_at: Seconds
    updated_at: Seconds
    ended: bool
    input_tokens: Count
    output_tokens: Count
    cost: Annotated[float, Meta(ge=0)]
    """In the currency of the prices, or of the upstream's bill. 0: not known."""
    attempts: Count
    crashes: Count
    calls: Count
    tools: list[ToolGlyph]
    """The first calls, in order."""
    unknown: Count
    """Calls whose outcome is unknown."""
    error: str | None
    approval: OpenQuestion | None


class RunTimeline(Struct, frozen=True, kw_only=True):
    """A run over time."""

    object: Literal["ninelives.run.timeline"]
    run: RunLine
    now: Seconds
    """The clock of the server."""
    last_seq: int
    attempts: list[RunAttempt]
    steps: list[RunStep]
    marks: list[RunMark]
    left_out: Count
    """Steps that are not shown, because there are too many."""
    forked_from: ForkSource | None
    kinds: dict[str, int]
    """How many entries of each kind there are."""
    own: bool = True
    """False: the run of another owner, shown to an admin."""


class RunLines(Struct, frozen=True, kw_only=True):
    """A page of the list of runs."""

    object: Literal["list"]
    data: list[RunLine]
    next: str | None
    """Pass it as `after` to go on; null: that is all."""
    now: Seconds
    everybody: bool
    """The key sees the runs of all owners."""


class JournalEntry(Struct, frozen=True, kw_only=True):
    """An entry of the journal."""

    seq: int
    at: Seconds
    attempt: int
    type: str
    text: str
    """The beginning of the entry as JSON."""
    bytes: Count


class JournalPage(Struct, frozen=True, kw_only=True):
    """Some entries of the journal."""

    object: Literal["list"]
    data: list[JournalEntry]
    total: Count
    """How many entries there are, of these kinds."""


class StepDetails(Struct, frozen=True, kw_only=True):
    """What a step said or did. Long texts are cut; `cut` says so."""

    step: RunStep
    text: str = ""
    reasoning: str = ""
    arguments: str = ""
    output: str = ""
    progress: list[str] = []
    calls: list[Json] = []
    finish: str = ""
    duration_ms: int = 0
    why: str = ""
    cut: bool = False
    upto: int
    """The last entry that was read: a stream of events goes on after it."""


class RunConversation(Struct, frozen=True, kw_only=True):
    """What was said in a run, as messages of Chat Completions."""

    messages: list[Json]
    earlier: Count
    """How many of the first messages the request brought along."""
    cut: bool
    """Later messages are left out, because there are too many bytes."""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """What the model was sent, made again from the journal with the prompt and the tools of now."""

    model: str
    messages: list[Json]
    tools: list[Json]
    options: Json


class RunFrames(Struct, frozen=True, kw_only=True):
    """A run as the stream of one API."""

    api: str
    text: str
    cut: bool


class LastExit(Struct, frozen=True, kw_only=True):
    """What became of the runs that a killed process held."""

    killed_at: Seconds | None
    went_on: Count
    lost: Count
    """Given up, because they ended every attempt."""
    unknown: Count
    """Calls whose outcome is unknown."""
    runs: list[str]


_Words = Annotated[str, Meta(max_length=200)]


class StoreElsewhere(Struct, frozen=True):
    """The store of another server."""

    kind: _Words = ""
    reachable: bool | None = None
    writable: bool | None = None
    trouble: _Words | None = None


class ModelElsewhere(Struct, frozen=True):
    """The model of another server."""

    model: _Words = ""
    reachable: bool | None = None


class RunsElsewhere(Struct, frozen=True):
    """The runs of another server."""

    active: int = 0
    queued: int = 0


class RecoveryElsewhere(Struct, frozen=True):
    """What another server went on with."""

    taken_over: int = 0
    restarted: int = 0
    sealed: int = 0


class HealthElsewhere(Struct, frozen=True):
    """What another server says of itself, as far as it is shown. Another kind of server says less."""

    status: _Words
    server: _Words = ""
    version: _Words = ""
    uptime_s: float | None = None
    store: StoreElsewhere | None = None
    upstream: ModelElsewhere | None = None
    runs: RunsElsewhere | None = None
    recovery: RecoveryElsewhere | None = None


class ServerElsewhere(Struct, frozen=True):
    """A server elsewhere."""

    url: str
    health: HealthElsewhere


class MarkdownTexts(Struct, frozen=True):
    """Texts to render."""

    texts: list[str] = []


class MarkdownTrees(Struct, frozen=True):
    """Each text as a tree: a node is a string, or [element, attributes, children]."""

    trees: list[list[object]]
