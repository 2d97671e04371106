"""What can happen to a run, in past tense. Owns: the kinds of events, and Entry, an event at its place in a journal.
Each kind is a small frozen Struct that can be understood alone. Kinds and fields are added, never changed, because
journals are read for years. Refuses to know: which event may follow which (table.py) and how one is stored
(codec.py)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ninelives.core.spec import Message, Resolved, Spec

Effect = Literal["read", "idempotent", "write"]
"""What a tool call does to the world. After a crash, an interrupted read or idempotent call runs again; a write does
not (P5)."""
Outcome = Literal["known", "unknown"]
"""unknown: a crash or a cancel interrupted the call, so it may have happened fully, partly or not at all."""
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


Choice = Literal["once", "session", "always", "deny"]
"""A person's answer: only this call, the same call in this session, the same call in all sessions, or no."""


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens, as reported by the upstream."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    """True where the upstream left out a count, so that some of these were estimated (C11)."""
    cost: int = 0
    """In billionths of the currency of the prices (core/limits.py), or of the upstream's own bill. 0: not known."""

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
            self.cost + other.cost,
        )


class Call(Struct, frozen=True, omit_defaults=True):
    """A tool call that the model asked for. `arguments` is the text of the model, which may not be valid JSON."""

    id: str
    name: str
    arguments: str
    client: bool = False
    """True where the caller, not this server, must execute it."""


class Process(Struct, frozen=True):
    """An operating system process. Boot id, pid and start time together name it uniquely (R8)."""

    boot: str
    pid: int
    started: int


class Event(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Something that happened."""


class ForkedFrom(Struct, frozen=True):
    """Where a run began that was forked from another one."""

    run: str
    seq: int
    copied: int
    """How many facts of it come after the first two entries of this run."""


class Budget(Struct, frozen=True, omit_defaults=True):
    """What a run may spend; 0: no bound. It is checked before each model call."""

    tokens: int = 0
    cost: int = 0


class RunAccepted(Event, frozen=True, tag="run.accepted", kw_only=True):
    """The request was admitted. Everything that a frame can depend on is in this event."""

    spec: Spec
    resolved: Resolved
    owner: str
    forked: ForkedFrom | None = None
    key: str = ""
    """The id of the API key that asked. Its limits count for the run."""
    budget: Budget | None = None


class AttemptStarted(Event, frozen=True, tag="attempt.started"):
    """A worker took the run. `clean`: nothing died before (a first start, a parked run), so it is no strike."""

    clean: bool = True
    lost: int = 0
    """How many events of the attempts before were shown to readers and then lost by the database (a failover to a
    standby that was behind), as far as the last holder could tell."""
    died_at: int = 0
    """When the process of the attempt before was last seen alive, in milliseconds. 0: it is not known."""
    keeps: bool = False
    """The draft stands: the supervisor kept the model call, and this attempt goes on with it."""


class TextDelta(Event, frozen=True, tag="text.delta", gc=False):
    """A piece of the answer, provisional until MessageCompleted."""

    text: str
    refusal: bool = False
    """True for a piece of a refusal. A refusal comes after all other text of a message."""


class ReasoningDelta(Event, frozen=True, tag="reasoning.delta", gc=False):
    """A piece of the model's reasoning, provisional until MessageCompleted."""

    text: str


class CallBegun(Event, frozen=True, tag="call.begun", kw_only=True):
    """The model began to write a call of a tool of this server. It is provisional like a delta: the message may be cut
    off before the call is whole. Readers get a sign during what is otherwise a long silence."""

    call_id: str
    name: str
    emoji: str = ""


class MessageCompleted(Event, frozen=True, tag="message.completed"):
    """The model finished a message. `text` is the sum of its deltas. Its `calls` are now due."""

    text: str
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    reasoning: str = ""
    finish: Finish = "stop"
    refusal: str = ""
    """The refusal of the model, if any. `text` is then what came before it."""
    step: str = ""
    """For an agent that is replayed after a crash (agents/steps.py): a hash of the request that this answers."""
    record: str = ""
    """For such an agent: the answer in its own form."""
    asked: str = ""
    """For such an agent: an excerpt of the request, for the error where its code asks for something else after a
    crash."""

    @property
    def spoken(self) -> str:
        """Text and refusal together."""
        return self.text + self.refusal


class ToolStarted(Event, frozen=True, tag="tool.started", kw_only=True):
    """A call is about to be executed. Nothing has happened before this event is committed."""

    call: Call
    effect: Effect = "write"
    label: str = ""
    emoji: str = ""
    process: Process | None = None
    """Where the tool is a process: the launcher, which waits until this event is committed."""
    inside: str = ""
    """The id of the call that made this one, where a step of an agent makes steps (agents/steps.py)."""


class ToolProgressed(Event, frozen=True, tag="tool.progressed"):
    """A tool reported its progress."""

    call_id: str
    text: str


class ToolFinished(Event, frozen=True, tag="tool.finished", kw_only=True):
    """The call has a result and will never be executed again."""

    call_id: str
    output: str
    is_error: bool = False
    outcome: Outcome = "known"
    duration_ms: int = 0
    record: str = ""
    """For an agent that is replayed after a crash (agents/steps.py): the result in its own form."""
    usage: Usage = Usage()
    """Tokens that the call spent: an agent inside a tool asks models too."""


class ApprovalRequested(Event, frozen=True, tag="approval.requested", kw_only=True):
    """A person must approve the call before it is executed. `digest` binds the answer to tool and arguments."""

    call: Call
    digest: str
    code: str
    expires_at: int
    choices: tuple[Choice, ...] = ("once", "session", "always", "deny")
    """The answers that were offered."""
    tool_digest: str = ""
    """A hash of the tool as it was then, which a standing permission is bound to. Empty: none can be given."""
    why: str = ""
    """Why a person is asked, as one sentence. Empty in questions of older releases."""

    def takes(self) -> tuple[Choice, ...]:
        """The answers that count. Runs of older releases offered permissions that they could not bind to a tool."""
        return self.choices if self.tool_digest else ("once", "deny")


class ApprovalGiven(Event, frozen=True, tag="approval.given", kw_only=True):
    """A person answered, or the time for an answer is over."""

    call_id: str
    choice: Literal["once", "session", "always", "deny", "expired"]
    by: str = ""


class SteerApplied(Event, frozen=True, tag="steer.applied", kw_only=True):
    """Somebody wrote to the run while it worked. The model reads these user messages before its next message."""

    id: str
    messages: tuple[Message, ...]
    by: str = ""


class SteerUnused(Event, frozen=True, tag="steer.unused", kw_only=True):
    """The run ends without having used this steer."""

    id: str
    messages: tuple[Message, ...]


class CancelRequested(Event, frozen=True, tag="cancel.requested"):
    """Somebody asked to stop the run, and the agent was stopped."""

    reason: str = "requested"


class RunCompleted(Event, frozen=True, tag="run.completed"):
    """The agent is done. The answer is the text of its messages."""


class RunFailed(Event, frozen=True, tag="run.failed", kw_only=True):
    """The run ended without an answer. `code` is one that SDKs know; `reason` is our own code."""

    code: str
    message: str
    reason: str = ""
    status: int = 500


class RunCancelled(Event, frozen=True, tag="run.cancelled"):
    """The run was cancelled."""


class RunInterrupted(Event, frozen=True, tag="run.interrupted"):
    """A limit ended the run. What it did so far stands."""

    reason: Literal["max_output_tokens", "max_messages", "content_filter", "interrupted", "steered", "budget"]
    """interrupted, steered: another request of the same conversation took its place at a safe point. budget: tokens or
    money of the run, or of whoever asked, are used up."""
    message: str = ""
    """Which limit it was and what to do, as one text for people. Empty where the reason says it all."""


AnyEvent = (
    RunAccepted
    | AttemptStarted
    | TextDelta
    | ReasoningDelta
    | CallBegun
    | MessageCompleted
    | ToolStarted
    | ToolProgressed
    | ToolFinished
    | ApprovalRequested
    | ApprovalGiven
    | SteerApplied
    | SteerUnused
    | CancelRequested
    | RunCompleted
    | RunFailed
    | RunCancelled
    | RunInterrupted
)
Delta = TextDelta | ReasoningDelta | CallBegun
Terminal = RunCompleted | RunFailed | RunCancelled | RunInterrupted


class Entry(Struct, frozen=True):
    """An event in a journal: run, number without gaps, time in milliseconds, and the attempt that wrote it."""

    run: str
    seq: int
    at: int
    attempt: int
    event: AnyEvent
