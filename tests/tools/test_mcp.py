"""Rules of MCP tools, against real servers written with the official package (mcp_server.py)."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

pytest.importorskip("mcp")

from ninelives.tools.base import FunctionTool, Output, Place, Threads, Tool, ToolRefused, approval_class
from ninelives.tools.decorator import ToolsError
from ninelives.tools.mcp import link as mcp_link
from ninelives.tools.mcp.link import ListedTool, McpAddress, McpLink
from ninelives.tools.mcp.tools import McpServer, McpTool, McpTools, _parts
from ninelives.tools.registry import Toolbox
from tests.tools.conftest import Caller, alive, both_loops, eventually

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
PATIENCE = 60.0
"""Starting a server takes a second or two on an idle machine."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_link, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(mcp_link, "LIST_GAP_S", 0.05)
    monkeypatch.setattr(mcp_link, "WAIT_S", PATIENCE)


@pytest.fixture
def place(place: Place) -> Place:
    return msgspec.structs.replace(place, timeout_s=PATIENCE)


def stdio(tmp_path: Path, **fields: object) -> McpServer:
    given: dict[str, object] = {
        "name": "t",
        "command": sys.executable,
        "args": (SCRIPT, "stdio"),
        "env": {"MCP_TEST_LOG": str(tmp_path / "log"), "TOKEN": "mine"},
    }
    return msgspec.convert({**given, **fields}, McpServer)


def logged(tmp_path: Path) -> list[str]:
    path = tmp_path / "log"
    return path.read_text().splitlines() if path.exists() else []


class Rig:
    """Servers, a toolbox over them, and a way to call."""

    def __init__(self, place: Place, mcp: McpTools) -> None:
        self.mcp = mcp
        self.toolbox = Toolbox([], [mcp])
        self.place = place
        self.call = Caller(self.toolbox, place)

    async def connected(self) -> None:
        await eventually(lambda: all(each.connected for each in self.mcp.status()), PATIENCE)

    def effects(self) -> dict[str, str]:
        return {tool.name: tool.effect for tool in self.mcp.tools()}


@asynccontextmanager
async def rig(place: Place, *servers: McpServer) -> AsyncIterator[Rig]:
    threads = Threads(1)
    mcp = McpTools(servers, threads)
    await mcp.start()
    try:
        await mcp.wait_for_servers(PATIENCE)
        yield Rig(place, mcp)
    finally:
        await mcp.close()
        threads.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(log: Path) -> AsyncIterator[Rig]:
    """A server for all tests that leave it alive: starting one is what takes time."""
    nowhere = Place(owner="o", session="s", call_id="call_shared", workspace=log, timeout_s=PATIENCE)
    async with rig(nowhere, stdio(log)) as at:
        yield at


def on_shared(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """The test runs on the shared server, in its loop and worker."""
    marked: Callable[..., Coroutine[Any, Any, None]] = pytest.mark.asyncio(loop_scope="module")(test)
    return pytest.mark.xdist_group("mcp")(marked)


@both_loops
async def test_tools_are_listed_and_called(place: Place, tmp_path: Path) -> None:
    async with rig(place, stdio(tmp_path)) as at:
        assert "t_echo" in at.toolbox.names() and "t_append_line" in at.toolbox.names()
        assert await at.call("t_echo", text="ab", times=2) == Output("abab")
        assert await at.call("t_append_line", text="x") == Output("appended")
        pid = msgspec.json.decode((await at.call("t_environment")).text)["pid"]
        (status,) = at.mcp.status()
        assert (status.name, status.connected, status.fault) == ("t", True, "")
    assert not alive(pid)


@on_shared
async def test_what_a_call_gives_is_told_as_text(shared: Rig, place: Place) -> None:
    assert await shared.call("t_picture") == Output("a picture:\n[image: image/png, 1000 bytes]")
    failed = await shared.call("t_fail", why="because")
    assert failed.is_error and "Error executing tool fail" in failed.text
    small = msgspec.structs.replace(place, output_bytes=1000)
    cut = await shared.call("t_echo", small, text="x", times=5000)
    assert cut.text.endswith("[output cut: the first 1000 bytes of 5000 are shown]")
    told: list[str] = []
    await shared.call("t_steps", msgspec.structs.replace(place, progress=told.append))
    assert told == ["1 of 3", "step 2", "step 3"]


@on_shared
async def test_the_call_id_goes_along_as_idempotency_key(shared: Rig, log: Path, place: Place) -> None:
    for _ in range(2):
        assert (await shared.call("t_put", place, text="x")).text == "put"
    assert logged(log).count(f"put x {place.call_id}") == 2


async def test_the_program_gets_only_the_environment_that_it_is_given(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_SERVER_KEY", "the secret of the server")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.set_inheritable(True)
        async with rig(place, stdio(tmp_path, cwd=str(tmp_path))) as at:
            told = msgspec.json.decode((await at.call("t_environment")).text)
    assert set(told["environ"]) <= {"PATH", "LANG", "MCP_TEST_LOG", "TOKEN", "LC_CTYPE"}
    assert told["environ"]["TOKEN"] == "mine" and told["cwd"] == str(tmp_path)
    assert told["sockets"] <= 2  # those of its own event loop


async def test_the_configuration_decides_on_effects_and_hints_only_where_it_says_so(
    place: Place, tmp_path: Path
) -> None:
    hinted = {"echo": "read", "put": "idempotent", "fail": "write"}
    for fields, wanted in (
        ({}, dict.fromkeys(hinted, "write")),
        ({"trust_hints": True}, hinted),
        ({"effects": {"fail": "read", "echo": "idempotent"}}, {"echo": "idempotent", "put": "write", "fail": "read"}),
        ({"trust_hints": True, "effects": {"echo": "write"}}, {**hinted, "echo": "write"}),
    ):
        server = stdio(tmp_path, **fields)
        told = (("echo", True, False), ("put", False, True), ("fail", False, False))
        listed = [ListedTool(name, "", {}, read_only, idempotent) for name, read_only, idempotent in told]
        assert {each.name: server.effect_of(each) for each in listed} == wanted
    async with rig(place, stdio(tmp_path, trust_hints=True, prefix="x-")) as at:
        effects = at.effects()
        assert (effects["x-echo"], effects["x-put"], effects["x-fail"]) == ("read", "idempotent", "write")


def test_the_configuration_decides_on_approval_classes_and_hints_only_where_it_says_so(tmp_path: Path) -> None:
    listed = ListedTool("look", "", {}, read_only=True, open_world=True)
    for fields, wanted in (
        ({}, "write"),
        ({"effects": {"look": "read"}}, "none"),
        ({"effects": {"look": "idempotent"}}, "write"),
        ({"trust_hints": True}, "network"),
        ({"trust_hints": True, "approvals": {"look": "none"}}, "none"),
        ({"effects": {"look": "read"}, "approvals": {"look": "exec"}}, "exec"),
    ):
        link: Any = None
        assert approval_class(McpTool(stdio(tmp_path, **fields), link, listed, "look")) == wanted


@both_loops
async def test_a_server_that_dies_in_the_middle_of_a_call_leaves_an_unknown_outcome_and_is_started_again(
    place: Place, tmp_path: Path
) -> None:
    async with rig(place, stdio(tmp_path, effects={"die": "write"})) as at:
        before = at.toolbox.current().schemas
        output = await at.call("t_die", text="x")
        assert output.is_error
        assert "was lost in the middle of this call (it ended with exit code 7)" in output.text
        assert "its outcome is unknown" in output.text and "It was not repeated" in output.text
        assert (await at.call("t_echo", text="back")).text == "back"
        assert at.toolbox.current().schemas is before
    assert [line for line in logged(tmp_path) if line.startswith("die")] == ["die x"]
    assert len([line for line in logged(tmp_path) if line.startswith("start")]) == 2


async def test_a_read_that_was_lost_can_be_made_again(place: Place, tmp_path: Path) -> None:
    async with rig(place, stdio(tmp_path, effects={"die": "read"})) as at:
        output = await at.call("t_die", text="x")
        assert output.is_error and "unknown" not in output.text and output.text.endswith("and it can be made again.")


async def test_calls_at_the_same_time_each_end_on_their_own(place: Place, tmp_path: Path) -> None:
    async with rig(place, stdio(tmp_path)) as at:
        calls = [at.call("t_echo", text=str(n)) for n in range(20)]
        assert [each.text for each in await asyncio.gather(*calls)] == [str(n) for n in range(20)]
        hanging, dying = await asyncio.gather(at.call("t_hang"), at.call("t_die", text="x"))
        assert "unknown" in hanging.text and "unknown" in dying.text


async def test_a_call_without_an_answer_ends_in_time(place: Place, tmp_path: Path) -> None:
    async with rig(place, stdio(tmp_path, timeout_s=0.5)) as at:
        output = await at.call("t_hang")
        assert output.is_error and "gave no answer within 0.5 s, so its outcome is unknown" in output.text
        assert (await at.call("t_echo", msgspec.structs.replace(place, timeout_s=30), text="there")).text == "there"


@on_shared
async def test_a_cancelled_call_is_over_at_once(shared: Rig, log: Path) -> None:
    task = asyncio.ensure_future(shared.call("t_hang"))
    await eventually(lambda: "hang" in logged(log))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shared.call("t_echo", text="there")).text == "there"


@on_shared
async def test_a_list_that_changes_is_listed_again(shared: Rig) -> None:
    before = shared.toolbox.current().schemas
    assert shared.toolbox.current().schemas is before
    for name in ("one", "two"):
        await shared.call("t_grow", called=name)
        await eventually(lambda name=name: f"t_{name}" in shared.toolbox.names(), PATIENCE)  # type: ignore[misc]
    after = shared.toolbox.current().schemas
    assert len(after) == len(before) + 2 and shared.toolbox.current().schemas is after
    assert (await shared.call("t_two")).text == "I am two"


@on_shared
async def test_what_is_no_message_does_no_harm(shared: Rig) -> None:
    await shared.call("t_babble")
    assert (await shared.call("t_echo", text="there")).text == "there"


async def test_servers_that_do_not_start_are_told_and_hurt_nobody_else(place: Place, tmp_path: Path) -> None:
    broken = (
        ("none", "/no/such/program", [], "FileNotFoundError", ""),
        ("false", "/bin/false", [], "it ended with exit code 1", ""),
        ("last", "/bin/sh", ["-c", "echo oh no >&2; exit 3"], "it ended with exit code 3", "oh no"),
        ("mute", "/bin/sh", ["-c", "exec >&-; sleep 60"], "it closed its output", ""),
        ("killed", "/bin/sh", ["-c", "kill -9 $$"], "it ended with signal 9", ""),
    )
    servers = [stdio(tmp_path, name=name, command=command, args=args) for name, command, args, _, _ in broken]
    async with rig(place, *servers, stdio(tmp_path)) as at:
        assert (await at.call("t_echo", text="there")).text == "there"
        for status, (*_, fault, last_words) in zip(at.mcp.status(), broken, strict=False):
            assert not status.connected and fault in status.fault and status.last_words == last_words


async def test_a_call_to_a_server_that_is_gone_was_not_made(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(place, stdio(tmp_path)) as at:
        await at.call("t_die", text="x")
        monkeypatch.setattr(mcp_link, "WAIT_S", 0.05)
        monkeypatch.setattr(mcp_link, "FIRST_PAUSE_S", 30.0)
        await eventually(lambda: not at.mcp.status()[0].connected)
        output = await at.call("t_append_line", text="x")
        assert output.is_error
        assert output.text.endswith("cannot be reached (it ended with exit code 7). The tool was not called.")
    assert "append x" not in logged(tmp_path)


async def test_a_call_from_before_a_restart_waits_for_its_server(place: Place, tmp_path: Path) -> None:
    """A recovered run names a tool whose server has not been connected to yet."""
    server = stdio(tmp_path, effects={"put": "idempotent"})
    late = ("-c", f"sleep 1; exec {sys.executable} {SCRIPT} stdio")
    slow = msgspec.structs.replace(server, command="/bin/sh", args=late)
    threads = Threads(1)
    mcp = McpTools([slow], threads)
    toolbox = Toolbox([], [mcp])
    call = Caller(toolbox, place)
    expected = toolbox.get("t_put")
    assert expected is not None and expected.effect == "idempotent" and toolbox.names() == ()
    assert toolbox.get("other_put") is None
    await mcp.start()
    try:
        assert (await call("t_put", text="x")).text == "put"
        with pytest.raises(ToolRefused, match="There is no tool 't_gone'"):
            await call("t_gone")
        with pytest.raises(ToolRefused, match="text is missing"):
            await call("t_put")
    finally:
        await mcp.close()
        threads.close()


async def test_a_call_from_before_a_restart_is_refused_where_its_server_stays_away(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_link, "WAIT_S", 0.2)
    async with rig(place, stdio(tmp_path, command="/bin/false", args=[])) as at:
        with pytest.raises(ToolRefused, match=r"t_put was not called: the MCP server 't' cannot be reached \(it ended"):
            await at.call("t_put", text="x")


async def test_a_program_that_does_not_end_by_itself_is_killed_with_all_it_started(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninelives.tools.mcp.stdio.GRACE_S", 0.3)
    script = f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; {sys.executable} {SCRIPT} stdio; sleep 600"
    async with rig(place, stdio(tmp_path, command="/bin/sh", args=["-c", script])) as at:
        assert (await at.call("t_echo", text="there")).text == "there"
        pid = int((tmp_path / "child").read_text())
        assert alive(pid)
    await eventually(lambda: not alive(pid))


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


@contextmanager
def http_server(port: int, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "MCP_TEST_LOG": str(tmp_path / "log")}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, SCRIPT, str(port)], env=environ, stdout=quiet, stderr=quiet)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def by_url(port: int, **fields: object) -> McpServer:
    return msgspec.convert({"name": "h", "url": f"http://127.0.0.1:{port}/mcp", **fields}, McpServer)


@both_loops
async def test_the_same_over_http(place: Place, tmp_path: Path, port: int) -> None:
    with http_server(port, tmp_path):
        await over_http(place, port)
    assert f"put x {place.call_id}" in logged(tmp_path)


async def over_http(place: Place, port: int) -> None:
    async with rig(place, by_url(port, trust_hints=True)) as at:
        await at.connected()
        assert at.effects()["h_echo"] == "read"
        assert await at.call("h_echo", text="ab", times=2) == Output("abab")
        assert (await at.call("h_put", text="x")).text == "put"
        assert (await at.call("h_fail", why="because")).is_error
        told: list[str] = []
        await at.call("h_steps", msgspec.structs.replace(place, progress=told.append))
        assert told == ["1 of 3", "step 2", "step 3"]
        await at.call("h_grow", called="more")
        await eventually(lambda: "h_more" in at.toolbox.names(), PATIENCE)


async def test_an_http_server_that_dies_in_the_middle_and_comes_back(place: Place, tmp_path: Path, port: int) -> None:
    quick = msgspec.structs.replace(place, timeout_s=5.0)
    async with rig(place, by_url(port)) as at:
        with http_server(port, tmp_path) as process:
            await at.connected()
            output = await at.call("h_die", quick, text="x")
            assert output.is_error and "its outcome is unknown" in output.text
            process.wait()
        with http_server(port, tmp_path):
            await eventually(lambda: len([line for line in logged(tmp_path) if "start" in line]) == 2, PATIENCE)
            await _there_again(at)
    assert [line for line in logged(tmp_path) if line.startswith("die")] == ["die x"]


async def test_an_http_server_that_was_restarted_between_two_calls_is_met_anew(
    place: Place, tmp_path: Path, port: int
) -> None:
    async with rig(place, by_url(port)) as at:
        with http_server(port, tmp_path):
            await at.connected()
            assert (await at.call("h_echo", text="one")).text == "one"
        with http_server(port, tmp_path):
            await eventually(lambda: _listens(port), PATIENCE)
            await _there_again(at)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def _there_again(at: Rig) -> None:
    """Some versions of the package break on the first call after a restart; the second is on a new connection."""
    for _ in range(3):
        output = await at.call("h_echo", text="again")
        if not output.is_error:
            break
    assert output.text == "again"


async def test_a_password_in_a_header_reaches_the_server_only(place: Place, tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with rig(place, by_url(port, headers={"Authorization": "Bearer s3cret"})) as at:
        assert b"s3cret" in heads[0]
        assert "s3cret" not in str(at.mcp.status()) and not at.mcp.status()[0].connected
    server.close()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "a b", "command": "x"}, "is not 1 to 32 of"),
        ({"name": "", "command": "x"}, "is not 1 to 32 of"),
        ({"name": "a"}, "needs either command or url"),
        ({"name": "a", "command": "x", "url": "http://x"}, "needs either command or url"),
        ({"name": "a", "url": "ftp://x"}, "does not begin with http"),
        ({"name": "a", "command": "x", "prefix": "a.b"}, "the prefix"),
        ({"name": "a", "command": "x", "timeout_s": 0}, "timeout_s"),
        ({"name": "a", "command": "x", "effects": {"t": "safe"}}, "Invalid enum value"),
        ({"name": "a", "command": "x", "comand": "y"}, "unknown field `comand`"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_reason(fields: dict[str, object], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.convert(fields, McpServer)


def test_the_secrets_of_a_server_are_not_in_its_repr() -> None:
    server = McpServer(name="a", url="https://x/?key=s3cret", headers={"Authorization": "s3cret"}, env={"K": "s3cret"})
    assert "s3cret" not in repr(server) and "s3cret" not in str([server])


async def test_two_servers_of_one_name_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = McpServer(name="a", command="x")
    with pytest.raises(ToolsError, match="same name"):
        McpTools([one, one], Threads(1))
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ToolsError, match="pip install mcp"):
        await McpTools([one], Threads(1)).start()


def offered(*names: str, prefix: str | None = None, schema: dict[str, object] | None = None) -> McpTools:
    mcp = McpTools([McpServer(name="srv", command="x", prefix=prefix)], Threads(1))
    ((_, link),) = mcp._links
    link.listed = tuple(ListedTool(name, "d" * 5000, schema or {"type": "object"}) for name in names)
    link._changed()
    return mcp


def test_names_are_made_so_that_upstreams_take_them_and_none_is_lost() -> None:
    names = [tool.name for tool in offered("ok", "with.dot", "with dot", "ü", "x" * 100, "x" * 101).tools()]
    assert names[:2] == ["srv_ok", "srv_with_dot"]
    assert len(set(names)) == 6 and all(len(name) <= 64 for name in names)
    assert Toolbox([], [offered("ok", "x" * 100)]).current().left_out == ()
    assert [tool.name for tool in offered("ok", prefix="").tools()] == ["ok"]


def test_a_name_that_is_taken_stays_with_the_tool_that_had_it() -> None:
    async def nothing(arguments: dict[str, object], place: Place) -> str:
        return ""

    own: Tool = FunctionTool(name="terminal", description="", schema={"type": "object"}, fn=nothing)
    toolbox = Toolbox([own], [offered("terminal", "other", prefix="")])
    assert toolbox.get("terminal") is own and toolbox.current().left_out == ("terminal",)
    assert toolbox.names() == ("terminal", "other")


async def test_arguments_that_a_schema_leaves_open_reach_the_server(place: Place) -> None:
    seen: list[dict[str, object]] = []

    class Recorded(McpLink):
        async def call(self, name: str, arguments: dict[str, object], options: object) -> dict[str, object]:  # type: ignore[override]
            seen.append(arguments)
            return {"content": [], "structuredContent": {"a": 1}}

    mcp = offered("open", "closed", schema={"type": "object", "properties": {"a": {}}, "anyOf": [{}]})
    server, _ = mcp._links[0]
    recorded = Recorded(McpAddress(), mcp._threads, mcp._changed, lambda: None)
    recorded.listed = (ListedTool("open", "", {"type": "object"}), ListedTool("closed", "", {"properties": {"a": {}}}))
    mcp._links[0] = (server, recorded)
    mcp._changed()
    caller = Caller(Toolbox([], [mcp]), place)
    assert (await caller("srv_open", anything=[1, None])).text == '{"a":1}'
    with pytest.raises(Exception, match="there is no field 'b'"):
        await caller("srv_closed", b=1)
    assert seen == [{"anything": [1, None]}]


def test_parts_that_are_no_text_are_named() -> None:
    content = [
        {"type": "text", "text": "a"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "words"}},
        {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "application/pdf", "blob": "AAAAAA=="}},
        {"type": "resource_link", "name": "c", "uri": "file:///c"},
        {"type": "hologram"},
    ]
    assert list(_parts({"content": content, "structuredContent": {"a": 1}})) == [
        "a",
        "[audio: audio/wav, 3 bytes]",
        "[resource: file:///a]\nwords",
        "[resource: file:///b, application/pdf, 4 bytes]",
        "[resource: c file:///c]",
        "[hologram]",
    ]
    assert list(_parts({"content": []})) == []
