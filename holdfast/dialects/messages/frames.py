"""Messages as a stream. Owns: the events of a run, message_start to message_stop, and what a reader who comes back is
shown (G3). Refuses to know: engines and HTTP.

Theory of operation. Blocks are told one after the other and numbered without a gap, so a number depends on what was
shown before it. As on chat, a replay holds the blocks of a draft back until the message is settled, and forgets them,
numbers included, where a crash dropped the draft; a live reader sees them at once and is told `stream_restarted` when
the draft that it saw is dropped. Of a message, a thought before the text is told as it comes; one that comes after the
text has begun waits for the end of it, as a text is one block. Tool blocks are facts and told whole. There are no
positions: a reader who comes back gets the whole stream."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import events as e
from holdfast.core.ids import wire_id
from holdfast.core.rope import Rope, grow, join
from holdfast.core.spec import Spec
from holdfast.dialects.approval import Continued, question
from holdfast.dialects.messages import blocks
from holdfast.dialects.messages.errors import error_frame, failure_frame
from holdfast.dialects.shared import hidden
from holdfast.dialects.sse import encode, named_frame

STOP = {"max_output_tokens": "max_tokens", "max_messages": "max_tokens", "content_filter": "refusal"}
RESTARTED = "The run was taken over after a failure and its text starts again. Send the same request to replay it."
Held = tuple[Any, bytes] | None  # Any: an alias that names itself is beyond the type checker
"""Frames of a draft as cells (rest, frame), so that holding one more is O(1)."""
Shown = tuple["View", list[bytes]]


class Draft(Struct, frozen=True):
    """The message that is being written."""

    first: int = 0
    """The number of its first block."""
    open: Literal["", "text", "thinking"] = ""
    opened: int = -1
    """Where the open thought began."""
    told: bool = False
    """A frame of it was told, or is held."""
    texting: bool = False
    """Its text has begun, though it may be empty so far."""
    spoke: bool = False
    thought: bool = False
    late: tuple[tuple[int, Rope | None], ...] = ()
    """Thoughts that came after the text had begun: where each began, and its text."""
    musing: bool = False
    """The last of them goes on."""


class View(Struct, frozen=True):
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
    muted: bool = False
    asked: str = ""
    """While muted: the code of the last question."""


class MessagesProjection:
    """See engine.Projection."""

    name = "messages"

    def view0(self, after: int) -> View:
        """See Projection.view0: this dialect has no positions."""
        return View()

    def live(self, view: View) -> Shown:
        """See Projection.live."""
        if not view.replaying:
            return view, []
        return replace(view, replaying=False, held=None), _released(view.held)

    def over(self, view: View) -> bool:
        """See Projection.over: a question or stream_restarted ends a stream."""
        return view.over

    def step(self, view: View, entry: e.Entry) -> Shown:
        """See Projection.step."""
        if view.over:
            return view, []
        match entry.event:
            case e.TextDelta(text):
                return _text(view, text)
            case e.ReasoningDelta(text):
                return _reasoning(view, entry, text)
            case e.RunAccepted(spec=spec):
                shown_id = wire_id("messages", entry.run)
                return replace(view, spec=spec, run=entry.run, shown_id=shown_id), []
            case e.MessageCompleted() as said:
                return _message(view, entry, said)
            case e.AttemptStarted():
                return _restart(view)
            case e.RunCompleted() | e.RunInterrupted() | e.RunFailed() | e.RunCancelled() as end:
                return _end(view, end)
            case event:
                return _acted(view, event)


class ContinuedMessages(Continued, MessagesProjection):
    """The rest of a run as a message of its own."""

    def _speak(self, view: View) -> View:
        fresh = View(view.spec, view.run, self.shown_id, view.replaying)
        return replace(fresh, calls=view.calls, client_calls=view.client_calls)


def _released(held: Held) -> list[bytes]:
    frames = []
    while held is not None:
        held, frame = held
        frames.append(frame)
    frames.reverse()
    return frames


def _known(view: View) -> Spec:
    if view.spec is None:
        raise ValueError("a journal begins with RunAccepted")
    return view.spec


# Frames


def _event(kind: bytes, fields: dict[str, object]) -> bytes:
    return named_frame(kind, encode({"type": kind.decode(), **fields}))


def _start(index: int, block: blocks.Block) -> bytes:
    return _event(b"content_block_start", {"index": index, "content_block": block})


def _delta(index: int, kind: bytes, field: bytes, told: str) -> bytes:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d' % index
    return b"".join((head, b',"delta":{"type":"', kind, b'","', field, b'":', encode(told), b"}}\n\n"))


def _stop(index: int) -> bytes:
    return _event(b"content_block_stop", {"index": index})


def _thought(view: View, seq: int, told: str) -> list[bytes]:
    """A whole thought."""
    return [
        _start(view.index, blocks.thinking("", "")),
        _delta(view.index, b"thinking_delta", b"thinking", told),
        *_signed(view, seq),
    ]


def _signed(view: View, seq: int) -> list[bytes]:
    """The end of a thought."""
    signature = blocks.signature(view.run, seq)
    return [_delta(view.index, b"signature_delta", b"signature", signature), _stop(view.index)]


def _said(index: int, told: str) -> list[bytes]:
    """A whole text."""
    return [_start(index, blocks.text("")), _delta(index, b"text_delta", b"text", told), _stop(index)]


def _handed(index: int, call: e.Call) -> list[bytes]:
    """A call for the caller."""
    block = blocks.client_call(call)
    whole = encode(block["input"]).decode()
    return [
        _start(index, {**block, "input": {}}),
        _delta(index, b"input_json_delta", b"partial_json", whole),
        _stop(index),
    ]


def _begin(view: View) -> Shown:
    """message_start, before anything else that a run shows. It is no draft and is never held."""
    if view.begun:
        return view, []
    message: dict[str, object] = {
        "id": view.shown_id,
        "type": "message",
        "role": "assistant",
        "model": _known(view).model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": blocks.usage_object(e.Usage()),
    }
    return replace(view, begun=True), [_event(b"message_start", {"message": message})]


def _give(view: View, frames: list[bytes]) -> Shown:
    """Frames of a fact: what was held before them is settled too."""
    released = _released(view.held)
    view, start = _begin(view) if frames else (view, [])
    return replace(view, held=None) if released else view, start + released + frames


def _draft(view: View, frames: list[bytes]) -> Shown:
    """Frames that a crash may take back."""
    view, start = _begin(view)
    if not view.replaying:
        return view, start + frames
    held = view.held
    for frame in frames:
        held = (held, frame)
    return replace(view, held=held), start


# One function per kind of event


def _text(view: View, text: str) -> Shown:
    draft, index = view.draft, view.index
    if draft.open == "text" and not view.replaying and not draft.musing:
        return view, [_delta(index, b"text_delta", b"text", text)] if text else []  # the hot path
    frames: list[bytes] = []
    if draft.open == "thinking":
        frames, index = _signed(view, draft.opened), index + 1
        draft = replace(draft, open="", opened=-1)
    draft = replace(draft, texting=True, musing=False)
    if text:
        frames += [] if draft.open else [_start(index, blocks.text(""))]
        frames.append(_delta(index, b"text_delta", b"text", text))
        draft = replace(draft, open="text", told=True, spoke=True)
    view = replace(view, draft=draft, index=index)
    return _draft(view, frames) if frames else (view, [])


def _reasoning(view: View, entry: e.Entry, text: str) -> Shown:
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
        draft = replace(draft, open="thinking", told=True, thought=True)
    view = replace(view, draft=draft)
    return _draft(view, frames) if frames else (view, [])


def _message(view: View, entry: e.Entry, said: e.MessageCompleted) -> Shown:
    draft, spec = view.draft, _known(view)
    frames: list[bytes] = []
    if draft.open:
        frames += _signed(view, draft.opened) if draft.open == "thinking" else [_stop(view.index)]
        view = replace(view, index=view.index + 1)
    late = [(seq, join(rope)) for seq, rope in draft.late]
    if said.reasoning and not draft.thought and blocks.shows_thinking(spec):
        late = [(entry.seq, said.reasoning)]
    for seq, told in late:
        if told:
            frames += _thought(view, seq, told)
            view = replace(view, index=view.index + 1)
    if said.spoken and not draft.spoke:
        frames += _said(view.index, said.spoken)
        view = replace(view, index=view.index + 1)
    client = tuple(call for call in said.calls if call.client)
    usage = view.usage.plus(said.usage)
    view = replace(view, draft=Draft(first=view.index), usage=usage, client_calls=client, refused=bool(said.refusal))
    return _give(view, frames)


def _restart(view: View) -> Shown:
    """A new attempt: what a replay held back is gone; what a live reader saw cannot be taken back (G3)."""
    if view.draft.told and not view.replaying:
        return _break(view, error_frame("api_error", RESTARTED, "stream_restarted"))
    first = view.draft.first
    return replace(view, held=None, index=first, draft=Draft(first=first)), []


def _acted(view: View, event: e.AnyEvent) -> Shown:
    match event:
        case e.ToolStarted(call=call) if call.id not in view.calls:
            view = replace(view, calls={**view.calls, call.id: call.name})
            return _tool(view, call.name, blocks.server_call(call))
        case e.ToolFinished(call_id=call_id) if call_id in view.calls:
            return _tool(view, view.calls[call_id], blocks.server_result(event, _known(view)))
        case e.ApprovalRequested():
            return _ask(view, event)
        case _:
            return view, []


def _tool(view: View, name: str, block: blocks.Block) -> Shown:
    """A whole block of a server tool."""
    if hidden(name) or not blocks.shows_tools(_known(view)):
        return view, []
    frames = [_start(view.index, block), _stop(view.index)]
    view = replace(view, index=view.index + 1, draft=Draft(first=view.index + 1))
    return _give(view, frames)


def _ask(view: View, asked: e.ApprovalRequested) -> Shown:
    """The question is the end of this answer; the run waits (G11)."""
    frames = [*_said(view.index, question(asked).lstrip()), *_conclusion(view.usage, "end_turn")]
    return _give(replace(view, over=True), frames)


def _end(view: View, end: e.Terminal) -> Shown:
    match end:
        case e.RunFailed():
            return _break(view, failure_frame(end))
        case e.RunCancelled():
            return _break(view, error_frame("api_error", "The run was cancelled.", "run_cancelled"))
        case e.RunInterrupted(reason):
            frames = [*_all_handed(view), *_conclusion(view.usage, STOP[reason])]
        case _:
            stop = "tool_use" if view.client_calls else "refusal" if view.refused else "end_turn"
            frames = [*_all_handed(view), *_conclusion(view.usage, stop)]
    return _give(replace(view, over=True), frames)


def _break(view: View, error: bytes) -> Shown:
    """An error is the last frame, and may be the only one."""
    return replace(view, over=True, held=None), [*_released(view.held), error]


def _all_handed(view: View) -> list[bytes]:
    return [frame for n, call in enumerate(view.client_calls) for frame in _handed(view.index + n, call)]


def _conclusion(usage: e.Usage, reason: str) -> list[bytes]:
    """The last events of a message."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    told = {"delta": delta, "usage": blocks.usage_object(usage)}
    return [_event(b"message_delta", told), _event(b"message_stop", {})]
