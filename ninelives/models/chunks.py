"""The answers of an OpenAI-compatible upstream. Owns: parsing an answer, streamed or whole, into the same parts
wherever the bytes were cut, and the texts of its failures. Refuses to know: sockets, time and retries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from ninelives.core.errors import AgentError
from ninelives.core.events import Finish, Usage
from ninelives.core.limits import billionths
from ninelives.models.base import CallPiece, Declined, Finished, Part, Text, Thinking
from ninelives.models.halves import Halves, decoded_with_halves

EXCERPT_CHARS = 300


class UpstreamFailed(AgentError):
    """The upstream failed. `again`: a retry may help. `wait_s`: how long the upstream asks to wait."""

    def __init__(
        self, code: str, message: str, *, status: int = 502, again: bool = False, wait_s: float | None = None
    ) -> None:
        super().__init__(code, message, status=status, retry_after=None if wait_s is None else math.ceil(wait_s))
        self.again = again
        self.wait_s = wait_s


def garbage_error(what: str) -> UpstreamFailed:
    """The upstream sent something that is not its protocol."""
    return UpstreamFailed(
        "upstream_garbage", f"The model's upstream sent {what}. Check that [model] url is its API.", again=True
    )


def cut_error() -> UpstreamFailed:
    """The connection ended before the answer was whole."""
    return UpstreamFailed("upstream_cut", "The model's stream ended before its answer did. Try again.", again=True)


# The fields that are read. msgspec skips unknown ones without building them. Fields that upstreams leave out or send
# as null have a default.


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _Call(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    cost: Any = None
    """What the upstream bills for the call, where it tells. Any: what is no number is left out, never an error."""


class _Error(Struct, gc=False):
    message: str | None = None
    code: str | int | None = None


class _Chunk(Struct, gc=False):
    """One piece of an answer, or all of it."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: str | _Error | None = None


class _Refusal(Struct, gc=False):
    error: str | _Error | None = None
    message: str | None = None
    detail: str | None = None


_decode: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_FINISH: dict[str, Finish] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def _usage(told: _Usage) -> Usage:
    prompt, completion = told.prompt_tokens_details, told.completion_tokens_details
    return Usage(
        told.prompt_tokens or 0,
        told.completion_tokens or 0,
        (prompt.cached_tokens if prompt else None) or 0,
        (completion.reasoning_tokens if completion else None) or 0,
        cost=0 if told.cost is None else billionths(told.cost),
    )


class _Open(Struct, gc=False):
    """A call whose pieces are arriving."""

    at: int
    """Its number in the message."""
    id: str
    named: bool = False


class _Calls(Struct):
    """Numbers the calls of a message. Some upstreams leave the index out: then a new id or name begins a call. Some
    give all parallel calls the same index: then a new id together with a name does."""

    count: int = 0
    opened: dict[int | None, _Open] = {}
    """By the index of the upstream. None: the call that was opened last."""

    def piece(self, call: _Call) -> CallPiece | None:
        """The part for one piece; None where it is empty."""
        function = call.function or _Function()
        name, arguments = function.name or "", function.arguments or ""
        opened = self.opened.get(call.index)
        if opened is None or self._opens(opened, call, name):
            opened = _Open(self.count, call.id or "")
            self.opened[call.index] = self.opened[None] = opened
            self.count += 1
        if opened.named:
            name = ""
        opened.named |= bool(name)
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        return CallPiece(opened.at, name, arguments) if name or arguments else None

    @staticmethod
    def _opens(last: _Open, call: _Call, name: str) -> bool:
        other_id = bool(call.id) and call.id != last.id
        other_name = bool(name) and last.named
        if call.index is None:
            return other_id or (other_name and not call.id)
        return other_id and other_name


class AnswerReader(Struct):
    """One answer: chunks in, parts out."""

    secret: str = ""
    done: bool = False
    _calls: _Calls = field(default_factory=_Calls)
    _reason: str | None = None
    _usage: Usage = Usage()
    _halves: Halves | None = None
    """Since the first half of a character came."""

    def read(self, line: bytes) -> _Chunk:
        """One chunk. Its usage is kept."""
        try:
            chunk = _decode(line)
        except UNREADABLE:
            chunk = self._read_halves(line)
        if chunk.error is not None:
            raise error_frame(chunk.error, self.secret)
        choices = chunk.choices
        if choices and choices[0].finish_reason == "error":
            raise error_frame("finish_reason is error", self.secret)
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        return chunk

    def add(self, chunk: _Chunk, parts: list[Part]) -> None:
        """Add the parts of one chunk."""
        begin = len(parts)
        for choice in chunk.choices or ():
            delta = choice.delta
            if delta is not None and choice.index == 0:
                if thought := delta.reasoning_content or delta.reasoning:
                    parts.append(Thinking(thought))
                if delta.content:
                    parts.append(Text(delta.content))
                if delta.refusal:
                    parts.append(Declined(delta.refusal))
                if delta.tool_calls:
                    parts += filter(None, map(self._calls.piece, delta.tool_calls))
            if choice.finish_reason:
                self._reason = choice.finish_reason
        if self._halves is not None:
            parts[begin:] = self._halves.joined(parts[begin:])

    def whole(self, body: bytes, parts: list[Part]) -> None:
        """Add the parts of an answer that was not streamed, with its end."""
        chunk = self.read(body)
        if not chunk.choices or (message := chunk.choices[0].message) is None:
            raise garbage_error("JSON that is not a chat completion")
        for number, call in enumerate(message.tool_calls or ()):
            call.index = number
        reason = chunk.choices[0].finish_reason or "stop"
        self.add(_Chunk([_Choice(delta=message, finish_reason=reason)]), parts)
        self.end(parts)

    def end(self, parts: list[Part]) -> None:
        """Add the end. It is a failure if there was no finish_reason. Some upstreams say `stop` after calls."""
        if self._reason is None:
            raise cut_error()
        reason = _FINISH.get(self._reason, "tool_calls" if self._calls.opened else "stop")
        self.done = True
        end = Finished(reason, self._usage)
        parts += [end] if self._halves is None else self._halves.joined([end])

    def _read_halves(self, line: bytes) -> _Chunk:
        try:
            chunk = msgspec.convert(decoded_with_halves(line), _Chunk)
        except (*UNREADABLE, ValueError) as error:
            raise garbage_error("JSON that cannot be read") from error
        self._halves = self._halves or Halves()
        return chunk


class EventLines(Struct):
    """Reads server-sent events. Each data line is one chunk."""

    answer: AnswerReader
    limit: int
    """Most bytes of a line."""
    tail: list[bytes] = []
    size: int = 0

    def feed(self, data: bytes, parts: list[Part]) -> None:
        """Add the parts of the lines that `data` completes; b"" is the end of the body. On a failure `parts` has what
        came before it."""
        size = len(data)
        alone = data.find(b"\n") == size - 2 and data.startswith(b"data: {") and data.endswith(b"}\n\n")
        if alone and not self.size and size < self.limit:  # exactly one whole event, as nearly every read has
            self.answer.add(self.answer.read(data[6:-2]), parts)
            return
        lines = data.split(b"\n") if data else [b"", b""]
        self.tail.append(lines[0])
        self.size += len(lines[0])
        if self.size > self.limit:
            raise garbage_error(f"a line of more than {self.limit} bytes")
        if len(lines) == 1:
            return
        lines[0] = b"".join(self.tail)
        self.tail = [lines.pop()]
        self.size = len(self.tail[0])
        for line in filter(None, lines):
            if line.startswith(b"data: {"):  # JSON may be followed by spaces
                self.answer.add(self.answer.read(line[6:]), parts)
                continue
            self._line(line.strip(), parts)
            if self.answer.done:
                return
        if not data:
            self.answer.end(parts)

    def _line(self, line: bytes, parts: list[Part]) -> None:
        if line.startswith(b"data:"):
            payload = line[5:].lstrip()
            if payload == b"[DONE]":
                self.answer.end(parts)
            elif payload:
                self.answer.add(self.answer.read(payload), parts)
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            raise garbage_error("a line that is no event")


class WholeBody:
    """Reads a JSON body, of an upstream that does not stream."""

    def __init__(self, answer: AnswerReader, limit: int) -> None:
        self._answer = answer
        self._limit = limit
        self._body = bytearray()

    def feed(self, data: bytes, parts: list[Part]) -> None:
        """Keep `data`; b"" is the end of the body and adds all parts."""
        self._body += data
        if len(self._body) > self._limit:
            raise garbage_error(f"an answer of more than {self._limit} bytes")
        if not data:
            self._answer.whole(bytes(self._body), parts)


_SECRET = re.compile(r"(?i)\b(sk|pk|rk|gsk|xai|key|token)[-_][\w*.-]{4}|\beyJ[\w-]{8}|\*{3}")
"""Part of a word that looks like a credential. No part of it repeats without a bound, so its time is linear."""
_REMOVED = "[removed]"


def redacted(text: str, secret: str) -> str:
    """A text of the upstream, bounded and without anything that looks like a credential. Upstreams quote keys in part,
    so the first and last characters of our key are removed too."""
    marks = {secret, secret[:6], secret[-4:]} if len(secret) > 8 else {secret} - {""}
    kept: list[str] = []
    size, bearer = 0, False
    for word in text.encode("utf-8", "replace").decode().split():
        hidden = bearer or _SECRET.search(word) is not None or any(mark in word for mark in marks)
        bearer = word.lower().endswith("bearer")
        kept.append(_REMOVED if hidden else word)
        size += len(kept[-1]) + 1
        if size > EXCERPT_CHARS:
            break
    return " ".join(kept)[:EXCERPT_CHARS]


def excerpt(body: bytes, secret: str) -> str:
    """The message in the body of an error, for an error message of ours."""
    text = body.decode(errors="replace")
    try:
        told = msgspec.json.decode(body, type=_Refusal)
        error = told.error.message if isinstance(told.error, _Error) else told.error
        text = error or told.message or told.detail or text
    except UNREADABLE:
        text = "an HTML page" if "<html" in text[:512].lower() else text
    words = redacted(text, secret)
    return f": {words.rstrip('.')}" if words else ""


def error_frame(error: str | _Error, secret: str) -> UpstreamFailed:
    """An error in place of a chunk. With a 4xx code it is about the request, so a retry would not help."""
    shown = _Error(error) if isinstance(error, str) else error
    rejected = isinstance(shown.code, int) and 400 <= shown.code < 500 and shown.code not in (408, 409, 429)
    words = redacted(shown.message or "no reason given", secret)
    return UpstreamFailed("upstream_error", f"The model's upstream failed: {words}", again=not rejected)
