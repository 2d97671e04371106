"""A message while it streams in. Owns: turning the parts of a model into deltas and one MessageCompleted, and the size
limit of a message (R13). Refuses to know: who asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.context import text_tokens
from ninelives.core.ids import call_id
from ninelives.models.base import CallPiece, Declined, Finished, Part, Text, Thinking

FLOOD = 64
"""Where one read has more parts than this, neighbours become one delta. Otherwise each piece of the upstream is a delta
of its own, as callers expect."""


class Incoming:
    """Collects the parts of one message."""

    def __init__(
        self,
        run: str,
        calls_before: int,
        max_bytes: int,
        client_tools: frozenset[str],
        emoji_of: Callable[[str], str | None] = lambda name: None,
    ) -> None:
        """`emoji_of` gives the emoji of a tool of this server; None for any other name."""
        self._client_tools = client_tools
        self._emoji_of = emoji_of
        self._begun: set[int] = set()
        self._run = run
        self._calls_before = calls_before
        self._room = max_bytes
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._thinking: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}
        self._finished: Finished | None = None
        self.full = False
        """True once the size limit is reached. The message then ends as if by its token limit."""

    def feed_word(self, parts: Sequence[Part]) -> e.TextDelta | None:
        """`feed` for the usual read: one piece of answer, and room for it. Otherwise nothing happens, and None is
        returned. It saves 6 us per token, two thirds of the general way."""
        part = parts[0]
        if type(part) is not Text or len(parts) > 1 or self._refusal:
            return None
        text = part.text
        if len(text) >= self._room:
            return None
        self._room -= len(text)
        self._text.append(text)
        return e.TextDelta(text)

    def fits(self, parts: Sequence[Part]) -> bool:
        """True where the message stays within its limit with these parts."""
        size = 0
        for part in parts:
            match part:
                case Text(text) | Declined(text) | Thinking(text) | CallPiece(_, _, text):
                    size += len(text)
        return size < self._room

    def feed(self, parts: Sequence[Part]) -> Iterator[e.Delta]:
        """The deltas of the parts of one read."""
        for part in _merged(parts) if len(parts) > FLOOD else parts:
            if self.full:
                return
            match part:
                case Text(text) if not self._refusal:
                    self._text.append(text)
                    self._spend(text)
                    yield e.TextDelta(text)
                case Text(text) | Declined(text):  # text after the begin of a refusal is part of it
                    self._refusal.append(text)
                    self._spend(text)
                    yield e.TextDelta(text, refusal=True)
                case Thinking(text):
                    self._thinking.append(text)
                    self._spend(text)
                    yield e.ReasoningDelta(text)
                case CallPiece():
                    yield from self._piece(part)
                case Finished():
                    self._finished = part

    def _piece(self, part: CallPiece) -> Iterator[e.CallBegun]:
        """Keep a piece of a call. Its begin is told once, as soon as the name is that of a tool. A call that comes in
        one piece is not told: it starts at once."""
        index, whole = part.index, part.index not in self._names and bool(part.arguments)
        name = self._names[index] = self._names.get(index, "") + part.name
        self._arguments.setdefault(index, []).append(part.arguments)
        self._spend(part.arguments)
        if whole or index in self._begun or name in self._client_tools:
            return
        if (emoji := self._emoji_of(name)) is not None:
            self._begun.add(index)
            yield e.CallBegun(call_id=call_id(self._run, self._calls_before + index), name=name, emoji=emoji)

    def _spend(self, text: str) -> None:
        self._room -= len(text)
        self.full = self._room <= 0

    def completed(self, asked_tokens: Callable[[], int]) -> e.MessageCompleted:
        """The whole message. Calls get our ids. A message that was cut off has no calls. `asked_tokens` estimates the
        request, for an upstream that does not count it."""
        finish = self._finished.reason if self._finished and not self.full else "length"
        usage = self._counted(self._finished.usage if self._finished else e.Usage(), asked_tokens)
        calls: tuple[e.Call, ...] = ()
        if finish in ("stop", "tool_calls"):
            calls = tuple(self._call(n, index) for n, index in enumerate(sorted(self._names)))
        thinking, refusal = "".join(self._thinking), "".join(self._refusal)
        return e.MessageCompleted("".join(self._text), calls, usage, thinking, finish, refusal)

    def _counted(self, told: e.Usage, asked_tokens: Callable[[], int]) -> e.Usage:
        """The usage, with what the upstream left out. No request has zero tokens, and no answer but an empty one."""
        if told.input_tokens and told.output_tokens:
            return told
        arguments = (piece for pieces in self._arguments.values() for piece in pieces)
        thought = text_tokens(*self._thinking)
        said = thought + text_tokens(*self._text, *self._refusal, *self._names.values(), *arguments)
        if told.input_tokens and not said:
            return told
        return replace(
            told,
            input_tokens=told.input_tokens or asked_tokens(),
            output_tokens=told.output_tokens or said,
            reasoning_tokens=told.reasoning_tokens if told.output_tokens else thought,
            estimated=True,
        )

    def _call(self, n: int, index: int) -> e.Call:
        name = self._names[index]
        made = call_id(self._run, self._calls_before + n)
        return e.Call(made, name, "".join(self._arguments[index]), name in self._client_tools)


def _merged(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts of one read, with neighbours of one kind joined. They arrived together, and each piece costs a row and
    a frame, whatever its length."""
    out: list[Part] = []
    texts: list[str] = []
    kind: type[Text] | type[Thinking] | None = None
    for part in parts:
        if type(part) is Text or type(part) is Thinking:
            if type(part) is kind:
                texts.append(part.text)
                continue
            if kind is not None:
                out.append(kind("".join(texts)))
            kind, texts = type(part), [part.text]
            continue
        if kind is not None:
            out.append(kind("".join(texts)))
            kind = None
        out.append(part)
    if kind is not None:
        out.append(kind("".join(texts)))
    return out
