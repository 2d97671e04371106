"""What can happen to a run, in past tense. Owns: the event kinds and their place (Entry). Each is a small frozen
Struct that can be understood alone. Kinds and fields are only ever added, never changed: journals are read for
years. Refuses to know: which event may follow which (state.py) and how one is stored (codec.py)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from holdfast.core.spec import Resolved, Spec

Effect = Literal["read", "idempotent", "write"]
Outcome = Literal["known", "unknown"]
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens as the upstream told them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


class Call(Struct, frozen=True, omit_defaults=True):
    """A tool call that the model asked for. `arguments` is the model's own text: it may not be valid JSON."""

    id: str
    name: str
    arguments: str
    client: bool = False
    """True where the caller, not this server, must run it."""


class Process(Struct, frozen=True):
    """An operating system process, named so that no other can be mistaken for it (house rule 6.8)."""

    boot: str
    pid: int
    started: int


class Event(Struct, frozen=True, tag_field="type", omit_defaults=True):
    """Something that happened."""


class RunAccepted(Event, frozen=True, tag="run.accepted", kw_only=True):
    """The request was admitted. Everything that a frame can depend on is in here."""

    spec: Spec
    resolved: Resolved
    owner: str


class AttemptStarted(Event, frozen=True, tag="attempt.started"):
    """A worker took the run. `clean`: the attempt before ended by itself (first start, park), so no strike."""

    clean: bool = True


class TextDelta(Event, frozen=True, tag="text.delta", gc=False):
    """A piece of answer: provisional until MessageCompleted."""

    text: str
    refusal: bool = False
    """A piece of the words with which the model declines. They come after all other text of a message."""


class ReasoningDelta(Event, frozen=True, tag="reasoning.delta", gc=False):
    """A piece of the model's reasoning: provisional until MessageCompleted."""

    text: str


class MessageCompleted(Event, frozen=True, tag="message.completed"):
    """The model finished a message. `text` is the whole of its deltas; `calls` are now due."""

    text: str
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    reasoning: str = ""
    finish: Finish = "stop"
    refusal: str = ""
    """The words with which the model declined; `text` is then what it said before them, if anything."""

    @property
    def spoken(self) -> str:
        """All that it said, declined or not."""
        return self.text + self.refusal


class ToolStarted(Event, frozen=True, tag="tool.started", kw_only=True):
    """A call is about to be carried out: nothing has been done before this is committed."""

    call: Call
    effect: Effect = "write"
    label: str = ""
    emoji: str = ""
    process: Process | None = None
    """The launcher that waits for this entry, where the tool is a process."""


class ToolProgressed(Event, frozen=True, tag="tool.progressed"):
    """A tool told how far it is."""

    call_id: str
    text: str


class ToolFinished(Event, frozen=True, tag="tool.finished", kw_only=True):
    """The call is settled and will never be carried out again."""

    call_id: str
    output: str
    is_error: bool = False
    outcome: Outcome = "known"
    duration_ms: int = 0


class ApprovalRequested(Event, frozen=True, tag="approval.requested", kw_only=True):
    """A person must say yes before the call is carried out. `digest` binds the answer to tool and arguments."""

    call: Call
    digest: str
    code: str
    expires_at: int


class ApprovalGiven(Event, frozen=True, tag="approval.given", kw_only=True):
    """A person, or the clock, answered."""

    call_id: str
    choice: Literal["once", "session", "always", "deny", "expired"]
    by: str = ""


class CancelRequested(Event, frozen=True, tag="cancel.requested"):
    """Somebody asked to stop; the worker has stopped producing."""

    reason: str = "requested"


class RunCompleted(Event, frozen=True, tag="run.completed"):
    """The agent is done. The answer is the text of its messages."""


class RunFailed(Event, frozen=True, tag="run.failed", kw_only=True):
    """The run ended without an answer. `code` is on the SDK's list; `reason` is our own word for it."""

    code: str
    message: str
    reason: str = ""
    status: int = 500


class RunCancelled(Event, frozen=True, tag="run.cancelled"):
    """The run ended because somebody asked."""


class RunInterrupted(Event, frozen=True, tag="run.interrupted"):
    """A limit ended the run; what it did so far stands."""

    reason: Literal["max_output_tokens", "max_messages", "content_filter"]


AnyEvent = (
    RunAccepted
    | AttemptStarted
    | TextDelta
    | ReasoningDelta
    | MessageCompleted
    | ToolStarted
    | ToolProgressed
    | ToolFinished
    | ApprovalRequested
    | ApprovalGiven
    | CancelRequested
    | RunCompleted
    | RunFailed
    | RunCancelled
    | RunInterrupted
)
Delta = TextDelta | ReasoningDelta
Terminal = RunCompleted | RunFailed | RunCancelled | RunInterrupted


class Entry(Struct, frozen=True):
    """An event at its place: the run, its gapless number, the time in milliseconds and the attempt that wrote it."""

    run: str
    seq: int
    at: int
    attempt: int
    event: AnyEvent
