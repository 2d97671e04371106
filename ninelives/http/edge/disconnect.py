"""Noticing that a client has disconnected. Owns: the one way in which a request learns of it while it awaits something
else. A connection of our own (connection.py) calls back, which costs no task and no memory per request. On any other
server a task awaits ASGI's receive(). Refuses to know: what is done then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

T = TypeVar("T")
OnDisconnect = Callable[[], None]
_WITH_BODY = frozenset({b"content-length", b"transfer-encoding"})


class Left(Exception):
    """The client has disconnected."""


def watch(scope: Scope, receive: Receive, on_disconnect: OnDisconnect) -> Callable[[], object]:
    """Call `on_disconnect` when the client disconnects. The returned function ends the watch."""
    subscribe = scope.get("extensions", {}).get("ninelives.disconnect")
    if subscribe is not None and _is_read(scope):
        return subscribe(on_disconnect)  # type: ignore[no-any-return]
    return asyncio.create_task(_ask(receive, on_disconnect)).cancel


def _is_read(scope: Scope) -> bool:
    """True where the whole request was read, as for every POST. An unread body stops the connection from reading, so
    it would not notice a disconnect; receive() discards such a body."""
    return scope["method"] == "POST" or not any(name in _WITH_BODY for name, _ in scope["headers"])


async def _ask(receive: Receive, on_disconnect: OnDisconnect) -> None:
    await gone(receive)
    on_disconnect()


async def gone(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def unless_gone(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the client disconnects first, cancel it and raise Left. `work` runs in this task, as under
    asyncio.timeout: two tasks and a wait for both would cost 60 us of a request that takes 1,000."""
    task = asyncio.current_task()
    left: list[bool] = []

    def on_disconnect() -> None:
        left.append(True)
        if task is not None and asyncio.current_task() is not task:  # else `work` is running, and `left` is read after
            task.cancel()

    unwatch = watch(scope, receive, on_disconnect)
    if left:  # the client was gone before
        unwatch()
        work.close()
        raise Left
    try:
        result = await work
    except asyncio.CancelledError:
        if left and task is not None and task.uncancel() == 0:
            raise Left from None
        raise
    finally:
        unwatch()
    if left:
        raise Left
    return result
