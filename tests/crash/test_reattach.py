"""A caller who comes back with its key while the run ends (C5, G2)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ninelives.dialects.responses.reattach import ReattachProjection
from ninelives.drill.checks import DONE, frames_of, payload, tail_of
from ninelives.engine.base import Chunk, StreamEnded
from tests.crash.trial import BOOKS
from tests.crash.world import OWNER, World, order


@pytest.mark.parametrize("book", BOOKS)
async def test_C5_a_reattach_that_meets_the_end_begins_with_a_snapshot_all_the_same(tmp_path: Path, book: str) -> None:
    world = World(tmp_path, "memory", {"go": BOOKS[book]})
    life = await world.begin()
    run = await life.submit(order())
    assert run is not None and await life.wait(run) == "completed"
    subscription = life.engine.attach(OWNER, run, ReattachProjection(), -1)
    data = b""
    async with asyncio.timeout(60):
        while not isinstance(news := await subscription.next(), StreamEnded):
            assert isinstance(news, Chunk)
            data += news.data
    subscription.close()
    frames, replay = frames_of(data), frames_of(await life.read(run, "responses"))
    await life.end()
    first = payload(frames[0])
    assert first["type"] == "response.snapshot"
    assert frames[1:] == tail_of("responses", replay, first["sequence_number"])
    assert frames[-1] == DONE
