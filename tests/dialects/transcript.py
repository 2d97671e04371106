"""Reading streams back, as strictly as the strictest client. Owns: the SSE bytes as frames, what a reader gets who
replays or joins live, and a checker of the Responses stream that enforces what the accumulators of the
SDKs need, and more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ninelives.core.events import Entry
from ninelives.engine.base import Projection


def json_of(value: object) -> Any:
    """A body as it is on the wire."""
    return msgspec.json.decode(msgspec.json.encode(value))


@dataclass(frozen=True)
class Frame:
    """One event as a client sees it."""

    event: str | None
    data: Any
    """Decoded JSON; the text itself for [DONE] and comments."""


def read(stream: bytes) -> list[Frame]:
    """The frames of a stream. Each is one optional event line and one data line (G6), or one comment."""
    text = stream.decode("utf-8")
    if not text:
        return []
    assert text.endswith("\n\n"), "a frame is cut"
    return [_frame(block) for block in text[:-2].split("\n\n")]


def _frame(block: str) -> Frame:
    lines = block.split("\n")
    if block.startswith(": "):
        assert len(lines) == 1
        return Frame(":", block[2:])
    name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else None
    assert len(lines) == 1 and lines[0].startswith("data: "), f"not one data line: {block!r}"
    data = lines[0].removeprefix("data: ")
    return Frame(name, data if data == "[DONE]" else msgspec.json.decode(data))


def replay(projection: Projection, entries: list[Entry], after: int = -1) -> list[bytes]:
    """What a reader gets who reads everything from the journal."""
    view, told = projection.view0(after), []
    for entry in entries:
        view, frames = projection.step(view, entry)
        told += frames
    return told


def follow(projection: Projection, entries: list[Entry], edge: int, after: int = -1) -> tuple[list[bytes], list[bytes]]:
    """What a reader gets who reaches the live edge after `edge` entries: before, and from then on."""
    view, before = edge_view(projection, entries[:edge], after)
    told: list[bytes] = []
    for entry in entries[edge:]:
        view, frames = projection.step(view, entry)
        told += frames
    return before, told


def edge_view(projection: Projection, entries: list[Entry], after: int = -1) -> tuple[Any, list[bytes]]:
    """The view at the live edge, and all frames up to it."""
    view, told = projection.view0(after), []
    for entry in entries:
        view, frames = projection.step(view, entry)
        told += frames
    view, held = projection.live(view)
    return view, told + held


DOCUMENTED = {
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.refusal.delta",
    "response.refusal.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.mcp_call.in_progress",
    "response.mcp_call.completed",
    "response.mcp_call.failed",
    "response.mcp_call_arguments.delta",
    "response.mcp_call_arguments.done",
    "response.completed",
    "response.failed",
    "response.incomplete",
}
TERMINAL = {"response.completed", "response.failed", "response.incomplete"}
_NEXT = {
    "message": {
        "added": {"content_part.added"},
        "content_part.added": {"output_text.delta", "refusal.delta"},
        "output_text.delta": {"output_text.delta", "output_text.done", "dropped"},
        "output_text.done": {"content_part.done"},
        "refusal.delta": {"refusal.delta", "refusal.done", "dropped"},
        "refusal.done": {"content_part.done"},
        "content_part.done": {"done", "content_part.added"},
    },
    "reasoning": {
        "added": {"reasoning_summary_part.added"},
        "reasoning_summary_part.added": {"reasoning_summary_text.delta"},
        "reasoning_summary_text.delta": {"reasoning_summary_text.delta", "reasoning_summary_text.done", "dropped"},
        "reasoning_summary_text.done": {"reasoning_summary_part.done"},
        "reasoning_summary_part.done": {"done"},
    },
    "function_call": {
        "added": {"function_call_arguments.delta", "function_call_arguments.done"},
        "function_call_arguments.delta": {"function_call_arguments.done"},
        "function_call_arguments.done": {"done"},
    },
    "function_call_output": {"added": {"done"}},
    "mcp_call": {
        "added": {"mcp_call.in_progress"},
        "mcp_call.in_progress": {"mcp_call_arguments.delta", "mcp_call_arguments.done"},
        "mcp_call_arguments.delta": {"mcp_call_arguments.done"},
        "mcp_call_arguments.done": {"mcp_call.completed", "mcp_call.failed", "dropped"},
        "mcp_call.completed": {"done"},
        "mcp_call.failed": {"done"},
    },
}


@dataclass
class Open:
    """An item that was added and is not done."""

    first: dict[str, Any]
    at: str = "added"
    text: str = ""
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Parts of a message that are done."""
    refusing: bool = False


@dataclass
class ResponsesChecker:
    """Feed it every frame of a stream, in order. `output` is what a client has put together."""

    n: int = 0
    id: str = ""
    begun: bool = False
    terminal: dict[str, Any] | None = None
    done: bool = False
    output: list[dict[str, Any]] = field(default_factory=list)
    open: dict[int, Open] = field(default_factory=dict)

    def feed(self, stream: bytes) -> ResponsesChecker:
        """Check whole frames."""
        for frame in read(stream):
            self._take(frame)
        return self

    def _take(self, frame: Frame) -> None:
        assert not self.done, "something follows [DONE]"
        if frame.data == "[DONE]":
            assert self.terminal is not None and frame.event is None
            self.done = True
            return
        data, kind = frame.data, frame.data["type"]
        assert frame.event == kind and kind in DOCUMENTED
        assert self.terminal is None, f"{kind} follows the terminal event"
        assert data["sequence_number"] == self.n, "numbers have no gap"
        assert (kind == "response.created") == (self.n == 0), "response.created is the first event, and only that"
        self.n += 1
        if "response" in data:
            self._lifecycle(kind, data["response"])
        elif kind == "response.output_item.added":
            self._added(data)
        else:
            self._inside(kind.removeprefix("response."), data)

    def _lifecycle(self, kind: str, response: dict[str, Any]) -> None:
        self.id = self.id or response["id"]
        assert response["id"] == self.id
        if kind in TERMINAL:
            assert not self.open, "an item is open at the end"
            assert response["output"] == self.output
            assert response["usage"] is not None
            allowed = {"response.completed": {"completed"}, "response.failed": {"failed"}}
            assert response["status"] in allowed.get(kind, {"incomplete", "cancelled"})
            self.terminal = response
        else:
            assert not self.output and response["output"] == [] and response["usage"] is None
            assert response["status"] in ("queued", "in_progress")

    def _added(self, data: dict[str, Any]) -> None:
        item, index = data["item"], data["output_index"]
        assert index == len(self.output), "indices are dense and opened in order"
        assert item["status"] == "in_progress"
        assert item["id"] not in {other["id"] for other in self.output}
        assert item.get("content", []) == [] and item.get("summary", []) == [] and item.get("arguments", "") == ""
        self.output.append(item)
        self.open[index] = Open(item)

    def _inside(self, kind: str, data: dict[str, Any]) -> None:
        opened = self.open[data["output_index"]]
        if kind == "output_item.done":
            self._done(opened, data)
            return
        assert data["item_id"] == opened.first["id"]
        assert data.get("content_index", 0) == len(opened.parts) and data.get("summary_index", 0) == 0
        assert kind in _NEXT[opened.first["type"]][opened.at], f"{kind} after {opened.at}"
        opened.at = kind
        if kind.endswith(".delta"):
            opened.text += data["delta"]
        part = data.get("part", {})
        if kind.endswith("_part.added"):
            opened.refusing, opened.text = part["type"] == "refusal", ""
            assert part.get("text", part.get("refusal")) == ""
            assert opened.refusing or not opened.parts, "a refusal comes last"
        told = data.get("text", data.get("arguments", data.get("refusal", part.get("text", part.get("refusal")))))
        if kind.endswith(".done"):
            assert told == opened.text, "done is the sum of its deltas"
        if kind == "content_part.done":
            assert part == _part(opened)
            opened.parts.append(part)
        self.output[data["output_index"]] = _so_far(opened)

    def _done(self, opened: Open, data: dict[str, Any]) -> None:
        first, item = opened.first, data["item"]
        for name in ("type", "id", "call_id", "name", "server_label", "role"):
            assert item.get(name) == first.get(name), f"{name} changed"
        step = "done" if "done" in _NEXT[first["type"]][opened.at] else "dropped"
        assert step in _NEXT[first["type"]][opened.at], f"done after {opened.at}"
        _check_done(opened, item, dropped=step == "dropped")
        self.output[data["output_index"]] = item
        del self.open[data["output_index"]]


def _so_far(opened: Open) -> dict[str, Any]:
    """The open item with what its deltas said."""
    item = dict(opened.first)
    match item["type"]:
        case "message":
            item["content"] = opened.parts if opened.at == "content_part.done" else [*opened.parts, _part(opened)]
        case "reasoning":
            item["summary"] = [{"type": "summary_text", "text": opened.text}]
        case "function_call" | "mcp_call":
            item["arguments"] = opened.text
    return item


def _part(opened: Open) -> dict[str, Any]:
    text = opened.text
    if opened.refusing:
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _check_done(opened: Open, item: dict[str, Any], *, dropped: bool) -> None:
    status = item["status"]
    assert status != "in_progress"
    assert not dropped or status == "incomplete"
    match item["type"]:
        case "message":
            assert item["content"] == ([] if dropped else opened.parts)
        case "reasoning":
            assert item["summary"] == ([] if dropped else [{"type": "summary_text", "text": opened.text}])
        case "function_call":
            assert item["arguments"] == opened.text and status == "completed"
        case "function_call_output":
            assert [part["type"] for part in item["output"]] == ["input_text"]
            assert item["output"] == opened.first["output"]
        case "mcp_call":
            assert item["arguments"] == opened.text
            if not dropped:
                assert isinstance(item["output"], str)
                assert status == opened.at.removeprefix("mcp_call.")
                assert (item["error"] is not None) == (status == "failed")
