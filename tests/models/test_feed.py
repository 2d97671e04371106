"""Parts that are taken as they come, and the deadline of a line on which nobody is woken (E1)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from ninelives.core.errors import AgentError
from ninelives.models.base import Ask, Finished, Part, Text
from ninelives.models.openai import OpenAIModel, Upstream
from ninelives.testing.fake_upstream import FakeUpstream

DEADLINE = 30.0


class Taker:
    """Takes parts as long as it is willing to."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.most = most
        self.all: list[Part] = []
        self.taken = 0
        self.yielded = 0

    def take(self, parts: list[Part]) -> bool:
        if self.taken >= self.most:
            return False
        self.taken += 1
        self.all += parts
        return True

    async def hear(self, up: FakeUpstream, text: str, **settings: float) -> str:
        """Ask, and give back all text in the order in which it came."""
        model = OpenAIModel(Upstream(up.url, "fake-model", **{"retries": 0, **settings}))  # type: ignore[arg-type]
        ask = Ask(({"role": "user", "content": text},), take_parts=self.take)
        try:
            async with asyncio.timeout(DEADLINE), aclosing(model.stream(ask)) as stream:
                async for parts in stream:
                    self.yielded += 1
                    self.all += parts
        finally:
            await model.close()
        return "".join(part.text for part in self.all if isinstance(part, Text))


def words(count: int) -> str:
    return "".join(f"tok{n} " for n in range(count))


async def test_parts_that_are_taken_are_not_yielded_and_the_end_is_never_offered() -> None:
    async with FakeUpstream() as up:
        taker = Taker()
        assert await taker.hear(up, "[[tokens=40 pace=0.005]]") == words(40)
        assert taker.taken > 0
        assert [type(part) for part in taker.all].count(Finished) == 1
        assert isinstance(taker.all[-1], Finished)


@pytest.mark.parametrize("most", [0, 1, 7])
async def test_parts_that_are_not_taken_are_yielded_in_their_place(most: int) -> None:
    async with FakeUpstream() as up:
        taker = Taker(most)
        assert await taker.hear(up, "[[tokens=40 pace=0.005]]") == words(40)
        assert taker.taken <= most
        assert taker.yielded > 0


async def test_nothing_is_asked_again_after_a_part_that_was_taken() -> None:
    async with FakeUpstream() as up:
        taker = Taker()
        with pytest.raises(AgentError) as caught:
            await taker.hear(up, "[[cut=4 pace=0.005]]", retries=2)
        assert caught.value.code == "upstream_cut"
        assert len(up.requests) == 1


async def test_what_a_taker_raises_is_raised_to_whoever_asked() -> None:
    class Lost(Exception):
        pass

    class Refusing(Taker):
        def take(self, parts: list[Part]) -> bool:
            raise Lost

    async with FakeUpstream() as up:
        with pytest.raises(Lost):
            await Refusing().hear(up, "[[tokens=40 pace=0.005]]")


async def test_a_line_that_falls_silent_after_parts_that_were_taken_is_a_failure() -> None:
    async with FakeUpstream() as up:
        taker = Taker()
        with pytest.raises(AgentError) as caught:
            await taker.hear(up, "[[hang=3 pace=0.005]]", stall_s=0.3)
        assert caught.value.code == "upstream_timeout"
