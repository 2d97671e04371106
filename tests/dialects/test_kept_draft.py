"""A draft whose model call was kept: no dialect shows the attempt, and the text goes on."""

from __future__ import annotations

from typing import Any

import pytest

from ninelives.dialects.chat.frames import ChatProjection
from ninelives.dialects.completions.frames import CompletionsProjection
from ninelives.dialects.hermes.frames import SessionProjection
from ninelives.dialects.messages.frames import MessagesProjection
from ninelives.dialects.responses.frames import ResponsesProjection
from ninelives.dialects.runs.frames import RunsProjection
from tests.dialects.transcript import replay
from tests.journals import Pen

PROJECTIONS: list[Any] = [
    ChatProjection(),
    CompletionsProjection(),
    SessionProjection(),
    MessagesProjection(),
    ResponsesProjection(),
    RunsProjection(),
]


@pytest.mark.parametrize("projection", PROJECTIONS, ids=lambda each: each.name)
def test_no_dialect_shows_an_attempt_that_keeps_the_draft(projection: Any) -> None:
    def frames(pen: Pen) -> list[bytes]:
        return [bytes(each) for each in replay(projection, pen.entries)]

    half = Pen().attempt().think("Hm").text("Hel")
    before = frames(half)
    assert frames(half.keep()) == before, "the attempt is not shown"
    whole = frames(half.text("lo").settle().complete())
    assert whole[: len(before)] == before
    said = b"".join(whole)
    assert b"lo" in said and not any(word in said for word in (b"dropped", b"restarted", b"incomplete\\"))
