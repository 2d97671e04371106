"""The canary sees a key that is planted: in a reply of an app of this process, in a log, and in each kind of store."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from ninelives.http.edge.gate import Gate, Rules
from ninelives.http.edge.keys import Keyring
from ninelives.observe.log import Log
from ninelives.testing.contract.accounts import key_row
from tests import pg
from tests.asgi import call, knock
from tests.canary import REPLIES, leaks, values_of

SENT = "of-nobody-else-0123456789"
KEY = "-".join(("canary", "key", "0123456789abcdef"))
"""Not in this file as one word: a traceback in a log would show it."""


async def echo(request: Request) -> Response:
    return JSONResponse({"seen": request.headers["authorization"]})


async def header(request: Request) -> Response:
    return Response("", headers={"x-seen": KEY})


async def stream(request: Request) -> Response:
    return StreamingResponse(iter([KEY[:9].encode(), KEY[9:].encode()]))


async def line(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(KEY)


async def clean(request: Request) -> Response:
    return Response("nl_ is how a key begins")


@pytest.fixture
def app() -> Gate:
    routes = [Route("/echo", echo), Route("/header", header), Route("/stream", stream), Route("/clean", clean)]
    inside = Starlette(routes=[*routes, Route("/api/keys", clean, methods=["POST"]), WebSocketRoute("/line", line)])
    keyring = Keyring()
    keyring.add(SENT, "ann", frozenset({"admin"}))
    return Gate(
        inside, keyring=keyring, rules=Rules(loopback=True, max_body=1000), new_id=lambda: "r", log=Log(str, None)
    )


@pytest.mark.parametrize(("path", "caught"), [("/echo", 1), ("/header", 1), ("/stream", 1), ("/clean", 0)])
async def test_a_key_in_a_reply_of_an_app_of_this_process_is_found(app: Gate, path: str, caught: int) -> None:
    answer = await call(app, "GET", path, {"authorization": f"Bearer {SENT}", "host": "127.0.0.1"})
    assert answer.status == 200
    found = REPLIES.taken()
    assert len(found) == caught and all(path in each for each in found)


async def test_a_key_in_a_frame_of_a_websocket_is_found(app: Gate) -> None:
    await knock(app, "/line", {"authorization": f"Bearer {SENT}", "host": "127.0.0.1"})
    assert len(REPLIES.taken()) == 1


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not among those that are searched after the tests."""
    with TemporaryDirectory() as made:
        yield Path(made)


def stored(database: Path, value: bytes, text: str = "") -> None:
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS segments (data BLOB)")
        db.execute("CREATE TABLE IF NOT EXISTS others (text TEXT)")
        db.execute("INSERT INTO segments VALUES (?)", (zlib.compress(value),))
        db.execute("INSERT INTO others VALUES (?)", (text,))


def test_a_key_in_a_log_a_file_or_a_packed_record_is_found(folder: Path) -> None:
    stored(folder / "ninelives.db", b"nothing")
    assert leaks(folder) == []
    stored(folder / "ninelives.db", f"before {KEY} after".encode())
    assert ["unpacked" in each for each in leaks(folder)] == [True]
    (folder / "server.err").write_text(KEY)
    (folder / "workspaces/a").mkdir(parents=True)
    (folder / "workspaces/a/notes").write_text(KEY)
    (folder / "key").write_text(KEY)
    assert len(leaks(folder)) == 3


def test_a_key_on_two_pages_of_a_database_is_whole_in_what_is_searched(folder: Path) -> None:
    stored(folder / "ninelives.db", b"", KEY * 1_000)
    assert (folder / "ninelives.db").read_bytes().count(KEY.encode()) < 1_000
    assert b"".join(values_of(folder / "ninelives.db")).count(KEY.encode()) == 1_000


@pytest.mark.skipif(pg.WHY is not None, reason=str(pg.WHY))
async def test_a_key_in_a_row_of_postgresql_is_found() -> None:
    here = pg.server()
    url = await here.database()
    assert await asyncio.to_thread(here.leaks) == []
    store = await pg.opened(url)
    await store.keys.add(key_row(KEY))
    await store.close()
    here._searched.clear()
    (found,) = await asyncio.to_thread(here.leaks)
    assert "api_keys" in found
    await here.run(url, "DELETE FROM api_keys")
    sql = "INSERT INTO session_turns (owner, session, n, at, turn) VALUES ('a', 's', 1, 1, convert_to($1, 'UTF8'))"
    connection = await pg.asyncpg.connect(url)
    await connection.execute(sql, "x" * 100_000 + KEY)
    await connection.close()
    with pytest.raises(pg.asyncpg.RaiseError, match="session_turns"):
        await here.run(url, pg.EMPTY)
    await here.run(url, "DELETE FROM session_turns")
