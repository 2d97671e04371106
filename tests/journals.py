"""Journals for tests. `Pen` writes one by hand, entry by entry, and folds as it goes, so that an illegal event cannot
get in. `journals()` is a hypothesis strategy for random legal ones: a walk over core's TABLE with believable payloads,
with crashes, cancels and failures wherever the table allows them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.ids import call_id
from ninelives.core.rope import join
from ninelives.core.spec import Resolved, Spec
from ninelives.core.state import Due, RunState, apply, fold, start
from ninelives.core.table import TABLE, Phase

RUN = "0123456789abcdef"
AT = 1_700_000_000_000
"""When every journal begins, in milliseconds."""
STEP_MS = 250
quick = settings(max_examples=int(os.environ.get("NINELIVES_TEST_EXAMPLES", "40")), deadline=None)
"""How many journals each property is tried on: enough for every change; a nightly run asks for 500."""


def spec_of(dialect: str = "responses", **fields: Any) -> Spec:
    """A plain request."""
    given = {"model": "hermes-agent", "input": ({"role": "user", "content": "Say hello"},), **fields}
    return Spec(dialect=dialect, **given)


class Pen:
    """Writes a journal. Every method adds entries and returns the pen, so that a scenario reads as a sentence."""

    def __init__(self, spec: Spec | None = None, *, run: str = RUN, resolved: Resolved | None = None) -> None:
        accepted = e.RunAccepted(spec=spec or spec_of(), resolved=resolved or Resolved(session="auto-1"), owner="alice")
        self.entries = [e.Entry(run, 0, AT, 0, accepted)]
        self.state: RunState = start(self.entries[0])
        self._calls = 0

    def write(self, *events: e.AnyEvent) -> Pen:
        """Any events, in the current attempt."""
        for event in events:
            seq, attempt = self.state.seq + 1, self.state.facts.attempt
            if isinstance(event, e.AttemptStarted):
                attempt += 1
            entry = e.Entry(self.state.facts.run, seq, AT + seq * STEP_MS, attempt, event)
            self.state = apply(self.state, entry)
            self.entries.append(entry)
        return self

    def attempt(self) -> Pen:
        """A worker takes the run; what came before ended by itself."""
        return self.write(e.AttemptStarted())

    def crash(self, lost: int = 0) -> Pen:
        """The worker died; another one takes the run. `lost`: so many events were lost with a database server."""
        return self.write(e.AttemptStarted(clean=False, lost=lost))

    def keep(self) -> Pen:
        """The worker died, and the supervisor kept its model call: another one goes on with the draft."""
        return self.write(e.AttemptStarted(clean=False, keeps=True))

    def text(self, *pieces: str) -> Pen:
        """Deltas of answer."""
        return self.write(*(e.TextDelta(piece) for piece in pieces))

    def decline(self, *pieces: str) -> Pen:
        """Deltas of a refusal."""
        return self.write(*(e.TextDelta(piece, refusal=True) for piece in pieces))

    def think(self, *pieces: str) -> Pen:
        """Deltas of reasoning."""
        return self.write(*(e.ReasoningDelta(piece) for piece in pieces))

    def prepare(self, call: e.Call) -> Pen:
        """The model begins to write a call."""
        return self.write(e.CallBegun(call_id=call.id, name=call.name, emoji="🔧"))

    def settle(self, *calls: e.Call, usage: e.Usage | None = None, finish: e.Finish | None = None) -> Pen:
        """The message that the deltas so far add up to."""
        state = self.state
        reasoning = "".join(thought.text for thought in state.thoughts) + join(state.thought)
        finish = finish or ("tool_calls" if calls else "stop")
        spent = usage or e.Usage(10, 5)
        return self.write(e.MessageCompleted(join(state.text), calls, spent, reasoning, finish, join(state.refusal)))

    def call(self, name: str, arguments: str = "{}", *, client: bool = False) -> e.Call:
        """A new call with an id of ours. It writes nothing."""
        self._calls += 1
        return e.Call(call_id(self.state.facts.run, self._calls - 1), name, arguments, client)

    def start(self, *calls: e.Call, effect: e.Effect = "read") -> Pen:
        """Calls begin."""
        return self.write(
            *(e.ToolStarted(call=call, effect=effect, label=f"run {call.name}", emoji="🔧") for call in calls)
        )

    def finish(self, call: e.Call, output: str = "ok", *, is_error: bool = False) -> Pen:
        """A call is settled."""
        return self.write(e.ToolFinished(call_id=call.id, output=output, is_error=is_error, duration_ms=12))

    def complete(self) -> Pen:
        """The end."""
        return self.write(e.RunCompleted())


FATE = ("go",) * 16 + ("crash",) * 2 + ("end",)
ENDS = (e.CancelRequested, e.RunFailed, e.RunInterrupted)
TEXTS = ("Hel", "lo ", "world", "\n\n", "é", "日本語", "🦑", '"q"', "\\u0041", "\u2028", " ", "", "</b>")
NAMES = ("terminal", "read_file", "web_search", "_memory")
ARGUMENTS = ('{"command":"ls"}', '{"path":"ü.txt","n":1}', "{}", "", "not json", "[1]")
OUTPUTS = ("ok", "", "line 1\nline 2", "größer 🦑 " * 6, "x" * 60)
pieces = st.one_of(st.sampled_from(TEXTS), st.text(max_size=3))


@st.composite
def specs(draw: st.DrawFn, dialect: str = "responses") -> Spec:
    """Every mode that a frame can depend on."""
    store = draw(st.booleans())
    return spec_of(
        dialect,
        store=store,
        background=store and draw(st.booleans()),
        include_usage=draw(st.booleans()),
        tool_items=draw(st.sampled_from(("function_call", "mcp_call"))),
        tool_progress=draw(st.sampled_from(("compatible", "compatible", "bare", "off"))),
        output_bound=draw(st.sampled_from((16384, 24))),
        projection=draw(st.sampled_from((1, 2))),
        instructions=draw(st.sampled_from((None, "Be brief, s'il vous plaît."))),
        echo={"thinking": True} if dialect == "messages" and draw(st.booleans()) else {},
    )


@st.composite
def journals(
    draw: st.DrawFn, dialect: str = "responses", *, ended: bool = True, approvals: bool = True, steps: int = 25
) -> list[e.Entry]:
    """A random legal journal, of about `steps` entries at most; not `ended`: it may stop anywhere."""
    walk = Walk(draw, Pen(draw(specs(dialect))), approvals=approvals)
    for _ in range(draw(st.integers(0, steps) | st.integers(steps // 2, steps))):
        if walk.pen.state.ended:
            break
        walk.step()
    while ended and not walk.pen.state.ended:
        walk.home()
    return walk.pen.entries


Step = Callable[[], object]


class Walk:
    """One walk over the table."""

    def __init__(self, draw: st.DrawFn, pen: Pen, *, approvals: bool) -> None:
        self.draw = draw
        self.pen = pen
        self.approvals = approvals

    def step(self) -> None:
        """Something legal happens; likely things are listed more often."""
        ways: dict[Phase, Callable[[], list[Step]]] = {
            Phase.QUEUED: lambda: [self.pen.attempt],
            Phase.READY: self._ready,
            Phase.DRAFTING: lambda: [self._text] * 4 + [self._think] * 2 + [self._prepare] + [self._settle] * 3,
            Phase.ACTING: self._acting,
            Phase.WAITING: lambda: [self._answer] * 2 + self._finishes(),
            Phase.STOPPING: lambda: [self._cancelled] * 2 + self._finishes() * 2 + [self._fail],
        }
        match self.draw(st.sampled_from(FATE)):
            case "crash":
                self.pen.crash()
            case "end":
                ends = [self._cancel, self._fail, self._limit]
                may = [end for end, kind in zip(ends, ENDS, strict=True) if kind in TABLE[self.pen.state.phase]]
                self.draw(st.sampled_from(may))()
            case _:
                self.draw(st.sampled_from(ways[self.pen.state.phase]()))()

    def home(self) -> None:
        """One step towards the end."""
        due = self.pen.state.facts.due
        match self.pen.state.phase:
            case Phase.QUEUED:
                self.pen.attempt()
            case Phase.READY:
                self._end()
            case Phase.DRAFTING:
                self.pen.settle()
            case Phase.ACTING:
                first = next(iter(due.values()))
                self._start_one(first) if first.attempt == 0 else self.pen.finish(first.call)
            case Phase.WAITING:
                self._answer()
            case _:
                self._cancelled()

    def _ready(self) -> list[Step]:
        said = self.pen.state.facts.messages[-1:]
        over = any(message.finish in ("length", "content_filter") for message in said)
        asked = any(call.client for message in said for call in message.calls)
        if over or asked:
            return [self._end]
        more: list[Step] = (
            [self._text] * 3 + [self._think] * 2 + [self._prepare] + [self._whole] * 2 + [self._adapter_call]
        )
        return [*more, self._steer, *[self._end] * len(said), self.pen.attempt]

    def _acting(self) -> list[Step]:
        steps: list[Step] = self._finishes() * 2
        for due in self.pen.state.facts.due.values():
            if due.attempt != self.pen.state.facts.attempt:
                steps += [lambda due=due: self._start_one(due)] * 2  # type: ignore[misc]
                if self.approvals and due.call.id not in self.pen.state.facts.approvals:
                    steps.append(lambda due=due: self._ask(due))  # type: ignore[misc]
            if due.attempt > 0:
                steps.append(lambda due=due: self.pen.write(e.ToolProgressed(due.call.id, "half")))  # type: ignore[misc]
        return steps

    def _finishes(self) -> list[Step]:
        facts = self.pen.state.facts
        asked = facts.asked.call.id if facts.asked else ""
        begun = [due for due in facts.due.values() if due.attempt > 0 and due.call.id != asked]
        return [lambda due=due: self._finish(due) for due in begun]  # type: ignore[misc]

    def _text(self) -> None:
        state, piece = self.pen.state, self.draw(pieces)
        begins = piece and (state.text is None or join(state.text)) and self.draw(st.integers(0, 7)) == 0
        (self.pen.decline if state.refusal is not None or begins else self.pen.text)(piece)

    def _think(self) -> None:
        self.pen.think(self.draw(pieces))

    def _prepare(self) -> None:
        """A call that the message may have in the end, or not."""
        self.pen.prepare(e.Call(f"call_p{self.draw(st.integers(0, 2))}", self.draw(st.sampled_from(NAMES)), ""))

    def _calls(self) -> list[e.Call]:
        names = self.draw(st.lists(st.sampled_from(NAMES), max_size=3))
        client = self.draw(st.integers(0, 9)) == 0
        return [
            self.pen.call(name, self.draw(st.sampled_from(ARGUMENTS)), client=client and n == 0)
            for n, name in enumerate(names)
        ]

    def _finish_word(self, calls: list[e.Call]) -> e.Finish:
        if calls:
            return "tool_calls"
        return self.draw(st.sampled_from(("stop", "stop", "stop", "length", "content_filter")))

    def _settle(self) -> None:
        calls = self._calls()
        usage = e.Usage(self.draw(st.integers(0, 50)), 7, 3, 2)
        self.pen.settle(*calls, usage=usage, finish=self._finish_word(calls))

    def _whole(self) -> None:
        """A message that was not streamed."""
        text, reasoning, calls = self.draw(pieces), self.draw(pieces), self._calls()
        refusal = self.draw(pieces) if self.draw(st.integers(0, 4)) == 0 else ""
        finish = self._finish_word(calls)
        event = e.MessageCompleted(text, tuple(calls), e.Usage(4, 3), reasoning, finish, refusal)
        self.pen.write(event)

    def _steer(self) -> None:
        """Somebody writes to the run."""
        steers = self.pen.state.facts.steers
        said: tuple[dict[str, object], ...] = ({"role": "user", "content": self.draw(st.sampled_from(TEXTS))},)
        self.pen.write(e.SteerApplied(id=f"steer_{len(steers)}", messages=said))

    def _adapter_call(self) -> None:
        """A call that no message asked for (G14)."""
        self.pen.start(self.pen.call(self.draw(st.sampled_from(NAMES)), self.draw(st.sampled_from(ARGUMENTS))))

    def _start_one(self, due: Due) -> None:
        self.pen.start(due.call, effect=self.draw(st.sampled_from(("read", "write"))))

    def _finish(self, due: Due) -> None:
        lost = due.attempt != self.pen.state.facts.attempt
        self.pen.write(
            e.ToolFinished(
                call_id=due.call.id,
                output=self.draw(st.sampled_from(OUTPUTS)),
                is_error=lost or self.draw(st.booleans()),
                outcome="unknown" if lost else "known",
                duration_ms=self.draw(st.integers(0, 3000)),
            )
        )

    def _ask(self, due: Due) -> None:
        self.pen.write(e.ApprovalRequested(call=due.call, digest="d", code="1234", expires_at=AT + 3_600_000))

    def _answer(self) -> None:
        asked = self.pen.state.facts.asked
        assert asked is not None
        self.pen.write(e.ApprovalGiven(call_id=asked.call.id, choice=self.draw(st.sampled_from(("once", "deny")))))

    def _limit(self) -> None:
        self.pen.write(e.RunInterrupted("max_messages"))

    def _end(self) -> None:
        said = self.pen.state.facts.messages[-1:]
        match said[0].finish if said else "stop":
            case "length":
                self.pen.write(e.RunInterrupted("max_output_tokens"))
            case "content_filter":
                self.pen.write(e.RunInterrupted("content_filter"))
            case _:
                self.pen.complete()

    def _cancel(self) -> None:
        self.pen.write(e.CancelRequested())

    def _cancelled(self) -> None:
        self.pen.write(e.RunCancelled())

    def _fail(self) -> None:
        self.pen.write(
            e.RunFailed(
                code=self.draw(st.sampled_from(("server_error", "rate_limit_exceeded"))),
                message="The model gave up.",
                reason=self.draw(st.sampled_from(("", "upstream_error"))),
                status=502,
            )
        )


__all__ = ["AT", "RUN", "STEP_MS", "Pen", "fold", "journals", "quick", "spec_of", "specs"]
