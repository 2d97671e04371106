"""What an MCP server that is broken or hostile can do: nothing beyond its own tools."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("mcp")

from ninelives.tools.base import Place, Threads
from ninelives.tools.mcp import link as mcp_link
from ninelives.tools.mcp.tools import McpServer, McpTools, Status
from ninelives.tools.registry import Toolbox
from tests.tools.conftest import Caller, eventually

PATIENCE = 60.0
HUGE = 300 * 1_048_576
BOUND = 64 * 1_048_576
"""What the buffers of two sockets and one message may take together, with plenty of room."""
Tools = list[dict[str, Any]]
GOOD: dict[str, Any] = {"name": "good", "description": "Fine.", "inputSchema": {"type": "object"}}
BAD: Tools = [
    {"name": "no schema", "inputSchema": 5},
    {"name": "wrong type", "inputSchema": {"type": "objekt"}},
    {"name": "wrong properties", "inputSchema": {"type": "object", "properties": [1]}},
    {"name": "a list", "inputSchema": {"type": "array"}},
    {"name": 7, "inputSchema": {"type": "object"}},
    {"name": "", "inputSchema": {"type": "object"}},
    {"name": "wrong hints", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": [1]}},
    {"name": "huge", "inputSchema": {"type": "object", "description": "x" * 40_000}},
    {},
]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_link, "FIRST_PAUSE_S", 0.05)


def result_of(asked: dict[str, Any], tools: Tools) -> dict[str, Any]:
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"name": "hostile", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": tools}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"called {asked['params']['name']}"}]}
    return {}


class HttpServer:
    """A streamable HTTP server that answers calls of a tool named after a trick with that trick."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.sent = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
                )
                body = await reader.readexactly(int(length.partition(b":")[2]))
                await self.answer(head, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(body) if head.startswith(b"POST") and body else {}
        if "id" not in asked:
            writer.write(f"HTTP/1.1 {202 if asked else 405} X\r\ncontent-length: 0\r\n\r\n".encode())
            return
        name = asked.get("params", {}).get("name", "")
        answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result_of(asked, self.tools)}).encode()
        if name == "json":
            await self.flood(writer, "application/json", answer[:-3], b'"')
        elif name == "sized":
            await self.flood(writer, "application/json", answer[:-3], b'"', f"content-length: {HUGE * 2}\r\n")
        elif name == "events":
            await self.flood(writer, "text/event-stream", b"event: message\ndata: " + answer[:-3], b'"')
        elif name == "lines":
            await self.flood(writer, "text/event-stream", b"event: message\ndata: {", b"\ndata: ")
        elif name == "bomb":
            packed = gzip.compress(answer[:-4] + b"x" * BOUND + answer[-4:])
            more = f"content-encoding: gzip\r\ncontent-length: {len(packed)}"
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{more}\r\n\r\n".encode() + packed)
        else:
            head_text = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
            writer.write(head_text.encode() + answer)

    async def flood(
        self, writer: asyncio.StreamWriter, kind: str, first: bytes, between: bytes, more: str = "connection: close\r\n"
    ) -> None:
        """An answer of 300 MB."""
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{more}\r\n".encode() + first)
        piece = between[1:] + b"x" * 65_536
        while self.sent < HUGE:
            writer.write(piece)
            await writer.drain()
            self.sent += len(piece)
        raise ConnectionError


@asynccontextmanager
async def http_server(tools: Tools) -> AsyncIterator[HttpServer]:
    made = HttpServer(tools)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield made
    finally:
        server.close()


class Rig:
    """MCP servers in a toolbox, and the notices about them."""

    def __init__(self, place: Place, servers: list[McpServer]) -> None:
        self.notices: list[Status] = []
        self.threads = Threads(1)
        self.mcp = McpTools(servers, self.threads, self.notices.append)
        self.toolbox = Toolbox([], [self.mcp])
        self.call = Caller(self.toolbox, msgspec.structs.replace(place, timeout_s=PATIENCE))

    @property
    def status(self) -> Status:
        return self.mcp.status()[0]


@asynccontextmanager
async def rig(place: Place, *servers: McpServer) -> AsyncIterator[Rig]:
    at = Rig(place, list(servers))
    await at.mcp.start()
    try:
        yield at
    finally:
        await at.mcp.close()
        at.threads.close()


@asynccontextmanager
async def http_rig(place: Place, tools: Tools) -> AsyncIterator[tuple[Rig, HttpServer]]:
    async with http_server(tools) as server, rig(place, McpServer(name="h", url=server.url)) as at:
        await eventually(lambda: at.status.connected, PATIENCE)
        yield at, server


@pytest.mark.parametrize("trick", ["json", "sized", "events", "lines"])
async def test_an_answer_without_end_over_http_is_not_read_to_its_end(place: Place, trick: str) -> None:
    async with http_rig(place, [GOOD, {**GOOD, "name": trick}]) as (at, server):
        output = await at.call(f"h_{trick}")
        assert output.is_error and "more than 8388608 bytes" in output.text
        assert server.sent < BOUND
        assert (await at.call("h_good")).text == "called good", "other calls work on"
        assert at.status.connected


async def test_a_compressed_answer_is_refused(place: Place) -> None:
    async with http_rig(place, [GOOD, {**GOOD, "name": "bomb"}]) as (at, _):
        output = await at.call("h_bomb")
        assert output.is_error and "compressed" in output.text


STDIO = """
import json, os, sys
tools, trick = json.loads(sys.argv[1]), sys.argv[2]
sys.stderr.write("first line\\nlast words\\n")
sys.stderr.flush()
if trick == "garbage":
    while True:
        sys.stdout.write("this is no message\\n")
        sys.stdout.flush()
        sys.stdin.readline()
for line in sys.stdin:
    asked = json.loads(line)
    if trick == "hang":
        continue
    if "id" not in asked:
        continue
    method = asked["method"]
    if method == "initialize":
        about = {"name": "hostile", "version": "1"}
        version = asked["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        result = {"tools": tools}
    elif method == "tools/call" and asked["params"]["name"] == "flood":
        try:
            while True:
                os.write(1, b"x" * 65536)
        except OSError:
            os._exit(3)
    elif method == "ping" and trick == "deaf":
        continue
    else:
        result = {"content": [{"type": "text", "text": "called"}]}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + "\\n")
    sys.stdout.flush()
"""


def program(tools: Tools, trick: str = "") -> McpServer:
    return McpServer(name="p", command=sys.executable, args=("-c", STDIO, json.dumps(tools), trick))


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_one_bad_tool_does_not_take_the_others_along(place: Place, over: str) -> None:
    tools = [*BAD, GOOD]
    async with http_server(tools) as server:
        which = McpServer(name="p", url=server.url) if over == "http" else program(tools)
        async with rig(place, which) as at:
            await eventually(lambda: at.status.connected, PATIENCE)
            assert at.toolbox.names() == ("p_good",)
            assert not (await at.call("p_good")).is_error
            assert len(at.status.left_out) == len(BAD) - 2, "three have no name"
            for words in ("wrong type: ", "wrong properties: ", "huge: its schema has more than 32768 bytes"):
                assert any(each.startswith(words) for each in at.status.left_out), at.status.left_out
            await eventually(lambda: at.notices, PATIENCE)
            assert at.notices[-1].left_out == at.status.left_out


async def test_a_line_without_end_over_stdio_ends_the_connection_and_says_why(place: Place) -> None:
    async with rig(place, program([GOOD, {**GOOD, "name": "flood"}])) as at:
        await eventually(lambda: at.status.connected, PATIENCE)
        output = await at.call("p_flood")
        assert output.is_error and "a line of more than 8388608 bytes" in output.text
        assert (await at.call("p_good")).text == "called"


DIES = "echo one >&2; echo last words >&2; exit 3"


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (McpServer(name="p", command="/no/such/program"), "No such file"),
        (
            McpServer(name="p", command="/bin/sh", args=("-c", "echo one >&2; echo last words >&2; exit 3")),
            "exit code 3",
        ),
        (program([], "garbage"), "this is no message"),
        (program([], "hang"), "did not answer in time"),
        (McpServer(name="p", url="http://127.0.0.1:1/mcp?key=s3cret"), "ConnectError"),
    ],
    ids=["missing", "dies", "garbage", "hangs", "no connection"],
)
async def test_a_server_that_cannot_be_used_is_told_once_with_its_last_words(
    place: Place, monkeypatch: pytest.MonkeyPatch, server: McpServer, says: str
) -> None:
    monkeypatch.setattr(mcp_link, "CONNECT_S", 2.0)
    async with rig(place, server) as at:
        await eventually(lambda: at.notices, PATIENCE)
        (told,) = at.notices
        assert not told.connected and says in told.fault and "s3cret" not in told.fault
        if server.args:
            assert told.last_words.splitlines()[-1] == "last words"
        ((_, link),) = at.mcp._links
        link.tried.clear()
        await asyncio.wait_for(link.tried.wait(), PATIENCE)
        assert len(at.notices) == 1, "the same fault is told once"


async def test_an_idle_program_that_answers_no_ping_is_started_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_link, "PING_S", 0.05)
    async with rig(place, program([GOOD], "deaf")) as at:
        await eventually(lambda: at.status.connected, PATIENCE)
        monkeypatch.setattr(mcp_link, "CONNECT_S", 1.0)
        await eventually(lambda: any(not each.connected for each in at.notices), PATIENCE)
        lost = next(each for each in at.notices if not each.connected)
        assert "did not answer in time" in lost.fault


async def test_a_server_that_comes_back_is_told_too(place: Place, tmp_path: Path) -> None:
    once = tmp_path / "once"
    script = f'[ -e {once} ] || {{ touch {once}; exit 3; }}; exec "$@"'
    server = program([GOOD])
    late = msgspec.structs.replace(server, command="/bin/sh", args=("-c", script, "sh", server.command, *server.args))
    async with rig(place, late) as at:
        await eventually(lambda: at.status.connected, PATIENCE)
        await eventually(lambda: len(at.notices) > 1, PATIENCE)
        assert [each.connected for each in at.notices] == [False, True]
