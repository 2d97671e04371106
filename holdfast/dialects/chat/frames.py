"""Chat Completions as a stream. Owns: the chunks of a run (B2), tool progress out of band (B3, B4) and what a reader
who comes back is shown (B6, G3). Positions are journal seqs. Refuses to know: engines and HTTP.

Theory of operation. A replay holds the deltas of a message back until the message is settled, so that a draft that a
crash dropped is never shown to somebody who comes later; at the live edge what is held is the tail of the current
attempt and is given out. The role chunk is no draft and is never held. A live reader sees deltas at once; if the run
is taken over after visible draft text, its stream ends with the error `stream_restarted`, because what it saw cannot
be taken back. A view at the live edge depends on the journal alone, so that all live readers can share one."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.ids import wire_id
from holdfast.core.spec import Spec
from holdfast.dialects.approval import Continued, question
from holdfast.dialects.shared import arguments_object, bounded, failure_object, hidden
from holdfast.dialects.sse import DONE, data_frame, encode, named_frame

FINISH = {"max_output_tokens": "length", "max_messages": "length", "content_filter": "content_filter"}


ROLE = b'{"role":"assistant","content":""}'


class Fixed(Struct, frozen=True):
    """What all chunks of a run share."""

    spec: Spec
    head: bytes
    tail: bytes
    identity: dict[str, object]


Held = tuple[Any, bytes] | None  # Any: an alias that names itself is beyond the type checker
"""Frames of a draft as cells (rest, frame), so that holding one more is O(1)."""


def _released(held: Held) -> list[bytes]:
    frames = []
    while held is not None:
        held, frame = held
        frames.append(frame)
    frames.reverse()
    return frames


class View(Struct, frozen=True):
    """Where a reader stands."""

    fixed: Fixed | None
    after: int
    replaying: bool = True
    begun: bool = False
    """The role chunk was sent."""
    held: Held = None
    draft_from: int = -1
    """Where the text of the current message begins, visible or held."""
    thinking: bool = False
    """Reasoning of the current message was told, or is held."""
    gap: bool = False
    """Text of an earlier message came before: the next one begins a paragraph."""
    usage: e.Usage = e.Usage()
    calls: dict[str, e.ToolStarted] = {}
    client_calls: tuple[e.Call, ...] = ()
    over: bool = False
    muted: bool = False
    asked: str = ""
    """While muted: the code of the last question."""


class ChatProjection:
    """See engine.Projection, and engine.Patient: what was shown cannot be taken back."""

    name = "chat"
    waits_for_worker: Literal[True] = True

    def view0(self, after: int) -> View:
        """See Projection.view0."""
        return View(None, after)

    def live(self, view: View) -> tuple[View, list[bytes]]:
        """See Projection.live."""
        if not view.replaying:
            return view, []
        return replace(view, replaying=False, held=None, after=-1), _released(view.held)

    def over(self, view: View) -> bool:
        """See Projection.over: a stream that was told stream_restarted ends there."""
        return view.over

    def step(self, view: View, entry: e.Entry) -> tuple[View, list[bytes]]:
        """See Projection.step."""
        if view.over:
            return view, []
        match entry.event:
            case e.TextDelta(text, refusal):
                return _text(view, entry, text, refusal) if text else (view, [])
            case e.ReasoningDelta(text):
                return _show(replace(view, thinking=True), entry, [_delta("reasoning_content", text)], draft=True)
            case e.RunAccepted() as accepted:
                return replace(view, fixed=_fixed(entry, accepted)), []
            case e.MessageCompleted() as said:
                return _message(view, entry, said)
            case e.AttemptStarted():
                return _restart(view, entry)
            case e.RunCompleted() | e.RunInterrupted() | e.RunFailed() | e.RunCancelled() as end:
                return _end(view, entry, end)
            case event:
                return _acted(view, entry, event)


def _acted(view: View, entry: e.Entry, event: e.AnyEvent) -> tuple[View, list[bytes]]:
    match event:
        case e.ToolStarted():
            return _started(view, entry, event)
        case e.ToolFinished():
            return _finished(view, entry, event)
        case e.ApprovalRequested():
            return _ask(view, entry, event)
        case _:
            return view, []


class ContinuedChat(Continued, ChatProjection):
    """The rest of a run as a completion of its own."""

    def _speak(self, view: View) -> View:
        fixed = _known(view)
        identity = {**fixed.identity, "id": self.shown_id}
        fixed = Fixed(fixed.spec, _head(identity), fixed.tail, identity)
        fresh = View(fixed, view.after, replaying=view.replaying)
        return replace(fresh, calls=view.calls, client_calls=view.client_calls)


def _ask(view: View, entry: e.Entry, asked: e.ApprovalRequested) -> tuple[View, list[bytes]]:
    """The question is the end of this answer; the run waits."""
    view = replace(view, after=min(view.after, entry.seq - 1))
    view, frames = _conclude(view, entry, [_delta("content", question(asked))], "stop")
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
    return Fixed(spec, head, tail, identity)


def _head(identity: dict[str, object]) -> bytes:
    return b"data: " + encode(identity)[:-1] + b',"choices":[{"index":0,"delta":'


def _known(view: View) -> Fixed:
    if view.fixed is None:
        raise ValueError("a journal begins with RunAccepted")
    return view.fixed


def _chunk(fixed: Fixed, delta: bytes, finish: bytes, seq: int | None) -> bytes:
    number = b',"sequence_number":%d' % seq if seq is not None else b""
    return fixed.head + delta + b',"finish_reason":' + finish + b"}]" + fixed.tail + number + b"}\n\n"


def _delta(field: str, text: str) -> bytes:
    return encode({field: text})


def _show(
    view: View, entry: e.Entry, deltas: list[bytes], *, draft: bool = False, finish: bytes = b"null", last: bool = True
) -> tuple[View, list[bytes]]:
    """Chunks for one entry: the role first, the number on the last (B6) unless a usage chunk follows."""
    fixed = _known(view)
    number = entry.seq if fixed.spec.store and last else None
    frames = [_chunk(fixed, delta, b"null", None) for delta in deltas[:-1]]
    frames.append(_chunk(fixed, deltas[-1], finish, number))
    view, role = _begin(view, entry)
    view, frames = _give(view, entry, frames, draft=draft)
    return view, role + frames


def _begin(view: View, entry: e.Entry) -> tuple[View, list[bytes]]:
    """The role chunk, before anything else that a run shows. It is told at once, so it comes before what is held."""
    if view.begun:
        return view, []
    seen = view.replaying and entry.seq <= view.after
    return replace(view, begun=True), [] if seen else [_chunk(_known(view), ROLE, b"null", None)]


def _give(view: View, entry: e.Entry, frames: list[bytes], *, draft: bool) -> tuple[View, list[bytes]]:
    if not view.replaying:
        return view, frames
    if entry.seq <= view.after:
        frames = []
    if not draft:
        return replace(view, held=None), [*_released(view.held), *frames]
    held = view.held
    for frame in frames:
        held = (held, frame)
    return replace(view, held=held), []


def _text(view: View, entry: e.Entry, text: str, refusal: bool) -> tuple[View, list[bytes]]:
    if refusal:
        view, frames = _show(view, entry, [_delta("refusal", text)], draft=True)
        return (replace(view, draft_from=entry.seq) if view.draft_from < 0 else view), frames
    if not view.replaying and view.begun and view.draft_from >= 0:
        fixed = view.fixed
        if fixed is not None:  # the hot path: one piece of text in the middle of a live message
            number = entry.seq if fixed.spec.store else None
            return view, [_chunk(fixed, b'{"content":' + encode(text) + b"}", b"null", number)]
    first = view.draft_from < 0
    if first and view.gap:
        text = "\n\n" + text
    view, frames = _show(view, entry, [_delta("content", text)], draft=True)
    return (replace(view, draft_from=entry.seq) if first else view), frames


def _message(view: View, entry: e.Entry, said: e.MessageCompleted) -> tuple[View, list[bytes]]:
    deltas: list[bytes] = []
    if said.reasoning and not view.thinking:
        deltas.append(_delta("reasoning_content", said.reasoning))
    if said.text and view.draft_from < 0:
        deltas.append(_delta("content", "\n\n" + said.text if view.gap else said.text))
    if said.refusal and view.draft_from < 0:
        deltas.append(_delta("refusal", said.refusal))
    view, frames = _show(view, entry, deltas) if deltas else _give(view, entry, [], draft=False)
    client = tuple(call for call in said.calls if call.client)
    gap = not said.text[-1].isspace() if said.text else view.gap
    usage = view.usage.plus(said.usage)
    return replace(view, draft_from=-1, thinking=False, gap=gap, usage=usage, client_calls=client), frames


def _restart(view: View, entry: e.Entry) -> tuple[View, list[bytes]]:
    """A new attempt: what a replay held back is gone; what a reader saw, live or before it came back into the middle
    of this draft, cannot be taken back (G3)."""
    visible = not view.replaying or view.draft_from <= view.after < entry.seq
    if view.draft_from < 0 or not visible:
        return replace(view, held=None, draft_from=-1, thinking=False), []
    message = "The run was taken over after a failure and its text starts again. Reattach to replay it."
    error = {"message": message, "type": "server_error", "param": None, "code": "stream_restarted"}
    return replace(view, over=True), [data_frame({"error": error})]


def _progress(view: View, entry: e.Entry, fields: dict[str, object], description: str) -> bytes:
    fixed = _known(view)
    done = fields["status"] == "completed"
    body: dict[str, object] = {}
    if fixed.spec.tool_progress == "compatible":
        body |= fixed.identity
        body["choices"] = [{"index": 0, "delta": {}, "finish_reason": None}]
        body["event"] = {"type": "status", "data": {"description": description, "done": done}}
    body |= fields
    if fixed.spec.store:
        body["sequence_number"] = entry.seq
    return named_frame(b"hermes.tool.progress", encode(body))


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


def _started(view: View, entry: e.Entry, started: e.ToolStarted) -> tuple[View, list[bytes]]:
    if started.call.id in view.calls:
        return view, []
    view = replace(view, calls={**view.calls, started.call.id: started})
    if hidden(started.call.name) or _known(view).spec.tool_progress == "off":
        return view, []
    frame = _progress(view, entry, _tool_fields(started, "running"), _status_line(started))
    return _give_progress(view, entry, frame)


def _finished(view: View, entry: e.Entry, finished: e.ToolFinished) -> tuple[View, list[bytes]]:
    started = view.calls.get(finished.call_id)
    spec = _known(view).spec
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
    frame = _progress(view, entry, fields, f"{_status_line(started)} · {_went(finished)}")
    return _give_progress(view, entry, frame)


def _status_line(started: e.ToolStarted) -> str:
    return f"{started.emoji} {started.label}".strip()


def _went(finished: e.ToolFinished) -> str:
    """How a call went. A front end that keeps both lines of a call would else show two that are alike."""
    took = f"{finished.duration_ms / 1000:.1f} s"
    if finished.outcome == "unknown":
        return "outcome unknown"
    return f"failed after {took}" if finished.is_error else took


def _give_progress(view: View, entry: e.Entry, frame: bytes) -> tuple[View, list[bytes]]:
    view, role = _begin(view, entry)
    view, frames = _give(view, entry, [frame], draft=False)
    return view, role + frames


def _end(view: View, entry: e.Entry, end: e.Terminal) -> tuple[View, list[bytes]]:
    view = replace(view, after=min(view.after, entry.seq - 1))
    handed = [encode({"tool_calls": [handed_call(n, call)]}) for n, call in enumerate(view.client_calls)]
    match end:
        case e.RunFailed():
            view, frames = _give(view, entry, [data_frame({"error": failure_object(end)})], draft=False)
        case e.RunCancelled():
            error = {"message": "The run was cancelled.", "type": "server_error", "param": None}
            view, frames = _give(view, entry, [data_frame({"error": {**error, "code": "run_cancelled"}})], draft=False)
        case e.RunInterrupted(reason):
            view, frames = _conclude(view, entry, handed, FINISH[reason])
        case _:
            view, frames = _conclude(view, entry, handed, "tool_calls" if handed else "stop")
    return replace(view, over=True), frames


def _conclude(view: View, entry: e.Entry, deltas: list[bytes], reason: str) -> tuple[View, list[bytes]]:
    """The last chunks of an answer."""
    fixed = _known(view)
    last = not fixed.spec.include_usage
    view, frames = _show(view, entry, [*deltas, b"{}"], finish=encode(reason), last=last)
    if fixed.spec.include_usage:
        usage = {**fixed.identity, "choices": [], "usage": usage_object(view.usage)}
        frames.append(data_frame({**usage, "sequence_number": entry.seq} if fixed.spec.store else usage))
    frames[-1] += DONE
    return view, frames


def handed_call(n: int, call: e.Call) -> dict[str, object]:
    """A call that the caller must carry out, as a chunk tells it."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": n, "id": call.id, "type": "function", "function": function}


def usage_object(usage: e.Usage) -> dict[str, object]:
    """Usage as Chat Completions tells it."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
