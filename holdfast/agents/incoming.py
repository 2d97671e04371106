"""A message while it streams in. Owns: putting a model's parts together to deltas and one MessageCompleted, and the
byte bound of a message. Refuses to know: who asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core import events as e
from holdfast.core.ids import call_id
from holdfast.models.base import CallPiece, Declined, Finished, Part, Text, Thinking

FLOOD = 64
"""Where one read brings more parts than this, neighbours become one delta; else each piece that the upstream made is a
delta of its own, as callers are used to."""


class Incoming:
    """Feed it parts; it yields deltas and in the end knows the message."""

    def __init__(self, run: str, calls_before: int, max_bytes: int, client_tools: frozenset[str]) -> None:
        self._client_tools = client_tools
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
        """The bound was reached: the message ends here, as if by its token limit."""

    def word(self, parts: Sequence[Part]) -> e.TextDelta | None:
        """`feed` for what nearly every read is: one piece of answer, with room for it. Else None, and nothing happened.
        A third of the cost of the general way (6 us less of cold code a token)."""
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
        """Would the message still be within its bound after these?"""
        size = 0
        for part in parts:
            match part:
                case Text(text) | Declined(text) | Thinking(text) | CallPiece(_, _, text):
                    size += len(text)
        return size < self._room

    def feed(self, parts: Sequence[Part]) -> Iterator[e.TextDelta | e.ReasoningDelta]:
        """The deltas in these parts, which one read brought."""
        for part in _merged(parts) if len(parts) > FLOOD else parts:
            if self.full:
                return
            match part:
                case Text(text) if not self._refusal:
                    self._text.append(text)
                    self._spend(text)
                    yield e.TextDelta(text)
                case Text(text) | Declined(text):  # what comes after a refusal has begun is part of it
                    self._refusal.append(text)
                    self._spend(text)
                    yield e.TextDelta(text, refusal=True)
                case Thinking(text):
                    self._thinking.append(text)
                    self._spend(text)
                    yield e.ReasoningDelta(text)
                case CallPiece(index, name, arguments):
                    self._names[index] = self._names.get(index, "") + name
                    self._arguments.setdefault(index, []).append(arguments)
                    self._spend(arguments)
                case Finished():
                    self._finished = part

    def _spend(self, text: str) -> None:
        self._room -= len(text)
        self.full = self._room <= 0

    def completed(self) -> e.MessageCompleted:
        """The whole message. Calls get our ids; those of a message that was cut off are not carried out."""
        finish = self._finished.reason if self._finished and not self.full else "length"
        usage = self._finished.usage if self._finished else e.Usage()
        calls: tuple[e.Call, ...] = ()
        if finish in ("stop", "tool_calls"):
            calls = tuple(self._call(n, index) for n, index in enumerate(sorted(self._names)))
        thinking, refusal = "".join(self._thinking), "".join(self._refusal)
        return e.MessageCompleted("".join(self._text), calls, usage, thinking, finish, refusal)

    def _call(self, n: int, index: int) -> e.Call:
        name = self._names[index]
        made = call_id(self._run, self._calls_before + n)
        return e.Call(made, name, "".join(self._arguments[index]), name in self._client_tools)


def _merged(parts: Sequence[Part]) -> Sequence[Part]:
    """What one read brought, neighbours of one kind as one piece: they came at one time, and each piece has a price (a
    row, a frame) that does not depend on its length."""
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
