"""How an upstream is asked for its answer: streamed with the usage at the end, streamed, or in one piece. Owns: which
way to try first, and which one follows a refusal. Refuses to know: requests, and what an answer means.

Some upstreams do not know `stream_options`. Others refuse to stream: one model, or every model as soon as there are
tools. So what an upstream accepted is remembered for requests with tools and without, and only for a while: the next
version of the upstream may stream."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

AnswerMode = Literal["usage", "stream", "whole"]
REMEMBER_S = 3600.0
FIELDS: dict[AnswerMode, dict[str, object]] = {
    "usage": {"stream": True, "stream_options": {"include_usage": True}},
    "stream": {"stream": True},
    "whole": {"stream": False},
}
"""The fields of a request by which each way is asked for."""

_STATUS = frozenset({400, 405, 406, 415, 422, 501})
_OPTIONS = re.compile(r"stream_options|include_usage")
_STREAM = re.compile(r"\bstream(?:s|ed|ing)?\b")


def simpler(mode: AnswerMode, status: int, body: bytes) -> AnswerMode | None:
    """The way to ask after this refusal; None where the refusal is not about streaming."""
    if status not in _STATUS or mode == "whole":
        return None
    text = body.decode(errors="replace").lower()
    if _OPTIONS.search(text):
        return "stream" if mode == "usage" else None
    return "whole" if _STREAM.search(text) else None


class ModeMemory:
    """What the upstream of one model accepted, with tools and without."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.accepted_modes: dict[bool, tuple[AnswerMode, float]] = {}
        """By whether there are tools, with the time until which it counts. Empty: nothing was ever refused."""

    def first(self, *, tools: bool) -> AnswerMode:
        """The way to try first."""
        mode, until = self.accepted_modes.get(tools, ("usage", 0.0))
        return mode if self._clock() < until else "usage"

    def accepted(self, mode: AnswerMode, *, tools: bool) -> None:
        """The upstream accepted this way, after it had refused another."""
        self.accepted_modes[tools] = mode, self._clock() + REMEMBER_S
