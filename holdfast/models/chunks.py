"""What an OpenAI-compatible upstream says. Owns: the parser of an answer, streamed or whole (the same parts wherever
the bytes were cut), and the words for its failures. Refuses to know: sockets, time and retries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import msgspec
from msgspec import Struct

from holdfast.core.errors import AgentError
from holdfast.core.events import Finish, Usage
from holdfast.models.base import CallPiece, Declined, Finished, Part, Text, Thinking

EXCERPT_CHARS = 300


class UpstreamFailed(AgentError):
    """The upstream failed. `again`: asking once more may help; `wait_s`: how long the upstream wants us to wait."""

    def __init__(
        self, code: str, message: str, *, status: int = 502, again: bool = False, wait_s: float | None = None
    ) -> None:
        super().__init__(code, message, status=status, retry_after=None if wait_s is None else math.ceil(wait_s))
        self.again = again
        self.wait_s = wait_s


def garbage(what: str) -> UpstreamFailed:
    """The upstream does not speak the protocol."""
    return UpstreamFailed(
        "upstream_garbage", f"The model's upstream sent {what}. Check that [model] url is its API.", again=True
    )


def cut() -> UpstreamFailed:
    """The upstream fell silent in the middle of its answer, or before it."""
    return UpstreamFailed("upstream_cut", "The model's stream ended before its answer did. Try again.", again=True)


# The wire, as far as we read it. Unknown fields are skipped without being built; whatever upstreams leave out or
# send as null has a default.


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


class _Error(Struct, gc=False):
    message: str | None = None
    code: str | int | None = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: str | _Error | None = None


class _Refusal(Struct, gc=False):
    error: str | _Error | None = None
    message: str | None = None
    detail: str | None = None


_decode: Callable[[bytes], _Chunk] = msgspec.json.Decoder(_Chunk).decode
_decode_text: Callable[[bytes], str] = msgspec.json.Decoder(str).decode
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
    )


class _Open(Struct, gc=False):
    """A call whose pieces are coming in."""

    id: str
    named: bool = False


class _Calls:
    """Gives each call a number of ours. Upstreams leave the index out (then a new id or name opens a call), or give
    all parallel calls the same one (then a new id together with a name does)."""

    def __init__(self) -> None:
        self.opened: list[_Open] = []
        self._by_index: dict[int, int] = {}

    def piece(self, call: _Call) -> CallPiece | None:
        """The part for one piece; nothing where it says nothing."""
        function = call.function or _Function()
        name, arguments = function.name or "", function.arguments or ""
        at = self._place(call, name)
        if self.opened[at].named:
            name = ""
        self.opened[at].named |= bool(name)
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        return CallPiece(at, name, arguments) if name or arguments else None

    def _place(self, call: _Call, name: str) -> int:
        at = len(self.opened) - 1 if call.index is None else self._by_index.get(call.index, -1)
        if at < 0 or self._opens(self.opened[at], call, name):
            at = len(self.opened)
            self.opened.append(_Open(call.id or ""))
            if call.index is not None:
                self._by_index[call.index] = at
        return at

    @staticmethod
    def _opens(last: _Open, call: _Call, name: str) -> bool:
        other_id = bool(call.id) and call.id != last.id
        other_name = bool(name) and last.named
        if call.index is None:
            return other_id or (other_name and not call.id)
        return other_id and other_name


class Answer:
    """One answer as it comes in: chunks in, parts out."""

    def __init__(self, secret: str = "") -> None:
        self.done = False
        self._secret = secret
        self._calls = _Calls()
        self.reason: str | None = None
        """Why it ended, once the upstream has said so."""
        self._usage = Usage()

    def chunk(self, line: bytes, parts: list[Part]) -> None:
        """Add what one chunk says."""
        chunk = self._read(line)
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            if choice.index == 0 and choice.delta is not None:
                self._say(choice.delta, parts)
            if choice.finish_reason:
                self.reason = choice.finish_reason

    def whole(self, body: bytes, parts: list[Part]) -> None:
        """Add an answer that was not streamed, up to its end."""
        chunk = self._read(body)
        if not chunk.choices or (message := chunk.choices[0].message) is None:
            raise garbage("JSON that is not a chat completion")
        for number, call in enumerate(message.tool_calls or ()):
            call.index = number
        self._say(message, parts)
        self._usage = _usage(chunk.usage or _Usage())
        self.reason = chunk.choices[0].finish_reason or "stop"
        self.end(parts)

    def end(self, parts: list[Part]) -> None:
        """Add the end; a failure where the upstream never said that it had finished. Some say `stop` after calls."""
        if self.reason is None:
            raise cut()
        reason = _FINISH.get(self.reason, "tool_calls" if self._calls.opened else "stop")
        self.done = True
        parts.append(Finished(reason, self._usage))

    def _read(self, line: bytes) -> _Chunk:
        try:
            chunk = _decode(line)
        except UNREADABLE as error:
            raise garbage("JSON that cannot be read") from error
        if chunk.error is not None:
            raise error_frame(chunk.error, self._secret)
        choices = chunk.choices
        if choices and choices[0].finish_reason == "error":
            raise error_frame("finish_reason is error", self._secret)
        return chunk

    def _say(self, delta: _Delta, parts: list[Part]) -> None:
        if thought := delta.reasoning_content or delta.reasoning:
            parts.append(Thinking(thought))
        if delta.content:
            parts.append(Text(delta.content))
        if delta.refusal:
            parts.append(Declined(delta.refusal))
        if delta.tool_calls:
            parts += filter(None, map(self._calls.piece, delta.tool_calls))


def _alone(data: bytes) -> bool:
    """Is it one event, whole, and nothing else?"""
    return data.find(b"\n") == len(data) - 2 and data.startswith(b"data: {") and data.endswith(b"}\n\n")


CONTENT = (b'"content":"', b'"content": "')
TRIES = 4
"""How often the form of a stream is looked for: some change it with every object."""


class Lines:
    """Server-sent events over an answer. Every data line is one chunk, as all upstreams send it."""

    def __init__(self, answer: Answer, line_bytes: int) -> None:
        self._answer = answer
        self._limit = line_bytes
        self._tail: list[bytes] = []
        self._size = 0
        self._before = self._behind = b""
        """What nearly every read of a stream has in common: all but the words of its one piece of answer."""
        self._tries = TRIES

    def feed(self, data: bytes, parts: list[Part]) -> None:
        """Add the parts of the lines that `data` completes; b"" is the end of the body. On a failure `parts` holds
        what came before it."""
        if self._before and (text := self._alike(data)):
            parts.append(Text(text))
            return
        if _alone(data) and not self._size and len(data) < self._limit:
            self._answer.chunk(data[6:-2], parts)
            if self._tries and len(parts) == 1:
                self._learn(data, parts[0])
            return
        lines = data.split(b"\n") if data else [b"", b""]
        self._tail.append(lines[0])
        self._size += len(lines[0])
        if self._size > self._limit:
            raise garbage(f"a line of more than {self._limit} bytes")
        if len(lines) == 1:
            return
        lines[0] = b"".join(self._tail)
        self._tail = [lines.pop()]
        self._size = len(self._tail[0])
        for line in lines:
            if not line:
                continue
            self._line(line.strip(), parts)
            if self._answer.done:
                return
        if not data:
            self._answer.end(parts)

    def _alike(self, data: bytes) -> str:
        """The words of an object that is like the one before it; nothing where it is another."""
        before, behind = self._before, self._behind
        if self._size or len(data) >= self._limit or not data.startswith(before) or not data.endswith(behind):
            return ""
        words = data[len(before) : -len(behind)]
        if not words or b'"' in words:
            return ""
        try:
            return _decode_text(b'"%b"' % words)
        except UNREADABLE:
            return ""

    def _learn(self, data: bytes, part: Part) -> None:
        """Most upstreams send one object after another that differ in their words alone. Where this one had nothing but
        words, the next that has the same bytes around its own is the same but for them, and need not be read as a
        whole: a quote would have ended them, so what stands between is one string or not JSON at all."""
        self._tries -= 1
        if type(part) is not Text or self._answer.reason is not None:
            return
        words = msgspec.json.encode(part.text)[1:]
        for name in CONTENT:
            start = data.find(name) + len(name)
            if data.count(name) == 1 and data.startswith(words, start):
                self._before, self._behind = data[:start], data[start + len(words) - 1 :]

    def _line(self, line: bytes, parts: list[Part]) -> None:
        if line.startswith(b"data:"):
            payload = line[5:].lstrip()
            if payload == b"[DONE]":
                self._answer.end(parts)
            elif payload:
                self._answer.chunk(payload, parts)
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            raise garbage("a line that is no event")


class Whole:
    """A JSON body over an answer, for upstreams that do not stream."""

    def __init__(self, answer: Answer, limit: int) -> None:
        self._answer = answer
        self._limit = limit
        self._body = bytearray()

    def feed(self, data: bytes, parts: list[Part]) -> None:
        """Keep `data`; b"" is the end of the body and gives all parts."""
        self._body += data
        if len(self._body) > self._limit:
            raise garbage(f"an answer of more than {self._limit} bytes")
        if not data:
            self._answer.whole(bytes(self._body), parts)


_SECRET = re.compile(r"(?i)bearer\s+\S+|\S*(\b(sk|pk|rk|gsk|xai|key|token)[-_][\w*.-]{4,}|\beyJ[\w-]{8,}|\*{3,})\S*")


def clean(text: str, secret: str) -> str:
    """An upstream's words, bounded and without anything that looks like a credential. Upstreams quote keys in part,
    so the first and the last characters of ours are looked for too."""
    marks = {secret, secret[:6], secret[-4:]} if len(secret) > 8 else {secret} - {""}
    words = _SECRET.sub("[removed]", text).split()
    return " ".join("[removed]" if any(mark in word for mark in marks) else word for word in words)[:EXCERPT_CHARS]


def excerpt(body: bytes, secret: str) -> str:
    """What the body of an error says, for a message of ours."""
    text = body.decode(errors="replace")
    try:
        told = msgspec.json.decode(body, type=_Refusal)
        error = told.error.message if isinstance(told.error, _Error) else told.error
        text = error or told.message or told.detail or text
    except UNREADABLE:
        text = "an HTML page" if "<html" in text[:512].lower() else text
    words = clean(text, secret)
    return f": {words.rstrip('.')}" if words else ""


def error_frame(error: str | _Error, secret: str) -> UpstreamFailed:
    """An error in place of a chunk. One with a 4xx code is about the request: asking again would not help."""
    shown = _Error(error) if isinstance(error, str) else error
    rejected = isinstance(shown.code, int) and 400 <= shown.code < 500 and shown.code not in (408, 409, 429)
    words = clean(shown.message or "no reason given", secret)
    return UpstreamFailed("upstream_error", f"The model's upstream failed: {words}", again=not rejected)
