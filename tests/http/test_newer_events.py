"""R18 over HTTP: a journal with one event of a newer release is answered with 503, and its run is not harmed."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ninelives.app.assemble import Assembled, assemble
from ninelives.app.settings import load
from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.admission import Asked
from ninelives.core.spec import Resolved, Spec
from ninelives.journal.base import Store
from ninelives.journal.sqlite.store import SqliteStore
from ninelives.journal.values import Opening, Query, Record, Slice
from ninelives.models.scripted import ScriptedModel
from ninelives.observe.log import Log
from ninelives.testing import VirtualClock
from tests import pg
from tests.asgi import call
from tests.engine.peers import until

KEY = "newer-key-0123456789abcdef"
AUTH = {"host": "127.0.0.1:8642", "authorization": f"Bearer {KEY}"}
JSON = {**AUTH, "content-type": "application/json"}
RUN = "n" * 24
UNKNOWN = b'{"type":"run.teleported","to":"elsewhere"}'
SPEC = Spec(dialect="responses", model="hermes-agent", input=({"role": "user", "content": "hi"},))


async def write_newer_run(store: Store) -> list[bytes]:
    """An active run whose last event has a kind that this release does not know. Returns its journal."""

    def accept(resolved: Resolved) -> list[bytes]:
        accepted = e.RunAccepted(spec=SPEC, resolved=resolved, owner="default")
        return [codec.encode(accepted), codec.encode(e.AttemptStarted())]

    asked = Asked(owner="default", fingerprint="f", derived_session="s")
    opening = Opening(
        run=RUN, at=1, dialect="responses", model="hermes-agent", asked=asked, accept=accept, holder="newer"
    )
    await store.open(opening)
    said = codec.encode(e.TextDelta("Hello"))
    await store.append([Slice(RUN, 1, [Record(2, 1, 2, said), Record(3, 1, 3, UNKNOWN)])])
    return await journal_of(store)


async def journal_of(store: Store) -> list[bytes]:
    return [record.data for record in await store.read("default", RUN, -1)]


@asynccontextmanager
async def server(data: Path, log: io.StringIO, **flags: str) -> AsyncIterator[Assembled]:
    tools = {"tools.sandbox": "off", "tools.approval": "never"}
    given = {"server.data_dir": str(data), "server.key": KEY, **tools, **flags}
    made = await assemble(load(None, {"HOME": str(data)}, given), KEY, Log(lambda: "", log), ScriptedModel(pace_s=0.0))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def until_met(log: io.StringIO) -> None:
    """Wait until recovery has tried the run."""
    await until(lambda: "run_not_recovered" in log.getvalue(), "a try to recover the run")


async def check_answers(made: Assembled) -> None:
    for path in (f"/v1/responses/resp_{RUN}", f"/v1/responses/resp_{RUN}/input_items", f"/v1/runs/run_{RUN}"):
        answer = await call(made.app, "GET", path, AUTH)
        assert (answer.status, answer.error()["code"]) == (503, "store_newer"), path
        assert "newer release" in answer.error()["message"] and "upgrade" in answer.error()["message"]
        assert answer.header("retry-after") == "5"
    for path in (f"/v1/responses/resp_{RUN}?stream=true", f"/v1/runs/run_{RUN}/events"):
        stream = (await call(made.app, "GET", path, AUTH)).body
        assert b"stream_broken" in stream and b"newer release" in stream and b"upgrade" in stream
        assert b"[DONE]" not in stream and b"failed" not in stream
    other = await call(made.app, "POST", "/v1/responses", JSON, b'{"input":"hi","background":true}')
    ended = await made.engine.wait("default", other.json()["id"].removeprefix("resp_"))
    assert ended is not None and ended.status == "completed", "other runs are not concerned"


async def check_unharmed(store: Store, before: list[bytes]) -> None:
    (row,) = [row for row in await store.rows(Query(owner="default", limit=10)) if row.run == RUN]
    assert row.status not in ("failed", "completed", "cancelled")
    assert await journal_of(store) == before


async def test_R18_sqlite_an_unknown_kind_is_503_and_the_run_is_left_as_it_is(tmp_path: Path) -> None:
    store = await SqliteStore.open_at(tmp_path / "ninelives.db", "normal", VirtualClock().now_ms)
    before = await write_newer_run(store)
    await store.close()
    log = io.StringIO()
    async with server(tmp_path, log) as made:
        await until_met(log)
        await check_answers(made)
        await check_unharmed(made.engine.durable, before)


@pytest.mark.xdist_group("postgres")
async def test_R18_postgres_an_unknown_kind_is_503_and_the_run_is_left_as_it_is(tmp_path: Path) -> None:
    url = await pg.server().database()
    store = await pg.opened(url, "newer")
    before = await write_newer_run(store)
    await store.close()
    log = io.StringIO()
    async with server(tmp_path, log, **{"store.url": url}) as made:
        await until_met(log)
        await check_answers(made)
        await check_unharmed(made.engine.durable, before)
