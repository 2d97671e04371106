"""A retry after a crash at every step, and a reader who comes before the run is taken up again (G3, G13, B8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.admission import Asked
from ninelives.core.spec import Resolved, Spec
from ninelives.dialects.chat.frames import ChatProjection
from ninelives.engine.base import Chunk, EngineLimits, EngineParts
from ninelives.engine.readers import Readers
from ninelives.engine.subscription import Subscription
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.notifier import LocalNotifier
from ninelives.journal.values import Mark, Opening, Record, Slice
from tests.crash.trial import BOOKS
from tests.crash.world import OWNER, Crash, World, order

FIRST: dict[str, Any] = {"credential": "k", "match": "m", "resend_ms": 36_000_000}
RETRY: dict[str, Any] = {**FIRST, "counted": True}


def again(**fields: Any) -> Any:
    """The same request, as its first try or as a retry."""
    made = order()
    return type(made)(owner=made.owner, spec=made.spec, asked=_with(made.asked, **fields))


def _with(asked: Asked, **fields: Any) -> Asked:
    return Asked(owner=asked.owner, fingerprint=asked.fingerprint, derived_session="derived", **fields)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_G13_after_a_crash_at_every_step_a_retry_gives_one_run_that_completes(
    tmp_path: Path, backend: Literal["memory", "sqlite"], when: Literal["before", "after"]
) -> None:
    for at in range(1, 100):
        folder = tmp_path / str(at)
        folder.mkdir()
        world = World(folder, backend, {"go": BOOKS["three"]})
        life = await world.begin(Crash(at, when))
        run = await life.submit(again(**FIRST))
        over = run is not None and await life.wait(run) is not None
        await life.end()
        if over:
            assert at > 5, "there must be something to die at"
            return
        life = await world.begin()
        retried = await life.submit(again(**RETRY))
        assert retried is not None and run in (None, retried)
        assert await life.wait(retried) == "completed"
        assert await life.rows() == [retried]
        assert set(world.effects.values()) <= {1}, "no finished tool runs twice"
        await life.store.deliveries.answered([(OWNER, retried)])
        third = await life.submit(again(**RETRY))
        assert third not in (None, retried), "an answer is delivered once"
        await life.end()
    raise AssertionError("the run never ended")


class Undriven:
    """A chat run with a settled message and a draft, whose process died."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = MemoryStore(lambda: self.now)
        self.bell = LocalNotifier()
        self.seq = 1

    async def open(self) -> None:
        spec = Spec(dialect="chat", model="m", input=({"role": "user", "content": "hi"},))

        def accept(resolved: Resolved) -> list[bytes]:
            accepted = e.RunAccepted(spec=spec, resolved=resolved, owner="alice")
            return [codec.encode(accepted), codec.encode(e.AttemptStarted())]

        asked = Asked(owner="alice", fingerprint="f")
        fields: dict[str, Any] = {"run": "run1", "at": 1, "dialect": "chat", "model": "m"}
        await self.store.open(Opening(**fields, asked=asked, accept=accept, holder="h"))

    async def write(self, *events: Any, mark: Mark | None = None, attempt: int = 1) -> None:
        records = [Record(self.seq + 1 + n, attempt, 1, codec.encode(event)) for n, event in enumerate(events)]
        self.seq += len(records)
        await self.store.append([Slice("run1", attempt, records, mark)])
        self.bell.ring(["run1"])

    def reader(self) -> Subscription:
        given: Any = (self.store, MemoryStore(lambda: self.now), self.bell, None, EngineLimits(), None)
        return Readers(EngineParts(*given, lambda: 1, str)).subscribe("alice", "run1", ChatProjection(), -1)


async def _next(reader: Subscription) -> bytes:
    async with asyncio.timeout(60):
        news = await reader.next()
    assert isinstance(news, Chunk)
    return news.data


async def test_G3_a_chat_reader_who_comes_before_the_run_is_taken_up_again_never_sees_the_dead_draft() -> None:
    world = Undriven()
    await world.open()
    call = e.Call(id="c1", name="_none", arguments="{}")
    await world.write(e.TextDelta("Settled."), e.MessageCompleted(text="Settled.", calls=(call,)))
    await world.write(e.ToolStarted(call=call), e.ToolFinished(call_id="c1", output="x"), e.TextDelta("dead draft"))
    reader = world.reader()
    data = await _next(reader)
    assert b"Settled." in data
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    assert b"dead draft" not in data and not waiting.done()
    world.now += 60.0  # the dead one's claim is over
    claim = await world.store.claim("run1", "h2", lambda n, clean, lost: codec.encode(e.AttemptStarted()), 2)
    assert claim is not None
    world.seq += 1
    end = Mark(status="completed", at=3, ended=True)
    await world.write(e.TextDelta("New."), e.MessageCompleted(text="New."), e.RunCompleted(), mark=end, attempt=2)
    async with asyncio.timeout(60):
        news = await waiting
    assert isinstance(news, Chunk)
    assert b"New." in news.data and b"dead draft" not in news.data and b"[DONE]" in news.data
    assert b"stream_restarted" not in news.data
    reader.close()
