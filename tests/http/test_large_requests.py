"""A large request does not keep the loop from others (A8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ninelives.app.assemble import Assembled, assemble
from ninelives.app.settings import load
from ninelives.core import codec
from ninelives.core.events import RunAccepted
from ninelives.core.rope import LARGE_BYTES, alone
from ninelives.dialects import fields
from ninelives.dialects.chat import parse as chat_parse
from ninelives.dialects.chat.parse import read_messages
from ninelives.engine import run as engine_run
from ninelives.http.body import Aside
from ninelives.models.scripted import ScriptedModel
from ninelives.observe.log import Log
from tests.asgi import Answer, call

KEY = "large-key-0123456789abcdef"
AUTH = {"host": "127.0.0.1:8642", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
TEXT = "word " * (LARGE_BYTES // 4)
MESSAGES = [{"role": "user", "content": TEXT}]


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Assembled]:
    flags = {"server.data_dir": str(tmp_path), "server.key": KEY, "tools.sandbox": "off", "tools.approval": "never"}
    made = await assemble(load(None, {"HOME": str(tmp_path)}, flags), KEY, Log(lambda: "", None), ScriptedModel())
    await made.start()
    yield made
    await made.stop()


async def post(server: Assembled, path: str, body: Any) -> Answer:
    async def staying(scope: Any, receive: Any, send: Any) -> None:
        """A caller who does not leave before the answer."""
        await server.app({**scope, "extensions": {"ninelives.disconnect": lambda told: lambda: None}}, receive, send)

    return await call(staying, "POST", path, AUTH, msgspec.json.encode(body))


@pytest.mark.parametrize(("size", "aside"), [(LARGE_BYTES, False), (LARGE_BYTES + 1, True)])
async def test_the_work_on_a_large_request_is_done_in_a_thread(size: int, aside: bool) -> None:
    there = await Aside().run(size, threading.current_thread)
    assert (there is not threading.current_thread()) is aside


LARGE: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/responses", {"input": TEXT}),
    ("/v1/responses/input_tokens", {"input": TEXT}),
    ("/v1/responses/compact", {"input": TEXT, "model": "hermes-agent"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 10}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/v1/runs", {"input": TEXT}),
    ("/v1/conversations", {"items": [{"role": "user", "content": TEXT}]}),
]


@pytest.mark.parametrize(("path", "body"), LARGE, ids=[path for path, _ in LARGE])
async def test_every_api_reads_a_large_request_in_a_thread(
    server: Assembled, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    decode = fields.decode

    def noting(raw: bytes, kind: type[Any]) -> Any:
        threads.append(threading.current_thread())
        return decode(raw, kind)

    def reading(given: Any, max_parts: int) -> Any:
        threads.append(threading.current_thread())
        return read_messages(given, max_parts)

    monkeypatch.setattr(fields, "decode", noting)
    monkeypatch.setattr(chat_parse, "read_messages", reading)
    answer = await post(server, path, body)
    assert answer.status in (200, 202), answer.body
    assert threads
    assert threading.current_thread() not in threads


async def test_a_request_that_begins_at_once_is_not_decoded_again_from_its_journal(
    server: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[object] = []
    decode = codec.decode

    def noting(data: bytes) -> Any:
        decoded.append(event := decode(data))
        return event

    monkeypatch.setattr(codec, "decode", noting)
    answer = await post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert answer.status == 200
    assert not [event for event in decoded if isinstance(event, RunAccepted)]


async def test_the_turn_of_a_stored_run_is_encoded_in_a_thread(
    server: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten megabytes take tens of milliseconds."""
    threads: list[threading.Thread] = []
    encode = engine_run._turns

    def noting(state: Any, *, remembers: bool) -> Any:
        threads.append(threading.current_thread())
        return encode(state, remembers=remembers)

    monkeypatch.setattr(engine_run, "_turns", noting)
    answer = await post(server, "/v1/responses", {"input": TEXT, "store": True})
    assert answer.status == 200
    assert threads and threading.current_thread() not in threads


async def test_r12_large_pieces_of_all_requests_are_worked_on_one_after_the_other(server: Assembled) -> None:
    """With several threads at it, the loop waited for a call of each: 76 ms. Here somebody else has the turn."""
    begun, go = threading.Event(), threading.Event()

    def holding() -> None:
        begun.set()
        go.wait(60)

    holder = threading.Thread(target=alone, args=(LARGE_BYTES, holding))
    holder.start()
    begun.wait(60)
    asked = asyncio.create_task(post(server, "/v1/responses", {"input": TEXT, "store": True}))
    small = await post(server, "/v1/responses", {"input": "hi", "store": True})
    assert small.status == 200 and not asked.done()
    go.set()
    holder.join()
    assert (await asked).status == 200
