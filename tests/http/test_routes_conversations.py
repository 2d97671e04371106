"""Conversations while the server cannot write: 503, nothing half done, and reading goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ninelives.app.agents import choose_model
from ninelives.app.assemble import Assembled, assemble
from ninelives.app.settings import load
from ninelives.journal.values import StoreUnavailable
from ninelives.observe.log import Log
from tests.asgi import Answer, call

KEY = "talks-key-0123456789abcdef"
BASE = "/v1/conversations"
ITEM = {"role": "user", "content": "hi"}


@pytest.fixture
async def built(tmp_path: Path) -> AsyncIterator[Assembled]:
    flags = {"server.data_dir": str(tmp_path), "server.key": KEY, "tools.sandbox": "off"}
    loaded = load(None, {"HOME": str(tmp_path)}, flags)
    model, _ = await choose_model(loaded.settings, {})
    made = await assemble(loaded, KEY, Log(lambda: "", None), model)
    await made.start()
    yield made
    await made.stop()


async def sent(built: Assembled, method: str, path: str, body: Any = None) -> Answer:
    headers = {"authorization": f"Bearer {KEY}", "host": "127.0.0.1", "content-type": "application/json"}
    return await call(built.app, method, path, headers, b"" if body is None else msgspec.json.encode(body))


async def edits_are_refused(built: Assembled, talk: str, item: str, code: str, big: str) -> None:
    """Each edit is 503 with this code and leaves everything as it was."""
    before = [(await sent(built, "GET", path)).json() for path in (f"{BASE}/{talk}", f"{BASE}/{talk}/items", BASE)]
    for method, path, body in [
        ("POST", BASE, {"items": [{**ITEM, "content": big}]}),
        ("POST", f"{BASE}/{talk}/items", {"items": [{**ITEM, "content": big}]}),
        ("POST", f"{BASE}/{talk}", {"metadata": {f"k{n}": big[:512] for n in range(16)}}),
        ("DELETE", f"{BASE}/{talk}/items/{item}", None),
    ]:
        answer = await sent(built, method, path, body)
        assert (answer.status, answer.error()["code"]) == (503, code), (method, path)
        assert answer.header("retry-after")
    after = [(await sent(built, "GET", path)).json() for path in (f"{BASE}/{talk}", f"{BASE}/{talk}/items", BASE)]
    assert after == before


async def begun(built: Assembled) -> tuple[str, str]:
    items = [{**ITEM, "content": "x" * 3_000} for _ in range(3)]
    talk = (await sent(built, "POST", BASE, {"items": items})).json()["id"]
    return talk, (await sent(built, "GET", f"{BASE}/{talk}/items")).json()["data"][0]["id"]


async def done_by_the_writer(built: Assembled, job: Callable[[Any], None]) -> None:
    """Do a job where rows are written. A write of the server that shares its batch and finds no room undoes both."""
    writer = built.store.database.writer
    while True:
        try:
            return await writer.ask(job)
        except StoreUnavailable:
            assert writer.broken is None


async def test_503_shutting_down(built: Assembled) -> None:
    talk, item = await begun(built)
    built.engine._admission.stop()
    await edits_are_refused(built, talk, item, "shutting_down", "x")
    assert (await sent(built, "DELETE", f"{BASE}/{talk}")).error()["code"] == "shutting_down"


async def test_503_storage_full(built: Assembled) -> None:
    talk, item = await begun(built)

    def fill(db: Any) -> None:
        db.pragma("max_page_count", 1_000_000)
        db.execute("CREATE TABLE junk (x BLOB)")
        while free := db.pragma("freelist_count"):
            db.execute("INSERT INTO junk VALUES (zeroblob(?))", (4000 * free,))
        db.pragma("max_page_count", 1)  # no page more than there are

    built.store.database.upkeep.cancel()  # nothing is moved or freed meanwhile
    await done_by_the_writer(built, fill)
    await edits_are_refused(built, talk, item, "storage_full", "y" * 200_000)
    await done_by_the_writer(built, lambda db: db.pragma("max_page_count", 1_000_000) and None)
    assert (await sent(built, "POST", f"{BASE}/{talk}/items", {"items": [ITEM]})).status == 200
    assert (await sent(built, "DELETE", f"{BASE}/{talk}")).json()["deleted"] is True
