"""Chat Completions as a stream. Owns: the chunks of a run (B2), tool progress out of band (B3, B4) and what a reader
who reconnects gets (B6, G3). Positions are journal seqs. Refuses to know: engines and HTTP.

Theory of operation. A replay holds back the deltas of a message until the message is complete, so a later reader never
sees a draft that a crash dropped. Deltas of the last attempt need not be held: the engine says which one that is. At
the live edge, the held deltas belong to the current attempt and are sent. The role chunk is never held. A live reader
gets deltas at once. If another attempt then drops the draft, its stream ends with the error `stream_restarted`, because
sent text cannot be recalled. A view at the live edge depends on the journal alone, so live readers share one."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.ids import wire_id
from ninelives.core.spec import Spec
from ninelives.dialects.approval import Continued, question
from ninelives.dialects.chat.shapes import ChatUsage, FinishReason
from ninelives.dialects.shared import (
    Error,
    Held,
    arguments_object,
    bounded,
    error_frame,
    failure_object,
    hidden,
    messages_text,
    released,
)
from ninelives.dialects.sse import DONE, data_frame, encode

FINISH: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_messages": "length",
    "budget": "length",
    "content_filter": "content_filter",
    "interrupted": "stop",
    "steered": "stop",
}


NEVER = 2**62
_PROGRESS = b"event: hermes.tool.progress\ndata: "
STEER_BYTES = 200
"""How much of a steer its status line shows."""
ROLE = b'{"role":"assistant","content":""}'


class Fixed(Struct, frozen=True):
    """What all chunks of a run share."""

    spec: Spec
    head: bytes
    tail: bytes
    identity: dict[str, object]


_NO_RUN = Fixed(Spec(dialect="chat", model=""), b"", b"", {})
"""Before RunAccepted, with which a journal begins."""


class ChatView(Struct, frozen=True):
    """Where a reader stands."""

    fixed: Fixed
    after: int
    replaying: bool = True
    begun: bool = False
    """The role chunk was sent."""
    held: Held = None
    draft_from: int = -1
    """Where the text of the current message begins, visible or held."""
    thinking: bool = False
    """Reasoning of the current message was sent, or is held."""
    gap: bool = False
    """An earlier message had text: the next one begins a paragraph."""
    usage: e.Usage = e.Usage()
    calls: dict[str, e.ToolStarted] = {}
    client_calls: tuple[e.Call, ...] = ()
    preparing: str = ""
    """The status line of a call that the model writes, until a tool starts."""
    over: bool = False
    muted: bool = False
    asked: str = ""
    """While muted: the code of the last question."""
    stands: int = NEVER
    """Drafts of this attempt and of later ones are sent at once."""
    drafted: bool = False
    """A replay has sent deltas of the current message."""


class ChatProjection:
    """See engine.Projection, and engine.Patient: sent text cannot be recalled."""

    name = "chat"
    waits_for_worker: Literal[True] = True

    def view0(self, after: int) -> ChatView:
        """See Projection.view0."""
        return ChatView(_NO_RUN, after)

    def live(self, view: ChatView) -> tuple[ChatView, list[bytes]]:
        """See Projection.live."""
        if not view.replaying:
            return view, []
        edge = replace(view, replaying=False, held=None, after=-1, stands=NEVER, drafted=False)
        return edge, released(view.held) if view.held is not None else []

    def stand(self, view: ChatView, attempt: int) -> ChatView:
        """See Patient.stand."""
        return replace(view, stands=attempt)

    def reached(self, view: ChatView, seq: int) -> bool:
        """See Resumable.reached: positions are numbers of entries."""
        return view.after <= seq

    def over(self, view: ChatView) -> bool:
        """See Projection.over: stream_restarted ends a stream."""
        return view.over

    def step(self, view: ChatView, entry: e.Entry) -> tuple[ChatView, list[bytes]]:
        """See Projection.step."""
        if view.over:
            return view, []
        match entry.event:
            case e.TextDelta(text, refusal):
                return _text(view, entry, text, refusal) if text else (view, [])
            case e.ReasoningDelta(text):
                return _send_deltas(
                    replace(view, thinking=True), entry, [encode({"reasoning_content": text})], draft=True
                )
            case e.RunAccepted() as accepted:
                return replace(view, fixed=_fixed(entry, accepted)), []
            case e.MessageCompleted() as said:
                return _message(view, entry, said)
            case e.AttemptStarted(keeps=keeps):
                return (view, []) if keeps else _restart(view, entry)
            case e.RunCompleted() | e.RunInterrupted() | e.RunFailed() | e.RunCancelled() as end:
                return _end(view, entry, end)
            case event:
                return _tool_event(view, entry, event)


def _tool_event(view: ChatView, entry: e.Entry, event: e.AnyEvent) -> tuple[ChatView, list[bytes]]:
    match event:
        case e.ToolStarted():
            return _started(view, entry, event)
        case e.ToolFinished():
            return _finished(view, entry, event)
        case e.CallBegun():
            return _begun(view, entry, event)
        case e.ApprovalRequested():
            return _ask(view, entry, event)
        case e.SteerApplied():
            return _steered(view, entry, event)
        case _:
            return view, []


class ContinuedChat(Continued, ChatProjection):
    """The rest of a run as a completion of its own."""

    def first_view(self, view: ChatView) -> ChatView:
        """See RestOfRun.first_view."""
        fixed = view.fixed
        identity = {**fixed.identity, "id": self.shown_id}
        fixed = Fixed(fixed.spec, _head(identity), fixed.tail, identity)
        fresh = ChatView(fixed, view.after, replaying=view.replaying, stands=view.stands)
        return replace(fresh, calls=view.calls, client_calls=view.client_calls)


def _ask(view: ChatView, entry: e.Entry, asked: e.ApprovalRequested) -> tuple[ChatView, list[bytes]]:
    """The question ends this answer; the run waits."""
    view = replace(view, after=min(view.after, entry.seq - 1))
    view, frames = _conclude(view, entry, [encode({"content": question(asked, entry.run)})], "stop")
    return replace(view, over=True), frames


def _fixed(entry: e.Entry, accepted: e.RunAccepted) -> Fixed:
    spec = accepted.spec
    identity: dict[str, object] = {
        "id": wire_id("chat", entry.run),
        "object": "chat.completion.chunk",
        "created": entry.at // 1000,
        "model": spec.model,
    }
    head = _head(identity)
    tail = b',"usage":null' if spec.include_usage else b""
    return Fixed(spec.for_readers(), head, tail, identity)


def _head(identity: dict[str, object]) -> bytes:
    return b"data: " + encode(identity)[:-1] + b',"choices":[{"index":0,"delta":'


def _chunk(fixed: Fixed, delta: bytes, finish: bytes, seq: int | None) -> bytes:
    number = b',"sequence_number":%d' % seq if seq is not None else b""
    return fixed.head + delta + b',"finish_reason":' + finish + b"}]" + fixed.tail + number + b"}\n\n"


def _send_deltas(
    view: ChatView,
    entry: e.Entry,
    deltas: list[bytes],
    *,
    draft: bool = False,
    finish: bytes = b"null",
    last: bool = True,
) -> tuple[ChatView, list[bytes]]:
    """Send chunks for one entry: the role first, the number on the last (B6) unless a usage chunk follows."""
    fixed = view.fixed
    number = entry.seq if fixed.spec.store and last else None
    frames = [_chunk(fixed, delta, b"null", None) for delta in deltas[:-1]]
    frames.append(_chunk(fixed, deltas[-1], finish, number))
    view, role = _begin(view, entry)
    view, frames = _send(view, entry, frames, draft=draft)
    return view, role + frames


def _begin(view: ChatView, entry: e.Entry) -> tuple[ChatView, list[bytes]]:
    """The role chunk, before anything else of a run. It is sent at once, before the held frames."""
    if view.begun:
        return view, []
    seen = view.replaying and entry.seq <= view.after
    return replace(view, begun=True), [] if seen else [_chunk(view.fixed, ROLE, b"null", None)]


def _send(view: ChatView, entry: e.Entry, frames: list[bytes], *, draft: bool) -> tuple[ChatView, list[bytes]]:
    if not view.replaying:
        return view, frames
    if entry.seq <= view.after:
        frames = []
    if not draft or entry.attempt >= view.stands:
        return replace(view, held=None, drafted=view.drafted or draft), [*released(view.held), *frames]
    held = view.held
    for frame in frames:
        held = (held, frame)
    return replace(view, held=held), []


def _text(view: ChatView, entry: e.Entry, text: str, refusal: bool) -> tuple[ChatView, list[bytes]]:
    if refusal:
        view, frames = _send_deltas(view, entry, [encode({"refusal": text})], draft=True)
        return (replace(view, draft_from=entry.seq) if view.draft_from < 0 else view), frames
    at_once = not view.replaying or (view.drafted and entry.seq > view.after)
    if at_once and view.begun and view.draft_from >= 0:
        fixed = view.fixed  # the hot path: one piece of text in the middle of a message
        number = entry.seq if fixed.spec.store else None
        return view, [_chunk(fixed, b'{"content":' + encode(text) + b"}", b"null", number)]
    first = view.draft_from < 0
    if first and view.gap:
        text = "\n\n" + text
    view, frames = _send_deltas(view, entry, [encode({"content": text})], draft=True)
    return (replace(view, draft_from=entry.seq) if first else view), frames


def _message(view: ChatView, entry: e.Entry, said: e.MessageCompleted) -> tuple[ChatView, list[bytes]]:
    deltas: list[bytes] = []
    if said.reasoning and not view.thinking:
        deltas.append(encode({"reasoning_content": said.reasoning}))
    if said.text and view.draft_from < 0:
        deltas.append(encode({"content": "\n\n" + said.text if view.gap else said.text}))
    if said.refusal and view.draft_from < 0:
        deltas.append(encode({"refusal": said.refusal}))
    view, frames = _send_deltas(view, entry, deltas) if deltas else _send(view, entry, [], draft=False)
    client = tuple(call for call in said.calls if call.client)
    gap = not said.text[-1].isspace() if said.text else view.gap
    usage = view.usage.plus(said.usage)
    view = replace(view, draft_from=-1, thinking=False, gap=gap, usage=usage, client_calls=client, drafted=False)
    return view, frames


def _restart(view: ChatView, entry: e.Entry) -> tuple[ChatView, list[bytes]]:
    """A new attempt drops the held frames of a replay. A reader who got text of the draft, live or before it
    reconnected, gets an error: sent text cannot be recalled (G3)."""
    view = replace(view, preparing="")
    visible = not view.replaying or view.drafted or view.draft_from <= view.after < entry.seq
    if view.draft_from < 0 or not visible:
        return replace(view, held=None, draft_from=-1, thinking=False, drafted=False), []
    message = "The run was taken over after a failure and its text starts again. Reattach to replay it."
    return replace(view, over=True), [error_frame("stream_restarted", message)]


def _progress(
    view: ChatView, entry: e.Entry, fields: dict[str, object], description: str
) -> tuple[ChatView, list[bytes]]:
    fixed = view.fixed
    done = fields["status"] == "completed"
    body: dict[str, object] = {}
    if fixed.spec.tool_progress == "compatible":
        body |= fixed.identity
        body["choices"] = [{"index": 0, "delta": {}, "finish_reason": None}]
        body["event"] = {"type": "status", "data": {"description": description, "done": done}}
    body |= fields
    if fixed.spec.store:
        body["sequence_number"] = entry.seq
    view, role = _begin(view, entry)
    view, frames = _send(view, entry, [_PROGRESS + encode(body) + b"\n\n"], draft=False)
    return view, role + frames


def _steered(view: ChatView, entry: e.Entry, steer: e.SteerApplied) -> tuple[ChatView, list[bytes]]:
    """A status line, in a chunk that changes nothing."""
    fixed = view.fixed
    if fixed.spec.tool_progress != "compatible":
        return view, []
    text, _ = bounded(messages_text(steer.messages), STEER_BYTES)
    choices = [{"index": 0, "delta": {}, "finish_reason": None}]
    shown = {"type": "status", "data": {"description": f"📝 {text}", "done": True}}
    body: dict[str, object] = {**fixed.identity, "choices": choices, "event": shown, "steer": {"id": steer.id}}
    if fixed.spec.include_usage:
        body["usage"] = None
    if fixed.spec.store:
        body["sequence_number"] = entry.seq
    view, role = _begin(view, entry)
    view, frames = _send(view, entry, [data_frame(body)], draft=False)
    return view, role + frames


def _tool_fields(started: e.ToolStarted, status: str) -> dict[str, object]:
    arguments = arguments_object(started.call.arguments)
    return {
        "tool": started.call.name,
        "name": started.call.name,
        "emoji": started.emoji,
        "label": started.label,
        "toolCallId": started.call.id,
        "status": status,
        "input": arguments,
        "args": arguments,
    }


def _started(view: ChatView, entry: e.Entry, started: e.ToolStarted) -> tuple[ChatView, list[bytes]]:
    if started.call.id in view.calls:
        return view, []
    view = replace(view, calls={**view.calls, started.call.id: started}, preparing="")
    if hidden(started.call.name) or view.fixed.spec.tool_progress == "off":
        return view, []
    return _progress(view, entry, _tool_fields(started, "running"), _status_line(started))


def _finished(view: ChatView, entry: e.Entry, finished: e.ToolFinished) -> tuple[ChatView, list[bytes]]:
    started = view.calls.get(finished.call_id)
    spec = view.fixed.spec
    if started is None or hidden(started.call.name) or spec.tool_progress == "off":
        return view, []
    output, truncated = bounded(finished.output, spec.output_bound)
    fields = _tool_fields(started, "completed")
    fields |= {
        "output": output,
        "result": output,
        "isError": finished.is_error,
        "durationMs": finished.duration_ms,
        "truncated": truncated,
    }
    return _progress(view, entry, fields, f"{_status_line(started)} · {_outcome_text(finished)}")


def _begun(view: ChatView, entry: e.Entry, begun: e.CallBegun) -> tuple[ChatView, list[bytes]]:
    """A status line while the model writes a call. It is no tool progress: exactly two of those belong to a call (B3).
    So it comes only where front ends read status lines."""
    if hidden(begun.name) or view.fixed.spec.tool_progress != "compatible":
        return view, []
    view = replace(view, preparing=f"{begun.emoji} Preparing {begun.name}".strip())
    view, role = _begin(view, entry)
    seq = entry.seq if view.fixed.spec.store else None
    view, frames = _send(view, entry, [_status(view, view.preparing, seq, done=False)], draft=True)
    return view, role + frames


def _status(view: ChatView, description: str, seq: int | None, *, done: bool) -> bytes:
    """A chunk without text that carries a status line."""
    fixed = view.fixed
    body: dict[str, object] = {**fixed.identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
    body |= {"usage": None} if fixed.spec.include_usage else {}
    body["event"] = {"type": "status", "data": {"description": description, "done": done}}
    body |= {} if seq is None else {"sequence_number": seq}
    return b"data: " + encode(body) + b"\n\n"


def _status_line(started: e.ToolStarted) -> str:
    return f"{started.emoji} {started.label}".strip()


def _outcome_text(finished: e.ToolFinished) -> str:
    """How a call ended. Without it, a front end that keeps both lines of a call would show the same line twice."""
    took = f"{finished.duration_ms / 1000:.1f} s"
    if finished.outcome == "unknown":
        return "outcome unknown"
    return f"failed after {took}" if finished.is_error else took


def _end(view: ChatView, entry: e.Entry, end: e.Terminal) -> tuple[ChatView, list[bytes]]:
    view = replace(view, after=min(view.after, entry.seq - 1))
    handed = [encode({"tool_calls": [handed_call(n, call)]}) for n, call in enumerate(view.client_calls)]
    match end:
        case e.RunFailed():
            view, frames = _send(view, entry, [data_frame(Error(failure_object(end)))], draft=False)
        case e.RunCancelled():
            error = error_frame("run_cancelled", "The run was cancelled.")
            view, frames = _send(view, entry, [error], draft=False)
        case e.RunInterrupted(reason):
            view, frames = _conclude(view, entry, handed, FINISH[reason])
        case _:
            view, frames = _conclude(view, entry, handed, "tool_calls" if handed else "stop")
    return replace(view, over=True), frames


def _conclude(view: ChatView, entry: e.Entry, deltas: list[bytes], reason: str) -> tuple[ChatView, list[bytes]]:
    """The last chunks of an answer."""
    fixed = view.fixed
    last = not fixed.spec.include_usage
    closed: list[bytes] = []
    if view.preparing:  # no tool was started after all
        line = _status(view, view.preparing, None, done=True)
        view, closed = _send(replace(view, preparing=""), entry, [line], draft=False)
    view, frames = _send_deltas(view, entry, [*deltas, b"{}"], finish=encode(reason), last=last)
    frames = closed + frames
    if fixed.spec.include_usage:
        usage = {**fixed.identity, "choices": [], "usage": usage_object(view.usage)}
        frames.append(data_frame({**usage, "sequence_number": entry.seq} if fixed.spec.store else usage))
    frames[-1] += DONE
    return view, frames


def handed_call(n: int, call: e.Call) -> dict[str, object]:
    """A call for the caller, as a chunk shows it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": n, "id": call.id, "type": "function", "function": function}


def usage_object(usage: e.Usage) -> ChatUsage:
    """Usage as Chat Completions counts it."""
    return ChatUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details={"cached_tokens": usage.cached_tokens},
        completion_tokens_details={"reasoning_tokens": usage.reasoning_tokens},
    )
