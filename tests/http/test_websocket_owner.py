"""A websocket with ids of another owner: the answer is exactly that to an unknown id, as on every route
(test_routes_owner.py, whose world this is)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.http.test_routes_owner import RESPONSES, SECRET, World, filled, unknown, world

__all__ = ["world"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

FRAMES: list[dict[str, Any]] = [
    {"input": "hi", "previous_response_id": "{resp}"},
    {"input": "hi", "previous_response_id": "{active_resp}", "store": False},
    {"input": "hi", "conversation": "{conversation}"},
    {"input": "hi", "conversation": {"id": "{active_conversation}"}, "store": False},
    {"input": [{"type": "item_reference", "id": "{item}"}]},
    {"input": [{"type": "item_reference", "id": "{talk_item}"}]},
]


async def answers(world: World, who: str, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last event of each frame's answer, all on one connection."""
    last: list[dict[str, Any]] = []
    wanted: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    wanted.put_nowait({"type": "websocket.connect"})
    todo = [json.dumps({"type": "response.create", **frame}) for frame in frames]

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            event = json.loads(message["text"])
            assert who == "alice" or SECRET not in message["text"]
            if event["type"] not in ("error", "response.completed"):
                return
            last.append(event)
        left = todo[len(last) :]
        more = (
            {"type": "websocket.receive", "text": left[0]} if left else {"type": "websocket.disconnect", "code": 1000}
        )
        wanted.put_nowait(more)

    sent = {**world.identity(who), "host": "127.0.0.1"}
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "scheme": "ws",
        "path": RESPONSES,
        "raw_path": RESPONSES.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    async with asyncio.timeout(60):
        await world.built.app(scope, wanted.get, send)
    return last


async def test_a_foreign_id_on_a_websocket_is_answered_exactly_like_an_unknown_one(world: World) -> None:
    theirs, nobodys = world.alices, unknown(world.alices)
    foreign = await answers(world, "bob", [filled(frame, theirs) for frame in FRAMES])
    strange = await answers(world, "bob", [filled(frame, nobodys) for frame in FRAMES])
    assert len(foreign) == len(FRAMES) and all(event["status"] in (400, 404) for event in foreign)
    for name, shown in theirs.items():
        strange = json.loads(json.dumps(strange).replace(nobodys[name], shown))
    assert foreign == strange


async def test_the_owners_own_ids_work_on_a_websocket(world: World) -> None:
    """Else the test above would see nothing."""
    own = await answers(world, "alice", [filled(FRAMES[place], world.alices) for place in (0, 2, 4, 5)])
    assert [event["type"] for event in own] == ["response.completed"] * 4, own
