"""Halves of characters. Owns: joining the two halves of a character that an upstream cut in two. JavaScript counts a
character outside of the basic plane as two (a surrogate pair). A gateway that cuts texts by that count can send one
half at the end of a delta and the other in the next. Refuses to know: how an answer is parsed otherwise."""

from __future__ import annotations

import json
import re
from typing import Any

from ninelives.models.base import CallPiece, Declined, Finished, Part, Text, Thinking

Told = Text | Thinking | Declined | CallPiece
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


def decoded_with_halves(line: bytes) -> Any:
    """The JSON of a line that may have halves of characters. ValueError: there are none, or it is not JSON at all."""
    if not _HALF.search(line):
        raise ValueError("no half of a character")
    return json.loads(line.decode("utf-8", "surrogatepass"))


class Halves:
    """Joins halves over the parts of one answer. Text, thoughts and the arguments of each call are told apart."""

    def __init__(self) -> None:
        self._held: dict[Told, str] = {}
        """A first half at the end of a text, by its part without the text."""

    def joined(self, parts: list[Part]) -> list[Part]:
        """The parts with whole characters. A first half at the end of a text waits for the second. A half that stays
        alone becomes U+FFFD."""
        made: list[Part] = []
        for part in parts:
            match part:
                case Text(text) | Thinking(text) | Declined(text):
                    kind = type(part)
                    if whole := self._whole(kind(""), text):
                        made.append(kind(whole))
                case CallPiece(index, name, arguments):
                    arguments = self._whole(CallPiece(index, "", ""), arguments)
                    if name or arguments:
                        made.append(CallPiece(index, _replaced(name), arguments))
                case Finished():
                    made += [*self._rest(), part]
        return made

    def _whole(self, where: Told, text: str) -> str:
        text = self._held.pop(where, "") + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._held[where], text = text[-1], text[:-1]
        return _replaced(text)

    def _rest(self) -> list[Part]:
        """Halves whose other half did not come before the end."""
        alone, self._held = list(self._held), {}
        return [CallPiece(p.index, "", "\ufffd") if isinstance(p, CallPiece) else type(p)("\ufffd") for p in alone]


def _replaced(text: str) -> str:
    """Pairs as one character, and each half that is alone as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
