"""A run over time. Owns: the steps of a run (in the queue, a message of the model, a call, a wait for a person), its
attempts with what ended each, and the moments in between, all folded from the journal. Refuses to know: engines, HTTP,
and what is said in a message.

The fold keeps no text but the first words of the request, so a run with 50,000 deltas costs one byte for each. When the
model was asked is not in the journal. It is the moment from which nothing else was due: the end of the last call, of a
wait or of a message, or the begin of the attempt. When a server died is told
by the next attempt, to the second, where that is known. Else its last entry is the last sign of life."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.core.limits import money
from ninelives.core.table import TABLE, Next, Phase
from ninelives.dialects.inspector import shapes
from ninelives.dialects.inspector.shapes import RunAttempt, RunMark, RunStep
from ninelives.dialects.runs.body import STATUS, failure_text, open_question, title_of
from ninelives.dialects.shared import hidden, messages_text

MOST_STEPS = 2_000
"""More are counted, and left out."""
MOST_TOOLS = 12
TEXT_CHARS = 500
KINDS = [str(kind.__struct_config__.tag) for kind in e.AnyEvent.__args__]
"""All kinds of entries. Timeline.kinds has the place of each entry's kind in this list."""
_PLACE = {kind: place for place, kind in enumerate(e.AnyEvent.__args__)}


class Timeline:
    """Add the entries in order, then ask for body() or line(), as often as you like."""

    def __init__(self) -> None:
        self.seq = -1
        self.kinds = bytearray()
        self.phase = Phase.NEW
        self.attempts: list[RunAttempt] = []
        self.steps: list[RunStep] = []
        self.left_out = 0
        self._marks: list[RunMark] = []
        self._usage = e.Usage()
        self._accepted: e.RunAccepted | None = None
        self._run = ""
        self._created = self._at = self._free = 0.0
        """When it was accepted, when the last entry came, and from when on nothing but the model was due."""
        self._asking: RunStep | None = None
        self._open: dict[str, RunStep] = {}
        """Calls that were begun and have no result."""
        self._due: set[str] = set()
        self._waiting: RunStep | None = None
        self._asked: e.ApprovalRequested | None = None
        self._end: e.Terminal | None = None
        self._calls = self._unknown = 0
        self._tools: list[RunStep] = []

    def add(self, entry: e.Entry) -> None:
        """One more entry."""
        kind = type(entry.event)
        self.kinds.append(_PLACE[kind])
        at, self.seq = entry.at / 1000, entry.seq
        if kind is e.TextDelta or kind is e.ReasoningDelta:  # nearly all entries
            self.phase = Phase.DRAFTING
            step = self._asking or self._ask(entry)
            step.first_at = at if step.first_at is None else step.first_at
            step.deltas += 1
        else:
            cell = TABLE[self.phase].get(kind)
            _FOLD[kind](self, entry, at)
            if cell is not None:
                self.phase = Phase.ACTING if cell is Next.SETTLE and self._due else _settled(cell)
        self._at = at

    # one function for each kind

    def _accept(self, entry: e.Entry, at: float) -> None:
        assert isinstance(entry.event, e.RunAccepted)
        self._accepted, self._run, self._created = entry.event, entry.run, at
        self._step(RunStep(seq=entry.seq, kind="queued", name="queued", attempt=0, started_at=at))

    def _attempt(self, entry: e.Entry, at: float) -> None:
        assert isinstance(entry.event, e.AttemptStarted)
        clean, begun = entry.event.clean, RunAttempt(attempt=entry.attempt, seq=entry.seq, started_at=at)
        begun.clean = clean
        if self.attempts:
            self._end_attempt("parked" if clean else "crash", min(at, max(self._at, entry.event.died_at / 1000)))
            if not clean:
                begun.reused = self._reuse(entry.attempt)
        elif self.steps:
            _close(self.steps[0], entry.seq, at, "completed")
        self.attempts.append(begun)
        self._free = at

    def _end_attempt(self, how: shapes.AttemptEnd, at: float) -> None:
        last = self.attempts[-1]
        last.ended_at, last.end = at, how
        if self.phase is Phase.READY and self._asking is None and how == "crash" and self._free < at:
            self._asking = self._asked_model(self.seq, last.attempt)  # it had said nothing yet
            self._step(self._asking)
        if self._asking is not None:
            _close(self._asking, self.seq, at, "dropped")
            self._asking = None
        for step in self._open.values():
            step.ended_at = at

    def _reuse(self, attempt: int) -> int:
        """Note which finished calls this attempt takes over."""
        done = [step for step in self._tools if step.outcome in ("completed", "failed") and not step.copied]
        for step in done:
            step.reused_in.append(attempt)
        return len(done)

    def _begun(self, entry: e.Entry, at: float) -> None:
        step = self._asking or self._ask(entry)
        step.first_at = at if step.first_at is None else step.first_at

    def _message(self, entry: e.Entry, at: float) -> None:
        said = entry.event
        assert isinstance(said, e.MessageCompleted)
        step = self._asking or self._ask(entry)
        _close(step, entry.seq, at, "completed")
        _spend(step, said.usage)
        step.asks = [call.name for call in said.calls if not hidden(call.name)]
        self._usage = self._usage.plus(said.usage)
        self._due = {call.id for call in said.calls if not call.client}
        self._asking, self._free = None, at

    def _ask(self, entry: e.Entry) -> RunStep:
        """The message that this entry begins."""
        self._asking = step = self._asked_model(entry.seq, entry.attempt)
        step.copied = self._is_copied(entry)
        self._step(step)
        return step

    def _asked_model(self, seq: int, attempt: int) -> RunStep:
        model = self._accepted.spec.model if self._accepted is not None else ""
        return RunStep(seq=seq, kind="model", name=model, attempt=attempt, started_at=self._free)

    def _started(self, entry: e.Entry, at: float) -> None:
        begun = entry.event
        assert isinstance(begun, e.ToolStarted)
        call = begun.call
        self._due.add(call.id)
        before = self._open.get(call.id)
        if before is not None:
            before.outcome, before.end_seq = "interrupted", before.end_seq or before.seq
        step = RunStep(seq=entry.seq, kind="tool", name=call.name, attempt=entry.attempt, started_at=at)
        step.label, step.emoji, step.effect, step.call_id = begun.label[:200], begun.emoji, begun.effect, call.id
        step.again, step.copied = before is not None, self._is_copied(entry)
        self._open[call.id] = step
        if not hidden(call.name):
            self._calls += before is None
            self._tools.append(step)
            self._step(step)

    def _finished(self, entry: e.Entry, at: float) -> None:
        done = entry.event
        assert isinstance(done, e.ToolFinished)
        step = self._open.pop(done.call_id, None)
        self._due.discard(done.call_id)
        if not self._open:
            self._free = at
        if step is None:
            return
        if done.outcome == "unknown":
            self._unknown += 1
            _close(step, entry.seq, step.ended_at or at, "unknown")
        else:
            _close(step, entry.seq, at, "failed" if done.is_error else "completed")
        _spend(step, done.usage)
        self._usage = self._usage.plus(done.usage)

    def _ask_person(self, entry: e.Entry, at: float) -> None:
        asked = entry.event
        assert isinstance(asked, e.ApprovalRequested)
        self._asked = asked
        step = RunStep(seq=entry.seq, kind="waiting", name=asked.call.name, attempt=entry.attempt, started_at=at)
        step.call_id = asked.call.id
        self._waiting = step
        self._step(step)

    def _answer(self, entry: e.Entry, at: float) -> None:
        given = entry.event
        assert isinstance(given, e.ApprovalGiven)
        self._asked = None
        if self._waiting is not None:
            refused = {"deny": "denied", "expired": "expired"}
            _close(self._waiting, entry.seq, at, refused.get(given.choice, "completed"))  # type: ignore[arg-type]
            self._waiting.choice, self._waiting.by = given.choice, given.by
            self._waiting = None

    def _mark(self, entry: e.Entry, at: float) -> None:
        match entry.event:
            case e.SteerApplied(messages=said, by=by):
                text = messages_text(said)[:TEXT_CHARS]
                self._marks.append(RunMark(seq=entry.seq, at=at, kind="steer", text=text, by=by))
                self._free = at
            case e.SteerUnused(messages=said):
                text = messages_text(said)[:TEXT_CHARS]
                self._marks.append(RunMark(seq=entry.seq, at=at, kind="steer_unused", text=text))
            case e.CancelRequested(reason):
                self._marks.append(RunMark(seq=entry.seq, at=at, kind="cancel", text=reason))

    def _last(self, entry: e.Entry, at: float) -> None:
        end = entry.event
        assert isinstance(end, e.Terminal)
        if self.phase is Phase.READY and self._asking is None and self.attempts and isinstance(end, e.RunFailed):
            self._asking = self._asked_model(self.seq, self.attempts[-1].attempt)  # it was asked, and said nothing
            self._step(self._asking)
        self._end, self._asked = end, None
        unfinished = [step for step in (self._asking, self._waiting, *self._open.values()) if step is not None]
        for step in unfinished:
            failed = step is self._asking and isinstance(end, e.RunFailed)
            _close(step, entry.seq, at, "failed" if failed else "dropped" if step.kind == "model" else "interrupted")
        if self.attempts:
            self.attempts[-1].ended_at, self.attempts[-1].end = at, "ended"
        elif self.steps:
            _close(self.steps[0], entry.seq, at, "dropped")

    def _nothing(self, entry: e.Entry, at: float) -> None:
        """It changes no step."""

    def _is_copied(self, entry: e.Entry) -> bool:
        forked = self._accepted.forked if self._accepted is not None else None
        return forked is not None and entry.seq <= forked.copied + 1

    def _step(self, step: RunStep) -> None:
        if len(self.steps) < MOST_STEPS:
            self.steps.append(step)
        else:
            self.left_out += 1

    # what is shown

    @property
    def ended(self) -> bool:
        """True when nothing can follow."""
        return self._end is not None

    def line(self) -> shapes.RunLine:
        """The run in a list. Call it once there is an entry."""
        accepted = self._accepted
        if accepted is None:
            raise ValueError("a timeline needs entries")
        return shapes.RunLine(
            run_id=wire_id("runs", self._run),
            status=STATUS[self.phase],
            title=title_of(accepted.spec),
            model=accepted.spec.model,
            api=accepted.spec.dialect,
            owner=accepted.owner,
            session_id=accepted.resolved.session,
            created_at=self._created,
            updated_at=self._at,
            ended=self.ended,
            input_tokens=self._usage.input_tokens,
            output_tokens=self._usage.output_tokens,
            cost=money(self._usage.cost),
            attempts=len(self.attempts),
            crashes=sum(each.end == "crash" for each in self.attempts),
            calls=self._calls,
            tools=[shapes.ToolGlyph(step.name, step.emoji, step.outcome) for step in self._tools[:MOST_TOOLS]],
            unknown=self._unknown,
            error=failure_text(self._end) if isinstance(self._end, e.RunFailed) else None,
            approval=open_question(self._asked) if self._asked is not None else None,
        )

    def body(self, now: float) -> shapes.RunTimeline:
        """The run over time."""
        forked = self._accepted.forked if self._accepted is not None else None
        return shapes.RunTimeline(
            object="ninelives.run.timeline",
            run=self.line(),
            now=now,
            last_seq=self.seq,
            attempts=self.attempts,
            steps=[*self.steps, *self._unseen()],
            marks=self._marks,
            left_out=self.left_out,
            forked_from=shapes.ForkSource(wire_id("runs", forked.run), forked.seq) if forked else None,
            kinds={kind: count for place, kind in enumerate(KINDS) if (count := self.kinds.count(place))},
        )

    def _unseen(self) -> Iterable[RunStep]:
        """The model is being asked, and has said nothing yet."""
        if self.phase is Phase.READY and self._asking is None and self.attempts:
            yield self._asked_model(self.seq + 1, self.attempts[-1].attempt)

    def find(self, seq: int) -> RunStep | None:
        """The step that an entry belongs to."""
        began = [step for step in self.steps if step.seq <= seq]
        return max(began, key=lambda step: step.seq) if began else None

    def seqs(self, kinds: frozenset[str]) -> list[int]:
        """The numbers of all entries of these kinds, in order."""
        wanted = {place for place, kind in enumerate(KINDS) if kind in kinds}
        return [seq for seq, place in enumerate(self.kinds) if place in wanted]


def _settled(cell: Phase | Next) -> Phase:
    return Phase.READY if isinstance(cell, Next) else cell


def _spend(step: RunStep, usage: e.Usage) -> None:
    step.input_tokens, step.output_tokens, step.cost = usage.input_tokens, usage.output_tokens, money(usage.cost)


def _close(step: RunStep, seq: int, at: float, outcome: shapes.StepOutcome) -> None:
    step.end_seq, step.ended_at, step.outcome = seq, at, outcome


_FOLD: dict[type[e.Event], Callable[[Timeline, e.Entry, float], None]] = {
    e.RunAccepted: Timeline._accept,
    e.AttemptStarted: Timeline._attempt,
    e.CallBegun: Timeline._begun,
    e.MessageCompleted: Timeline._message,
    e.ToolStarted: Timeline._started,
    e.ToolProgressed: Timeline._nothing,
    e.ToolFinished: Timeline._finished,
    e.ApprovalRequested: Timeline._ask_person,
    e.ApprovalGiven: Timeline._answer,
    e.SteerApplied: Timeline._mark,
    e.SteerUnused: Timeline._mark,
    e.CancelRequested: Timeline._mark,
    e.RunCompleted: Timeline._last,
    e.RunFailed: Timeline._last,
    e.RunCancelled: Timeline._last,
    e.RunInterrupted: Timeline._last,
}
