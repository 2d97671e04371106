"""Rules of background processes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from ninelives.core.events import Process
from ninelives.tools.base import Output, Place, ToolRefused
from ninelives.tools.sandbox.base import Sandbox
from ninelives.tools.sandbox.child import Ring
from tests.tools.conftest import alive, both_loops, children, eventually, open_files
from tests.tools.sandboxes import Shop, having, heard, new_mark, place_in, sandbox_of, server_with, shop_of, tell


@pytest.fixture(params=["off", "bwrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return sandbox_of(request.param)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


@pytest.fixture
async def shop(sandbox: Sandbox) -> AsyncIterator[Shop]:
    async with shop_of(sandbox, per_owner=3, in_total=4) as made:
        yield made
    assert children() == set()


async def _do(shop: Shop, place: Place, **arguments: object) -> Output:
    return await (await shop.toolbox.prepare("process", json.dumps(arguments), place)).run()


async def _started(shop: Shop, place: Place, command: str) -> str:
    output = await _do(shop, place, action="start", command=command)
    found = re.fullmatch(r"(proc_[0-9a-f]{8}_[0-9a-f]{12}) was started", output.text)
    assert found and not output.is_error
    return found[1]


async def test_a_process_is_started_watched_and_killed(shop: Shop, place: Place) -> None:
    mark = new_mark()
    name = await _started(shop, place, f"echo one; setsid sleep {mark} & sleep {mark}")
    assert re.fullmatch(rf"{name} running for \d s\none", (await _do(shop, place, action="poll", id=name)).text)
    assert re.fullmatch(rf"{name} running for \d s", (await _do(shop, place, action="poll", id=name)).text)
    listed = (await _do(shop, place, action="list")).text
    assert name in listed and "running for" in listed and "echo one; setsid" in listed
    assert (await _do(shop, place, action="kill", id=name)).text == f"{name} was killed"
    await eventually(lambda: not having(mark))
    again = await _do(shop, place, action="kill", id=name)
    assert "had ended after" in again.text and not again.is_error


async def test_output_that_comes_later_is_polled_once_and_logged_always(shop: Shop, place: Place) -> None:
    command = "echo one; while ! [ -e go ]; do sleep 0.02; done; echo two; exit 3"
    name = await _started(shop, place, command)
    assert (await _do(shop, place, action="poll", id=name)).text.endswith("\none")
    (place.workspace / "go").touch()
    await eventually(lambda: shop.processes.get("o", name).ended is not None)
    polled = await _do(shop, place, action="poll", id=name)
    assert re.fullmatch(rf"{name} ended after \d s: exit code 3\ntwo", polled.text)
    assert (await _do(shop, place, action="log", id=name)).text.endswith("exit code 3\none\ntwo")
    assert (await _do(shop, place, action="poll", id=name)).text.endswith("exit code 3")


async def test_what_ends_at_once_is_told_at_once(shop: Shop, place: Place) -> None:
    output = await _do(shop, place, action="start", command="nosuchprogram")
    assert output.is_error and "exit code 127" in output.text and "not found" in output.text
    output = await _do(shop, place, action="start", command="echo done")
    assert not output.is_error and output.text.endswith("exit code 0\ndone")


async def test_it_begins_where_the_sessions_terminal_is(shop: Shop, place: Place) -> None:
    command = json.dumps({"command": "mkdir a; cd a; export ONE=1"})
    await (await shop.toolbox.prepare("terminal", command, place)).run()
    output = await _do(shop, place, action="start", command="pwd; echo $ONE")
    assert output.text.endswith(f"{place.workspace}/a\n1")


async def test_an_endless_log_keeps_its_end_only(shop: Shop, place: Place) -> None:
    name = await _started(shop, place, "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; sleep 300")
    await eventually(lambda: shop.processes.get("o", name).log.total == 3_000_006)
    small = msgspec.structs.replace(place, output_bytes=1000)
    told = (await _do(shop, small, action="log", id=name)).text
    assert "[2999006 bytes before this are gone]" in told and told.endswith("x\nlast") and len(told) < 1200


def test_a_ring_gives_what_came_since_and_what_is_lost() -> None:
    ring = Ring(10)
    assert ring.since(0) == (b"", 0)
    ring.append(b"0123456")
    assert ring.since(0) == (b"0123456", 0) and ring.since(5) == (b"56", 0) and ring.since(7) == (b"", 0)
    for _ in range(100):
        ring.append(b"abcdefg")
    assert ring.total == 707 and ring.since(0) == (b"efgabcdefg", 697) and ring.since(704) == (b"efg", 0)
    assert len(ring._kept) <= 27


async def test_processes_are_bounded_by_owner_and_in_total(shop: Shop, place: Place) -> None:
    other = msgspec.structs.replace(place, owner="another")
    names = [await _started(shop, place, "sleep 300") for _ in range(3)]
    with pytest.raises(ToolRefused, match="3 processes are running"):
        await _do(shop, place, action="start", command="true")
    await _started(shop, other, "sleep 300")
    with pytest.raises(ToolRefused, match="as many"):
        await _do(shop, other, action="start", command="true")
    await _do(shop, place, action="kill", id=names[0])
    await _started(shop, place, "sleep 300")


async def test_two_prepared_starts_cannot_both_have_the_last_place(shop: Shop, place: Place) -> None:
    for _ in range(2):
        await _started(shop, place, "sleep 300")
    raw = json.dumps({"action": "start", "command": "touch mark; sleep 300"})
    executions = [await shop.toolbox.prepare("process", raw, place) for _ in range(2)]
    await executions[0].run()
    (place.workspace / "mark").unlink()
    with pytest.raises(ToolRefused):
        await executions[1].run()
    assert not (place.workspace / "mark").exists()


async def test_a_process_is_its_owners_only(shop: Shop, place: Place) -> None:
    name = await _started(shop, place, "sleep 300")
    other = msgspec.structs.replace(place, owner="another")
    for action in ("poll", "log", "kill"):
        with pytest.raises(ToolRefused, match="There is no process"):
            await _do(shop, other, action=action, id=name)
    assert (await _do(shop, other, action="list")).text == "[no processes since the server's start]"
    assert "running" in (await _do(shop, place, action="poll", id=name)).text


@pytest.mark.parametrize("name", ["", "proc_", "1", "x" * 500, "proc_00000000_00"])
async def test_an_id_that_never_was_is_refused(shop: Shop, place: Place, name: str) -> None:
    with pytest.raises(ToolRefused, match="There is no process"):
        await _do(shop, place, action="poll", id=name)


async def test_an_id_of_before_the_restart_is_told_as_lost(shop: Shop, sandbox: Sandbox, place: Place) -> None:
    async with shop_of(sandbox) as before:
        name = await _started(before, place, "sleep 300")
    with pytest.raises(ToolRefused, match="was lost when the server stopped"):
        await _do(shop, place, action="poll", id=name)


async def test_all_end_when_the_server_stops_and_none_can_be_started_then(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    async with shop_of(sandbox) as shop:
        await _started(shop, place, f"setsid sleep {mark} & sleep {mark}")
        await eventually(lambda: len(having(mark)) == 2)
    assert having(mark) == [] and children() == set()
    with pytest.raises(ToolRefused, match="stopping"):
        shop.processes.check_room("o")


@both_loops
async def test_nothing_begins_before_permission_and_nothing_leaks(sandbox: Sandbox, place: Place) -> None:
    async with shop_of(sandbox) as shop:
        await _do(shop, place, action="start", command="true")
    before = open_files()
    async with shop_of(sandbox) as shop:
        raw = json.dumps({"action": "start", "command": "touch mark"})
        execution = await shop.toolbox.prepare("process", raw, place)
        assert execution.process is not None and alive(execution.process.pid)
        await execution.abandon()
        await execution.abandon()
        assert not (place.workspace / "mark").exists() and children() == set()
        with pytest.raises(RuntimeError):
            await execution.run()
        for _ in range(40):
            await _do(shop, place, action="start", command="exit 1")
        assert len(shop.processes.of("o")) <= 17
        await _started(shop, place, "sleep 300")
    await eventually(lambda: open_files() == before)


async def test_the_group_dies_with_a_killed_server(sandbox: Sandbox, place: Place) -> None:
    mark = new_mark()
    raw = json.dumps({"action": "start", "command": f"sleep {mark} & sleep {mark}"})
    with server_with(sandbox, place, "process", raw) as server:
        process = Process(*json.loads(heard(server)))
        tell(server, "go\n")
        assert "was started" in heard(server)
        assert len(having(mark)) == 2
        server.kill()
    await eventually(lambda: not having(mark) and not alive(process.pid))


async def test_an_empty_command_is_refused(shop: Shop, place: Place) -> None:
    with pytest.raises(ToolRefused, match="empty"):
        await _do(shop, place, action="start")
    with pytest.raises(ToolRefused, match="action"):
        await _do(shop, place, action="restart")
