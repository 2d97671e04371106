"""Chat Completions as a stream. Owns: the chunks of a run (B2), tool progress out of band (B3, B4) and what a reader
who reconnects gets (B6, G3). Positions are journal seqs. Refuses to know: engines and HTTP.

Theory of operation. A replay holds back the deltas of a message until the message is complete, so a later reader never
sees a draft that a crash dropped. Deltas of the last attempt need not be held: the engine says which one that is. At
the live edge, the held deltas belong to the current attempt and are sent. The role chunk is never held. A live reader
gets deltas at once. If another attempt then drops the draft, its stream ends with the error `stream_restarted`, because
sent text cannot be recalled. A view at the live edge depends on the journal alone, so live readers share one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

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
_CHOICE = b',"choices":[{"index":0,"delta":'


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
    """See Projection: the end of the run was sent, or stream_restarted."""
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

    def step(self, view: ChatView, entry: e.Entry) -> tuple[ChatView, list[bytes]]:
        """See Projection.step."""
        show = None if view.over else _SHOWS.get(type(entry.event))
        return (view, []) if show is None else show(view, entry, entry.event)


class ContinuedChat(Continued, ChatProjection):
    """The rest of a run as a completion of its own."""

    def first_view(self, view: ChatView) -> ChatView:
        """See RestOfRun.first_view."""
        fixed = view.fixed
        identity = {**fixed.identity, "id": self.shown_id}
        fixed = Fixed(fixed.spec, b"data: " + encode(identity)[:-1] + _CHOICE, fixed.tail, identity)
        fresh = ChatView(fixed, view.after, replaying=view.replaying, stands=view.stands)
        return replace(fresh, calls=view.calls, client_calls=view.client_calls)


def _ask(view: ChatView, entry: e.Entry, asked: e.ApprovalRequested) -> tuple[ChatView, list[bytes]]:
    """The question ends this answer; the run waits."""
    view = replace(view, after=min(view.after, entry.seq - 1))
    view, frames = _conclude(view, entry, [encode({"content": question(asked, entry.run)})], "stop")
    return replace(view, over=True), frames


def _accepted(view: ChatView, entry: e.Entry, accepted: e.RunAccepted) -> tuple[ChatView, list[bytes]]:
    spec = accepted.spec
    identity: dict[str, object] = {
        "id": wire_id("chat", entry.run),
        "object": "chat.completion.chunk",
        "created": entry.at // 1000,
        "model": spec.model,
    }
    tail = b',"usage":null' if spec.include_usage else b""
    head = b"data: " + encode(identity)[:-1] + _CHOICE
    return replace(view, fixed=Fixed(spec.for_readers(), head, tail, identity)), []


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
    return _send(view, entry, frames, draft=draft)


def _send(
    view: ChatView, entry: e.Entry, frames: list[bytes], *, draft: bool = False, opens: bool = True
) -> tuple[ChatView, list[bytes]]:
    """Send frames. A replay holds those of a draft. `opens`: after the role chunk, which is before anything else of a
    run, and goes at once, before held frames."""
    role: list[bytes] = []
    if opens and not view.begun:
        seen = view.replaying and entry.seq <= view.after
        view, role = replace(view, begun=True), [] if seen else [_chunk(view.fixed, ROLE, b"null", None)]
    if not view.replaying:
        return view, role + frames
    if entry.seq <= view.after:
        frames = []
    if not draft or entry.attempt >= view.stands:
        view, held = replace(view, held=None, drafted=view.drafted or draft), view.held
        return view, [*role, *released(held), *frames]
    held = view.held
    for frame in frames:
        held = (held, frame)
    return replace(view, held=held), role


def _text(view: ChatView, entry: e.Entry, said: e.TextDelta) -> tuple[ChatView, list[bytes]]:
    text = said.text
    if not text:
        return view, []
    if said.refusal:
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


def _thought(view: ChatView, entry: e.Entry, thought: e.ReasoningDelta) -> tuple[ChatView, list[bytes]]:
    view = replace(view, thinking=True)
    return _send_deltas(view, entry, [encode({"reasoning_content": thought.text})], draft=True)


def _message(view: ChatView, entry: e.Entry, said: e.MessageCompleted) -> tuple[ChatView, list[bytes]]:
    deltas: list[bytes] = []
    if said.reasoning and not view.thinking:
        deltas.append(encode({"reasoning_content": said.reasoning}))
    if said.text and view.draft_from < 0:
        deltas.append(encode({"content": "\n\n" + said.text if view.gap else said.text}))
    if said.refusal and view.draft_from < 0:
        deltas.append(encode({"refusal": said.refusal}))
    view, frames = _send_deltas(view, entry, deltas) if deltas else _send(view, entry, [], opens=False)
    client = tuple(call for call in said.calls if call.client)
    gap = not said.text[-1].isspace() if said.text else view.gap
    usage = view.usage.plus(said.usage)
    view = replace(view, draft_from=-1, thinking=False, gap=gap, usage=usage, client_calls=client, drafted=False)
    return view, frames


def _restart(view: ChatView, entry: e.Entry, started: e.AttemptStarted) -> tuple[ChatView, list[bytes]]:
    """A new attempt drops the held frames of a replay. A reader who got text of the draft, live or before it
    reconnected, gets an error: sent text cannot be recalled (G3)."""
    if started.keeps:
        return view, []
    view = replace(view, preparing="")
    visible = not view.replaying or view.drafted or view.draft_from <= view.after < entry.seq
    if view.draft_from < 0 or not visible:
        return replace(view, held=None, draft_from=-1, thinking=False, drafted=False), []
    message = "The run was taken over after a failure and its text starts again. Reattach to replay it."
    return replace(view, over=True), [error_frame("stream_restarted", message)]


def _started(view: ChatView, entry: e.Entry, started: e.ToolStarted) -> tuple[ChatView, list[bytes]]:
    if started.call.id in view.calls:
        return view, []
    view = replace(view, calls={**view.calls, started.call.id: started}, preparing="")
    return _progress(view, entry, started, None, "")


def _finished(view: ChatView, entry: e.Entry, finished: e.ToolFinished) -> tuple[ChatView, list[bytes]]:
    """The outcome is shown. Without it, a front end that keeps both lines of a call would show the same line twice."""
    started = view.calls.get(finished.call_id)
    if started is None:
        return view, []
    outcome = f"{finished.duration_ms / 1000:.1f} s"
    if finished.outcome == "unknown":
        outcome = "outcome unknown"
    elif finished.is_error:
        outcome = f"failed after {outcome}"
    return _progress(view, entry, started, finished, outcome)


def _progress(
    view: ChatView, entry: e.Entry, started: e.ToolStarted, finished: e.ToolFinished | None, outcome: str
) -> tuple[ChatView, list[bytes]]:
    """Tool progress: a call has started or, with `finished`, has a result. Exactly two events belong to a call (B3)."""
    fixed, call = view.fixed, started.call
    spec = fixed.spec
    if hidden(call.name) or spec.tool_progress == "off":
        return view, []
    body: dict[str, object] = {}
    if spec.tool_progress == "compatible":
        line = f"{started.emoji} {started.label}".strip()
        shown = {"description": line, "done": False}
        if finished is not None:
            shown = {"description": f"{line} · {outcome}", "done": True}
        body |= fixed.identity
        body["choices"] = [{"index": 0, "delta": {}, "finish_reason": None}]
        body["event"] = {"type": "status", "data": shown}
    arguments = arguments_object(call.arguments)
    body |= {
        "tool": call.name,
        "name": call.name,
        "emoji": started.emoji,
        "label": started.label,
        "toolCallId": call.id,
        "status": "running" if finished is None else "completed",
        "input": arguments,
        "args": arguments,
    }
    if finished is not None:
        output, truncated = bounded(finished.output, spec.output_bound)
        body |= {"output": output, "result": output, "isError": finished.is_error}
        body |= {"durationMs": finished.duration_ms, "truncated": truncated}
    if spec.store:
        body["sequence_number"] = entry.seq
    return _send(view, entry, [_PROGRESS + encode(body) + b"\n\n"])


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
    return _send(view, entry, [data_frame(body)])


def _begun(view: ChatView, entry: e.Entry, begun: e.CallBegun) -> tuple[ChatView, list[bytes]]:
    """A status line while the model writes a call, which is no tool progress: only where front ends read such lines."""
    if hidden(begun.name) or view.fixed.spec.tool_progress != "compatible":
        return view, []
    view = replace(view, preparing=f"{begun.emoji} Preparing {begun.name}".strip())
    seq = entry.seq if view.fixed.spec.store else None
    return _send(view, entry, [_status(view, view.preparing, seq, done=False)], draft=True)


def _status(view: ChatView, description: str, seq: int | None, *, done: bool) -> bytes:
    """A chunk without text that carries a status line."""
    fixed = view.fixed
    body: dict[str, object] = {**fixed.identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
    body |= {"usage": None} if fixed.spec.include_usage else {}
    body["event"] = {"type": "status", "data": {"description": description, "done": done}}
    body |= {} if seq is None else {"sequence_number": seq}
    return b"data: " + encode(body) + b"\n\n"


def _end(view: ChatView, entry: e.Entry, end: e.Terminal) -> tuple[ChatView, list[bytes]]:
    view = replace(view, after=min(view.after, entry.seq - 1))
    handed = [encode({"tool_calls": [handed_call(n, call)]}) for n, call in enumerate(view.client_calls)]
    match end:
        case e.RunFailed():
            view, frames = _send(view, entry, [data_frame(Error(failure_object(end)))], opens=False)
        case e.RunCancelled():
            error = error_frame("run_cancelled", "The run was cancelled.")
            view, frames = _send(view, entry, [error], opens=False)
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
        view, closed = _send(replace(view, preparing=""), entry, [line], opens=False)
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


_SHOWS: dict[type[e.Event], Callable[[ChatView, e.Entry, Any], tuple[ChatView, list[bytes]]]] = {
    e.TextDelta: _text,
    e.ReasoningDelta: _thought,
    e.RunAccepted: _accepted,
    e.AttemptStarted: _restart,
    e.MessageCompleted: _message,
    e.CallBegun: _begun,
    e.ToolStarted: _started,
    e.ToolFinished: _finished,
    e.ApprovalRequested: _ask,
    e.SteerApplied: _steered,
    **dict.fromkeys((e.RunCompleted, e.RunInterrupted, e.RunFailed, e.RunCancelled), _end),
}
"""What a reader is sent for each kind of event. The others are not shown."""
