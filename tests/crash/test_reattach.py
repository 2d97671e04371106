"""A caller who comes back with its key while the run ends (C5, G2)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ninelives.dialects.responses.reattach import ReattachProjection
from ninelives.drill.checks import DONE, frames_of, payload, tail_of
from ninelives.drill.loads import Load
from ninelives.drill.wire import Exchange
from ninelives.engine.base import Chunk, StreamEnded
from tests.crash.trial import BOOKS
from tests.crash.world import OWNER, World, order

SNAPSHOT_FRAME = (
    b'event: response.snapshot\ndata: {"type":"response.snapshot","sequence_number":7,"response":{"id":"resp_x"}}\n\n'
)


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


@pytest.mark.parametrize(
    ("received", "kept"),
    [
        (b'event: a\ndata: {"id":"resp_x"}\n\n', (-1, b'event: a\ndata: {"id":"resp_x"}\n\n', "resp_x")),
        (SNAPSHOT_FRAME + b"event: b\ndata: {}\n\n", (7, b"event: b\ndata: {}\n\n", "resp_x")),
        (b": keepalive\n\n" + SNAPSHOT_FRAME, (7, b"", "resp_x")),
        (SNAPSHOT_FRAME[:-5], (-1, b"", "")),
    ],
)
def test_the_drill_takes_what_follows_a_snapshot_for_the_rest_of_a_stream(
    received: bytes, kept: tuple[int, bytes, str]
) -> None:
    load, exchange = Load("load-a", "responses", "hello"), Exchange(1, "POST", "/")
    exchange.data = received
    load.learn(exchange)
    told = load.told[0]
    assert (told.after, told.data, load.id) == kept
