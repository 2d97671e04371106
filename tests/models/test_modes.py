"""An upstream that does not stream, or not with tools, or does not know stream_options, is asked again in its way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from ninelives.core.errors import AgentError
from ninelives.core.events import Usage
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text
from ninelives.models.modes import REMEMBER_S, AnswerMode, simpler
from ninelives.models.openai import OpenAIModel, Upstream
from ninelives.testing.fake_upstream import FakeUpstream

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


class Rig:
    """A model in front of the fake upstream, on a clock of its own."""

    def __init__(self, up: FakeUpstream) -> None:
        self.up = up
        self.now = 1000.0
        self.model = OpenAIModel(Upstream(up.url, "fake-model", retries=0), clock=lambda: self.now)

    async def ask(self, text: str, *tools: dict[str, object]) -> list[Part]:
        told: list[Part] = []
        async with aclosing(self.model.stream(Ask(({"role": "user", "content": text},), tools))) as stream:
            async for parts in stream:
                told += parts
        return told

    def asked(self) -> list[tuple[bool, bool]]:
        """For each request: was it to be streamed, and with stream_options?"""
        return [(request["stream"], "stream_options" in request) for request in self.up.requests]


@pytest.fixture
async def here() -> AsyncIterator[Rig]:
    async with FakeUpstream() as up:
        rig = Rig(up)
        yield rig
        await rig.model.close()


WHOLE, PLAIN, USUAL = (False, False), (True, False), (True, True)


async def test_e1_a_refusal_to_stream_is_asked_again_once_and_its_answer_is_one_piece(here: Rig) -> None:
    parts = await here.ask("[[nostream]] [[text=Hello big world]]")
    assert parts == [Text("Hello big world"), Finished("stop", Usage(4, 3))]
    assert here.asked() == [USUAL, WHOLE]


async def test_e1_what_an_upstream_refused_is_remembered_for_a_while(here: Rig) -> None:
    await here.ask("[[nostream]]")
    await here.ask("[[nostream]]")
    assert here.asked() == [USUAL, WHOLE, WHOLE]
    here.now += REMEMBER_S
    await here.ask("hello")
    assert here.asked()[3:] == [USUAL], "it may stream by now"


async def test_e1_streaming_that_is_refused_with_tools_goes_on_without_them(here: Rig) -> None:
    calls = '[[nostream=tools]] [[tools=f:{"a": 1}]]'
    assert CallPiece(0, "f", '{"a": 1}') in await here.ask(calls, TOOL)
    assert len(await here.ask("[[nostream=tools]]")) > 2, "streamed"
    await here.ask(calls, TOOL)
    assert here.asked() == [USUAL, WHOLE, USUAL, WHOLE]


async def test_e1_an_upstream_that_does_not_know_stream_options_still_streams(here: Rig) -> None:
    parts = await here.ask("[[nooptions]]")
    assert len(parts) > 3 and parts[-1] == Finished("stop", Usage()), "no usage: it is estimated later"
    assert here.asked() == [USUAL, PLAIN]
    await here.ask("[[nooptions]] [[nostream]]")
    assert here.asked()[2:] == [PLAIN, WHOLE]


async def test_e1_a_refusal_for_another_reason_is_not_asked_again(here: Rig) -> None:
    with pytest.raises(AgentError) as caught:
        await here.ask("[[status=400]]")
    assert caught.value.code == "upstream_rejected" and here.asked() == [USUAL]


async def test_e1_where_the_second_way_is_refused_too_its_reason_is_told_and_nothing_is_remembered(here: Rig) -> None:
    with pytest.raises(AgentError, match="fake status 400"):
        await here.ask("[[nostream]] [[status=400 unstreamed]]")
    await here.ask("hello")
    assert here.asked() == [USUAL, WHOLE, USUAL]


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("Streaming is not supported for this model.", "whole"),
        ("stream=true is not supported", "whole"),
        ('{"error": {"message": "Unsupported value", "param": "stream", "code": "unsupported_value"}}', "whole"),
        ("The model is unsupported for streaming", "whole"),
        ("Your organization must be verified to stream this model.", "whole"),
        ("`tools` and `stream` cannot be used together", "whole"),
        ("body.stream_options: Extra inputs are not permitted", "stream"),
        ("include_usage is not allowed", "stream"),
        ("The upstream model failed", None),
        ("messages: field required", None),
    ],
)
def test_e1_refusals_in_the_words_of_real_upstreams(text: str, then: AnswerMode | None) -> None:
    assert simpler("usage", 400, text.encode()) == then
    assert simpler("whole", 400, text.encode()) is None
    assert simpler("usage", 429, text.encode()) is None and simpler("usage", 500, text.encode()) is None
