"""Rules of ninelives/http/answering.py: a disconnect is noticed, on every ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ninelives.http.answering import Left, unless_gone

POSTED: dict[str, Any] = {"type": "http", "method": "POST", "headers": [(b"content-length", b"2")]}


class Line:
    """A connection as connection.py shows it: it calls back when the client disconnects."""

    def __init__(self) -> None:
        self.watching: list[Callable[[], None]] = []
        self.scope = {**POSTED, "extensions": {"ninelives.disconnect": self.watch}}

    def watch(self, on_disconnect: Callable[[], None]) -> Callable[[], None]:
        self.watching.append(on_disconnect)
        return lambda: self.watching.remove(on_disconnect)

    async def receive(self) -> dict[str, str]:
        raise AssertionError("receive() is not needed on a connection that calls back")


class Other:
    """Any other ASGI server: receive() says so."""

    def __init__(self) -> None:
        self.scope = dict(POSTED)
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_work_that_is_done_first_gives_its_result_and_ends_the_watch() -> None:
    line = Line()
    assert await unless_gone(line.scope, line.receive, asyncio.sleep(0, 7)) == 7
    assert not line.watching


async def test_a_caller_who_goes_stops_the_work_and_leaves_the_task_uncancelled() -> None:
    line, stopped = Line(), asyncio.Event()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(line.watching[0])
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    with pytest.raises(Left):
        await unless_gone(line.scope, line.receive, work())
    task = asyncio.current_task()
    assert stopped.is_set() and task is not None and not task.cancelling()
    await asyncio.sleep(0)


async def test_a_word_that_comes_too_late_for_the_work_hits_nothing_else() -> None:
    line = Line()

    async def work() -> None:
        line.watching[0]()

    with pytest.raises(Left):
        await unless_gone(line.scope, line.receive, work())
    await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_is_none_of_the_callers() -> None:
    line = Line()
    task = asyncio.create_task(unless_gone(line.scope, line.receive, asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not line.watching


async def test_any_other_server_is_asked() -> None:
    other = Other()

    async def work() -> None:
        other.left.set()
        await asyncio.sleep(60)

    with pytest.raises(Left):
        await unless_gone(other.scope, other.receive, work())


async def test_a_body_that_nobody_read_is_thrown_away_while_watching() -> None:
    line = Line()
    line.scope["method"] = "GET"
    messages = [{"type": "http.request"}, {"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, str]:
        return messages.pop(0)

    with pytest.raises(Left):
        await unless_gone(line.scope, receive, asyncio.sleep(60))
    assert not messages and not line.watching


async def test_for_a_caller_who_has_gone_before_nothing_is_begun() -> None:
    def watch(on_disconnect: Callable[[], None]) -> Callable[[], None]:
        on_disconnect()
        return lambda: None

    async def work() -> None:
        raise AssertionError("it was begun")

    with pytest.raises(Left):
        await unless_gone({**POSTED, "extensions": {"ninelives.disconnect": watch}}, Line().receive, work())
    await asyncio.sleep(0)
