"""The Messages stream: properties over random legal journals. The laws are checked by hand first, and then by the real
SDK's accumulators, stable and beta (mcp blocks are beta types: the stable client must pass over them)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninelives.core import events as e
from ninelives.core.state import fold
from ninelives.dialects.messages import body
from ninelives.dialects.messages.frames import ContinuedMessages, MessagesProjection
from ninelives.dialects.sse import KEEPALIVE
from tests.dialects.transcript import edge_view, follow, json_of, read, replay
from tests.journals import Pen, journals, quick, spec_of
from tests.lazy import LazyModule

try:  # anthropic 2 brought its own httpx
    import httpx2 as transport_kit
except ImportError:
    import httpx as transport_kit

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = LazyModule("anthropic")

MESSAGES = MessagesProjection()
chats = journals("messages", approvals=False)
"""A question ends a stream (G11): that has tests of its own."""
DELTAS = {"text": {"text_delta"}, "thinking": {"thinking_delta", "signature_delta"}, "tool_use": {"input_json_delta"}}
FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class Reader:
    """Puts a message together as a strict client would."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self.stopped = False
        self._open: dict[str, Any] | None = None
        self._json = ""

    def take(self, data: dict[str, Any]) -> None:
        """One event; fails where it is illegal."""
        assert not self.stopped and self.error is None, "nothing follows the end"
        kind = data["type"]
        if kind == "error":
            self.error = data["error"]
            return
        assert bool(self.message) == (kind != "message_start"), "message_start is the first event, and only that"
        assert kind == "message_stop" or self.message.get("stop_reason") is None
        getattr(self, f"_{kind}")(data)

    def _message_start(self, data: dict[str, Any]) -> None:
        self.message = data["message"]
        assert self.message["content"] == []

    def _content_block_start(self, data: dict[str, Any]) -> None:
        assert self._open is None and data["index"] == len(self.message["content"])
        self._open, self._json = data["content_block"], ""
        self.message["content"].append(self._open)

    def _content_block_delta(self, data: dict[str, Any]) -> None:
        block, delta = self._open, data["delta"]
        assert block is not None and data["index"] == len(self.message["content"]) - 1
        assert delta["type"] in DELTAS[block["type"]], "blocks of server tools have no deltas"
        self._json += delta.get("partial_json", "")
        if (name := FIELDS.get(delta["type"])) is not None:
            assert delta[name] and not block.get("signature")
            block[name] += delta[name]

    def _content_block_stop(self, data: dict[str, Any]) -> None:
        assert self._open is not None and data["index"] == len(self.message["content"]) - 1
        if self._open["type"] == "tool_use":
            assert self._open["input"] == {}
            self._open["input"] = json.loads(self._json)
        self._open = None

    def _message_delta(self, data: dict[str, Any]) -> None:
        assert self._open is None
        self.message |= data["delta"]
        self.message["usage"] |= data["usage"]

    def _message_stop(self, data: dict[str, Any]) -> None:
        assert self.message["stop_reason"]
        self.stopped = True


def put_together(stream: bytes) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The message of a stream, empty where none began, and the error that ended it."""
    reader = Reader()
    for frame in read(stream):
        assert frame.event == frame.data["type"]
        reader.take(frame.data)
    assert reader.stopped or reader.error is not None
    return reader.message, reader.error


@quick
@given(chats)
def test_a_replay_adds_up_to_the_body(entries: list[e.Entry]) -> None:
    """House idea 3, G3: streamed and not streamed cannot disagree; a dropped draft is never replayed."""
    state = fold(entries)
    message, error = put_together(b"".join(replay(MESSAGES, entries)))
    finished = isinstance(state.facts.end, e.RunCompleted | e.RunInterrupted)
    assert (error is None) == finished
    if finished:
        assert message == json_of(body.body(state))
    else:  # a thought that was being told when the run broke off, or that waited for the end of a text, is not whole
        assert unthought(message.get("content", [])) == unthought(body.content(state))


def unthought(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for block in content if block["type"] != "thinking"]


@quick
@given(chats)
def test_every_call_is_shown_once_with_one_result_and_hidden_ones_never(entries: list[e.Entry]) -> None:
    """G9: also over a crash; `off` shows none."""
    state = fold(entries)
    shown = body.content(state)
    calls = [str(block["id"]) for block in shown if block["type"] == "mcp_tool_use"]
    results = [str(block["tool_use_id"]) for block in shown if block["type"] == "mcp_tool_result"]
    assert len(set(calls)) == len(calls) and len(set(results)) == len(results) and set(results) <= set(calls)
    assert not any(str(block.get("name", "")).startswith("_") for block in shown if block["type"] == "mcp_tool_use")
    assert not (calls and state.facts.accepted.spec.tool_progress == "off")


@quick
@given(chats)
def test_a_live_reader_gets_the_replay_or_is_told_that_the_text_starts_again(entries: list[e.Entry]) -> None:
    """G3: from every edge; what was told live is never told otherwise later."""
    full = b"".join(replay(MESSAGES, entries))
    for edge in range(1, len(entries) + 1):
        before, later = follow(MESSAGES, entries, edge)
        told = b"".join(before + later)
        if b'"stream_restarted"' not in told:
            assert told == full
            continue
        cut = told.rindex(b"event: error")
        assert read(told[cut:])[0].data["error"]["code"] == "stream_restarted"
        put_together(told)


@quick
@given(chats, st.data())
def test_a_replay_that_knows_the_last_attempt_gives_the_same_bytes(entries: list[e.Entry], data: st.DataObject) -> None:
    last, told = entries[-1].attempt, []
    view, known = MESSAGES.view0(-1), data.draw(st.integers(0, len(entries)))
    for n, entry in enumerate(entries):
        view = MESSAGES.stand(view, last) if n == known else view
        view, frames = MESSAGES.step(view, entry)
        told += frames
    view, held = MESSAGES.live(view)
    edge, whole = edge_view(MESSAGES, entries)
    assert told + held == whole and view == edge


@quick
@given(chats)
def test_live_readers_share_one_view(entries: list[e.Entry]) -> None:
    """See Projection.live: where one came from makes no difference, unless it saw a draft that was dropped."""
    for edge in range(1, len(entries) + 1):
        view, _ = edge_view(MESSAGES, entries[:edge])
        walked, _ = edge_view(MESSAGES, entries[:1])
        for entry in entries[1:edge]:
            walked, _ = MESSAGES.step(walked, entry)
        assert walked.over or walked == view


@contextmanager
def client(stream: bytes) -> Iterator[anthropic.Anthropic]:
    """The SDK, talking to a server that answers everything with this stream, keepalives between its frames."""
    shown = stream.replace(b"\n\n", b"\n\n" + KEEPALIVE)

    def answer(request: transport_kit.Request) -> transport_kit.Response:
        return transport_kit.Response(200, headers={"content-type": "text/event-stream"}, content=shown)

    with transport_kit.Client(transport=transport_kit.MockTransport(answer)) as transport:
        yield anthropic.Anthropic(api_key="k" * 16, base_url="http://ninelives", http_client=transport, max_retries=0)


def sdk_message(sdk: anthropic.Anthropic, *, beta: bool) -> tuple[dict[str, Any], str]:
    """What the SDK's helper puts together, and the text that it streams."""
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with sdk.beta.messages.stream(**asked) if beta else sdk.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        return stream.get_final_message().to_dict(exclude_none=True, warnings=False), text


@pytest.mark.parametrize("beta", [False, True])
@quick
@given(chats)
def test_the_sdks_helper_puts_together_exactly_the_body(beta: bool, entries: list[e.Entry]) -> None:
    """Both clients: the beta one knows mcp blocks, the stable one must keep them as they are."""
    state = fold(entries)
    stream = b"".join(replay(MESSAGES, entries))
    with client(stream) as sdk:
        if not isinstance(state.facts.end, e.RunCompleted | e.RunInterrupted):
            with pytest.raises(anthropic.APIStatusError) as caught:
                sdk_message(sdk, beta=beta)
            assert caught.value.body["error"]["code"] in stream.decode()  # type: ignore[index,call-overload]
            return
        message, text = sdk_message(sdk, beta=beta)
        expected = {name: value for name, value in json_of(body.body(state)).items() if value is not None}
        assert message == expected
        assert text == "".join(str(block["text"]) for block in expected["content"] if block["type"] == "text")  # type: ignore[attr-defined]


def asking() -> Pen:
    pen = Pen(spec_of("messages"))
    call = pen.call("terminal", '{"command":"rm a"}')
    pen.attempt().text("I clean up.").settle(call)
    return pen.write(e.ApprovalRequested(call=call, digest="d", code="WXYZ", expires_at=1))


def test_g11_a_question_ends_the_message_and_the_rest_is_a_message_of_its_own() -> None:
    pen = asking()
    question = json_of(body.body(pen.state))
    message, _ = put_together(b"".join(replay(MESSAGES, pen.entries)))
    assert message == question and question["stop_reason"] == "end_turn"
    assert "approve WXYZ" in str(question["content"][-1]["text"])  # type: ignore[index]
    before = pen.state
    call = pen.state.facts.asked.call  # type: ignore[union-attr]
    pen.write(e.ApprovalGiven(call_id=call.id, choice="once")).start(call).finish(call, "gone")
    pen.text("Done.").settle().complete()
    rest, _ = put_together(b"".join(replay(ContinuedMessages("WXYZ", "msg_new"), pen.entries)))
    assert rest == {**json_of(body.body(pen.state, before)), "id": "msg_new"}
    assert [block["type"] for block in rest["content"]] == ["mcp_tool_use", "mcp_tool_result", "text"]
    again, _ = put_together(b"".join(replay(MESSAGES, pen.entries)))
    assert again == message, "the first message stays as it was"


def test_a_thought_after_the_text_has_begun_waits_for_its_end() -> None:
    pen = Pen(spec_of("messages", echo={"thinking": True})).attempt()
    pen.think("a").text("b").think("c").text("d").think("e").settle().complete()
    message, _ = put_together(b"".join(replay(MESSAGES, pen.entries)))
    shown = [block.get("thinking") or block["text"] for block in message["content"]]
    assert message == json_of(body.body(pen.state)) and shown == ["a", "bd", "c", "e"]


def test_thoughts_are_shown_to_those_who_asked_for_them() -> None:
    pen = Pen(spec_of("messages")).attempt().think("hm").text("Hi").settle().complete()
    message, _ = put_together(b"".join(replay(MESSAGES, pen.entries)))
    assert message == json_of(body.body(pen.state)) and [block["type"] for block in message["content"]] == ["text"]


def test_cached_tokens_are_told_apart_from_input_tokens() -> None:
    """C11: the sum of both is what the upstream was sent."""
    pen = Pen(spec_of("messages")).attempt().text("Hi").settle(usage=e.Usage(12, 4, 8)).complete()
    usage: Any = json_of(body.body(pen.state))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (4, 8, 4)
