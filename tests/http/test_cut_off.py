"""Rules of ninelives/http/answering.py: a caller whose replica drains while its run waits is cut off, and its retry at
another replica goes on with the run of the first try (G13, A9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from ninelives.dialects.chat.frames import ChatProjection
from ninelives.engine.base import Ticket
from ninelives.engine.engine import Engine
from ninelives.http.answering import Answering, Broke, RouteParts, answer_run
from ninelives.http.body import Aside, BodyLimits
from ninelives.http.edge.keys import ApiKey
from ninelives.testing.playbook import said
from tests.engine.peers import OWNER, House, order, until

KEY = ApiKey("k", OWNER, frozenset())
FIRST = {"credential": KEY.id, "match": "m", "resend_ms": 60_000}
RETRY = {**FIRST, "counted": True}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    built = House()
    yield built
    await built.close()


def posted() -> Request:
    """A request on a connection of our own, whose caller stays."""
    extensions = {"ninelives.disconnect": lambda on_disconnect: lambda: None}
    return Request({"type": "http", "method": "POST", "headers": [], "extensions": extensions, "state": {"key": KEY}})


def parts_of(engine: Engine) -> RouteParts:
    """No more than it takes to answer a run that is there."""
    absent: Any = None
    return RouteParts(engine, absent, absent, absent, absent, b"", BodyLimits(bytes=0, depth=0), 0, Aside())


@pytest.mark.parametrize("stream", [False, True])
async def test_G13_a_caller_that_a_draining_replica_cuts_off_is_noted_before_its_line_breaks(
    house: House, stream: bool
) -> None:
    first, second, word = await house.engine(), await house.engine(), asyncio.Event()
    house.books["hi"] = [[word, *said("done")]]
    ticket = await first.submit(order("hi", **FIRST))
    how = Answering(projection=ChatProjection(), body=lambda *_: {}, refusal=lambda _: None, eager=False)
    waiting = asyncio.create_task(answer_run(posted(), parts_of(first), ticket, how, stream=stream))
    await until(lambda: first.readers.is_read(ticket.run), "somebody waits")
    draining = asyncio.create_task(first.drain(0.1))
    assert isinstance(await asyncio.wait_for(waiting, 60), Broke), "no answer: the caller comes back"
    again = await second.submit(order("hi", **RETRY))
    assert again == Ticket(ticket.run, ticket.session, waited=True), "a second run was begun"
    word.set()
    state = await asyncio.wait_for(second.wait(OWNER, ticket.run), 60)
    assert state is not None and state.status == "completed"
    await asyncio.wait_for(draining, 60)
