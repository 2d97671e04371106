"""Messages as a stream. Owns: the events of a run, message_start to message_stop, and what a reader who reconnects gets
(G3). Refuses to know: engines and HTTP.

Theory of operation. Blocks are sent one after the other and numbered without a gap, so a number depends on the blocks
before it. As on chat, a replay holds back the blocks of a draft until the message is complete, or until the engine says
that the draft is of the last attempt. If a crash dropped the draft, it forgets them, numbers included. A live reader
gets them at once, and `stream_restarted` if the draft is dropped. A thought before the text of a message is sent as it
comes. A thought after the text has begun waits for the end of the text, because a text is one block. Tool blocks are
facts and sent whole. There are no positions: a reader who reconnects gets the whole stream."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.ids import is_call_of, wire_id
from ninelives.core.rope import Rope, grow, join
from ninelives.core.spec import Spec
from ninelives.dialects.approval import Continued, RestOfRun, question
from ninelives.dialects.messages import blocks
from ninelives.dialects.messages.errors import error_frame, failure_frame
from ninelives.dialects.messages.shapes import StopReason
from ninelives.dialects.shared import Held, hidden, released
from ninelives.dialects.sse import encode, named_frame

STOP: dict[str, StopReason] = {
    "max_output_tokens": "max_tokens",
    "max_messages": "max_tokens",
    "budget": "max_tokens",
    "content_filter": "refusal",
    "interrupted": "end_turn",
    "steered": "end_turn",
}
RESTARTED = "The run was taken over after a failure and its text starts again. Send the same request to replay it."
Shown = tuple["MessagesView", list[bytes]]
NEVER = 2**62


class Draft(Struct, frozen=True):
    """The message that is being written."""

    first: int = 0
    """The number of its first block."""
    open: Literal["", "text", "thinking"] = ""
    opened: int = -1
    """Where the open thought began."""
    visible: bool = False
    """A frame of it was sent, or is held."""
    texting: bool = False
    """Its text has begun, though it may be empty so far."""
    spoke: bool = False
    thought: bool = False
    late: tuple[tuple[int, Rope | None], ...] = ()
    """Thoughts that came after the text had begun: where each began, and its text."""
    musing: bool = False
    """The last of them goes on."""
    sent: bool = False
    """A replay has sent frames of it."""


class MessagesView(Struct, frozen=True):
    """Where a reader stands."""

    spec: Spec | None = None
    run: str = ""
    shown_id: str = ""
    replaying: bool = True
    begun: bool = False
    """message_start was sent."""
    held: Held = None
    index: int = 0
    """The number of the next block, or of the open one."""
    draft: Draft = Draft()
    usage: e.Usage = e.Usage()
    calls: dict[str, str] = {}
    """Names of the calls that were started."""
    client_calls: tuple[e.Call, ...] = ()
    refused: bool = False
    """The last message was a refusal."""
    over: bool = False
    """See Projection: the end of the run was sent, a question, or stream_restarted."""
    muted: bool = False
    asked: str = ""
    """While muted: the code of the last question."""
    stands: int = NEVER
    """Drafts of this attempt and of later ones are sent at once."""


class MessagesProjection:
    """See engine.Projection, and engine.Patient: sent text cannot be recalled."""

    name = "messages"
    waits_for_worker: Literal[True] = True

    def view0(self, after: int) -> MessagesView:
        """See Projection.view0: this dialect has no positions."""
        return MessagesView()

    def live(self, view: MessagesView) -> Shown:
        """See Projection.live."""
        if not view.replaying:
            return view, []
        draft = replace(view.draft, sent=False)
        return replace(view, replaying=False, held=None, stands=NEVER, draft=draft), released(view.held)

    def stand(self, view: MessagesView, attempt: int) -> MessagesView:
        """See Patient.stand."""
        return replace(view, stands=attempt)

    def step(self, view: MessagesView, entry: e.Entry) -> Shown:
        """See Projection.step."""
        if view.over:
            return view, []
        match entry.event:
            case e.TextDelta(text):
                return _text(view, entry, text)
            case e.ReasoningDelta(text):
                return _reasoning(view, entry, text)
            case e.RunAccepted(spec=spec):
                shown_id = wire_id("messages", entry.run)
                return replace(view, spec=spec.for_readers(), run=entry.run, shown_id=shown_id), []
            case e.MessageCompleted() as said:
                return _message(view, entry, said)
            case e.AttemptStarted(keeps=keeps):
                return (view, []) if keeps else _restart(view)
            case e.RunCompleted() | e.RunInterrupted() | e.RunFailed() | e.RunCancelled() as end:
                return _end(view, end)
            case _:
                return _tool_event(view, entry)


class ContinuedMessages(Continued, MessagesProjection):
    """The rest of a run after a question was answered, as a message of its own."""

    def first_view(self, view: MessagesView) -> MessagesView:
        """See RestOfRun.first_view."""
        return _first_view(view, self.shown_id)


class ResumedMessages(RestOfRun, MessagesProjection):
    """The rest of a run for a caller who has the blocks up to some call, or up to its result (B8). Where the call is of
    an earlier run, which can no longer be joined, all of this run is shown."""

    def __init__(self, call: str, shown_id: str, *, finished: bool) -> None:
        super().__init__(call, shown_id)
        self._call = call
        self._finished = finished

    def first_view(self, view: MessagesView) -> MessagesView:
        """See RestOfRun.first_view."""
        return _first_view(view, self.shown_id)

    def begins_after(self, view: MessagesView, entry: e.Entry) -> bool:
        """See RestOfRun.begins_after."""
        match entry.event:
            case e.RunAccepted():
                return not is_call_of(self._call, entry.run)
            case e.ToolStarted(call=call):
                return not self._finished and call.id == self._call
            case e.ToolFinished(call_id=finished):
                return finished == self._call
            case _:
                return False

    def step(self, view: MessagesView, entry: e.Entry) -> Shown:
        """See Projection.step. A run that ends without that call, which a caller may have made up, shows its end."""
        if view.muted and isinstance(entry.event, e.Terminal):
            view = self.first_view(view)
        return super().step(view, entry)


def _first_view(view: MessagesView, shown_id: str) -> MessagesView:
    """The view with which the rest of a run begins."""
    fresh = MessagesView(view.spec, view.run, shown_id, view.replaying)
    return replace(fresh, calls=view.calls, client_calls=view.client_calls, stands=view.stands)


def _known(view: MessagesView) -> Spec:
    if view.spec is None:
        raise ValueError("a journal begins with RunAccepted")
    return view.spec


# Frames


def _event(kind: bytes, fields: dict[str, object]) -> bytes:
    return named_frame(kind, encode({"type": kind.decode(), **fields}))


def _start(index: int, block: blocks.Block) -> bytes:
    return _event(b"content_block_start", {"index": index, "content_block": block})


def _delta(index: int, kind: bytes, field: bytes, text: str) -> bytes:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d' % index
    return b"".join((head, b',"delta":{"type":"', kind, b'","', field, b'":', encode(text), b"}}\n\n"))


def _stop(index: int) -> bytes:
    return _event(b"content_block_stop", {"index": index})


def _thinking_block(view: MessagesView, seq: int, text: str) -> list[bytes]:
    """A whole thought."""
    return [
        _start(view.index, blocks.thinking("", "")),
        _delta(view.index, b"thinking_delta", b"thinking", text),
        *_signed(view, seq),
    ]


def _signed(view: MessagesView, seq: int) -> list[bytes]:
    """The end of a thought."""
    signature = blocks.signature(view.run, seq)
    return [_delta(view.index, b"signature_delta", b"signature", signature), _stop(view.index)]


def _text_block(index: int, text: str) -> list[bytes]:
    """A whole text."""
    return [_start(index, blocks.text("")), _delta(index, b"text_delta", b"text", text), _stop(index)]


def _handed(index: int, call: e.Call) -> list[bytes]:
    """A call for the caller."""
    block = blocks.client_call(call)
    whole = encode(block["input"]).decode()
    return [
        _start(index, {**block, "input": {}}),
        _delta(index, b"input_json_delta", b"partial_json", whole),
        _stop(index),
    ]


def _begin(view: MessagesView) -> Shown:
    """message_start, before anything else of a run. It is never held."""
    if view.begun:
        return view, []
    message = blocks.message(view.shown_id, _known(view).model, [], None, e.Usage())
    return replace(view, begun=True), [_event(b"message_start", {"message": message})]


def _send(view: MessagesView, frames: list[bytes]) -> Shown:
    """Send frames of a fact, after the held frames: the draft before a fact is complete."""
    earlier = released(view.held)
    view, start = _begin(view) if frames else (view, [])
    return replace(view, held=None) if earlier else view, start + earlier + frames


def _send_draft(view: MessagesView, entry: e.Entry, frames: list[bytes]) -> Shown:
    """Send frames of a draft; a replay holds them, unless it stands."""
    view, start = _begin(view)
    if not view.replaying:
        return view, start + frames
    if entry.attempt >= view.stands:
        view, earlier = replace(view, held=None, draft=replace(view.draft, sent=True)), released(view.held)
        return view, start + earlier + frames
    held = view.held
    for frame in frames:
        held = (held, frame)
    return replace(view, held=held), start


# One function per kind of event


def _text(view: MessagesView, entry: e.Entry, text: str) -> Shown:
    draft, index = view.draft, view.index
    if draft.open == "text" and (draft.sent or not view.replaying) and not draft.musing:
        return view, [_delta(index, b"text_delta", b"text", text)] if text else []  # the hot path
    frames: list[bytes] = []
    if draft.open == "thinking":
        frames, index = _signed(view, draft.opened), index + 1
        draft = replace(draft, open="", opened=-1)
    draft = replace(draft, texting=True, musing=False)
    if text:
        frames += [] if draft.open else [_start(index, blocks.text(""))]
        frames.append(_delta(index, b"text_delta", b"text", text))
        draft = replace(draft, open="text", visible=True, spoke=True)
    view = replace(view, draft=draft, index=index)
    return _send_draft(view, entry, frames) if frames else (view, [])


def _reasoning(view: MessagesView, entry: e.Entry, text: str) -> Shown:
    draft = view.draft
    if not blocks.shows_thinking(_known(view)):
        return view, []
    if draft.texting:
        *before, last = draft.late if draft.musing else (*draft.late, (entry.seq, None))
        draft = replace(draft, late=(*before, (last[0], grow(last[1], text))), musing=True, thought=True)
        return replace(view, draft=draft), []
    if draft.opened < 0:
        draft = replace(draft, opened=entry.seq)
    frames: list[bytes] = []
    if text:
        frames += [] if draft.open else [_start(view.index, blocks.thinking("", ""))]
        frames.append(_delta(view.index, b"thinking_delta", b"thinking", text))
        draft = replace(draft, open="thinking", visible=True, thought=True)
    view = replace(view, draft=draft)
    return _send_draft(view, entry, frames) if frames else (view, [])


def _message(view: MessagesView, entry: e.Entry, said: e.MessageCompleted) -> Shown:
    draft, spec = view.draft, _known(view)
    frames: list[bytes] = []
    if draft.open:
        frames += _signed(view, draft.opened) if draft.open == "thinking" else [_stop(view.index)]
        view = replace(view, index=view.index + 1)
    late = [(seq, join(rope)) for seq, rope in draft.late]
    if said.reasoning and not draft.thought and blocks.shows_thinking(spec):
        late = [(entry.seq, said.reasoning)]
    for seq, thought in late:
        if thought:
            frames += _thinking_block(view, seq, thought)
            view = replace(view, index=view.index + 1)
    if said.spoken and not draft.spoke:
        frames += _text_block(view.index, said.spoken)
        view = replace(view, index=view.index + 1)
    client = tuple(call for call in said.calls if call.client)
    usage = view.usage.plus(said.usage)
    view = replace(view, draft=Draft(first=view.index), usage=usage, client_calls=client, refused=bool(said.refusal))
    return _send(view, frames)


def _restart(view: MessagesView) -> Shown:
    """A new attempt drops the held frames of a replay. A live reader who got them gets an error (G3)."""
    if view.draft.visible and (view.draft.sent or not view.replaying):
        return _break(view, error_frame("api_error", RESTARTED, "stream_restarted"))
    first = view.draft.first
    return replace(view, held=None, index=first, draft=Draft(first=first)), []


def _tool_event(view: MessagesView, entry: e.Entry) -> Shown:
    event = entry.event
    match event:
        case e.ToolStarted(call=call) if call.id not in view.calls:
            view = replace(view, calls={**view.calls, call.id: call.name})
            return _tool(view, call.name, blocks.server_call(call, _known(view)))
        case e.ToolFinished(call_id=call_id) if call_id in view.calls:
            return _tool(view, view.calls[call_id], blocks.server_result(event, _known(view)))
        case e.ApprovalRequested():
            return _ask(view, event, entry.run)
        case _:
            return view, []


def _tool(view: MessagesView, name: str, block: blocks.Block) -> Shown:
    """A whole block of a server tool."""
    if hidden(name) or not blocks.shows_tools(_known(view)):
        return view, []
    frames = [_start(view.index, block), _stop(view.index)]
    view = replace(view, index=view.index + 1, draft=Draft(first=view.index + 1))
    return _send(view, frames)


def _ask(view: MessagesView, asked: e.ApprovalRequested, run: str) -> Shown:
    """The question ends this answer; the run waits (G11)."""
    frames = [*_text_block(view.index, question(asked, run).lstrip()), *_conclusion(view.usage, "end_turn")]
    return _send(replace(view, over=True), frames)


def _end(view: MessagesView, end: e.Terminal) -> Shown:
    match end:
        case e.RunFailed():
            return _break(view, failure_frame(end))
        case e.RunCancelled():
            return _break(view, error_frame("api_error", "The run was cancelled.", "run_cancelled"))
        case e.RunInterrupted(reason):
            frames = [*_all_handed(view), *_conclusion(view.usage, STOP[reason])]
        case _:
            stop: StopReason = "tool_use" if view.client_calls else "refusal" if view.refused else "end_turn"
            frames = [*_all_handed(view), *_conclusion(view.usage, stop)]
    return _send(replace(view, over=True), frames)


def _break(view: MessagesView, error: bytes) -> Shown:
    """An error is the last frame, and may be the only one."""
    return replace(view, over=True, held=None), [*released(view.held), error]


def _all_handed(view: MessagesView) -> list[bytes]:
    return [frame for n, call in enumerate(view.client_calls) for frame in _handed(view.index + n, call)]


def _conclusion(usage: e.Usage, reason: StopReason) -> list[bytes]:
    """The last events of a message."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    fields = {"delta": delta, "usage": blocks.usage_object(usage)}
    return [_event(b"message_delta", fields), _event(b"message_stop", {})]
