"""A command cannot fill the disk: the workspace has a bound, and the disk a reserve."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ninelives.tools import quota
from ninelives.tools.base import Output, Place, Threads, ToolRefused
from ninelives.tools.output import OutputFiles
from ninelives.tools.quota import QuotaLimits, Quotas, WorkspaceQuota
from ninelives.tools.registry import Toolbox, builtin_tools
from ninelives.tools.sandbox.base import Sandbox
from tests.tools.conftest import eventually
from tests.tools.sandboxes import Shop, place_in, sandbox_of, shop_of

MIB = 1_048_576
BOUND = 8 * MIB
FILES = 'i=0; while :; do head -c 1048576 /dev/zero > "f$i" || exit 9; i=$((i+1)); done'
"""Writes files without end, each smaller than any limit of one file."""


@pytest.fixture(params=["off", "bwrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return sandbox_of(request.param)


@pytest.fixture
async def shop(sandbox: Sandbox) -> AsyncIterator[Shop]:
    async with shop_of(sandbox) as made:
        made.toolbox = Toolbox(builtin_tools(sandbox, made.threads, made.processes))
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return bounded_place(tmp_path, QuotaLimits(workspace_bytes=BOUND))


def bounded_place(tmp_path: Path, limits: QuotaLimits) -> Place:
    made = place_in(tmp_path)
    return replace(made, quota=WorkspaceQuota(Quotas(limits, Threads(1)), made.workspace), timeout_s=60.0)


def size(place: Place) -> int:
    return sum(each.stat().st_blocks * 512 for each in place.workspace.rglob("*") if each.is_file())


async def do(shop: Shop, place: Place, name: str, **arguments: object) -> Output:
    execution = await shop.toolbox.prepare(name, json.dumps(arguments), place)
    try:
        return await execution.run()
    except ToolRefused as refused:
        return Output(str(refused), is_error=True)


async def test_a_command_that_fills_the_workspace_is_ended_and_says_why(shop: Shop, place: Place) -> None:
    output = await do(shop, place, "terminal", command=FILES)
    assert output.is_error
    for words in ("ended", "tools.workspace_bytes", f"{BOUND} bytes", "Delete"):
        assert words in output.text
    code = "import itertools\nfor n in itertools.count():\n    open(f'g{n}', 'wb').write(bytes(1048576))"
    await do(shop, place, "terminal", command="rm -f f*")
    output = await do(shop, place, "execute_code", code=code)
    assert output.is_error and "tools.workspace_bytes" in output.text


async def test_one_file_cannot_be_larger_than_the_room_of_the_workspace(shop: Shop, place: Place) -> None:
    output = await do(shop, place, "terminal", command="head -c 100000000 /dev/zero > big")
    assert output.is_error
    assert size(place) <= BOUND


async def test_in_a_full_workspace_files_can_be_deleted_and_not_written(shop: Shop, place: Place) -> None:
    (place.workspace / "old").write_bytes(os.urandom(BOUND + 1))
    output = await do(shop, place, "terminal", command="echo words > new; ls")
    assert "tools.workspace_bytes" in output.text and "old" in output.text
    assert not (place.workspace / "new").exists() or not (place.workspace / "new").read_bytes()
    for name, arguments in (
        ("write_file", {"path": "a", "content": "text"}),
        ("patch", {"path": "old", "search": "a", "replace": "b"}),
        ("process", {"action": "start", "command": "true"}),
    ):
        with pytest.raises(ToolRefused, match=r"holds \d+ bytes.*tools\.workspace_bytes allows 8388608.*[Dd]elete"):
            await shop.toolbox.prepare(name, json.dumps(arguments), place)
    with pytest.raises(ToolRefused, match=r"tools\.workspace_bytes"):
        await OutputFiles().keep(place, ".ninelives/outputs/x.txt", "long")
    assert not (await do(shop, place, "read_file", path="new")).text.startswith("Nothing")
    output = await do(shop, place, "terminal", command="rm old && echo gone")
    assert "gone" in output.text and not output.is_error
    assert not (await do(shop, place, "write_file", path="a", content="text")).is_error
    output = await do(shop, place, "terminal", command="echo words > new && cat new")
    assert output == Output("words\n")


async def test_a_background_process_that_fills_the_workspace_is_ended_and_says_why(shop: Shop, place: Place) -> None:
    output = await do(shop, place, "process", action="start", command=FILES)
    name = output.text.split()[0]

    await eventually(lambda: shop.processes.get(place.owner, name).ended, 60.0)
    text = (await do(shop, place, "process", action="poll", id=name)).text
    assert "tools.workspace_bytes" in text and "ended" in text


async def test_a_folder_that_cannot_be_read_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bounded_place(tmp_path, QuotaLimits(workspace_bytes=BOUND))
    (place.workspace / "hidden").mkdir()
    real = os.scandir

    def scandir(path: object) -> object:
        if os.readlink(f"/proc/self/fd/{path}").endswith("hidden") if isinstance(path, int) else False:
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    assert "cannot be read" in await place.quota.refusal()


WATCHED = "until [ -e watched ]; do sleep 0.05; done"
GROWS, WAITS = f"{WATCHED}; head -c 4000000 /dev/zero > f; touch short; sleep 50", "touch short; sleep 50"


@pytest.mark.parametrize(("command", "grace_s"), [(GROWS, 1e6), (WAITS, 0.2)], ids=["grows", "waits"])
async def test_when_the_disk_is_short_commands_are_ended(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, grace_s: float
) -> None:
    """At once if their workspace grew. Others a little later: they may hold files without a name."""
    place = bounded_place(tmp_path, QuotaLimits(reserve_bytes=1_000))
    assert isinstance(place.quota, WorkspaceQuota)
    quotas = place.quota.quotas
    monkeypatch.setattr(quota, "GRACE_S", grace_s)

    def free_bytes(folder: Path) -> int:
        if not quotas.is_changed(place.workspace):  # its size before the command is known
            (place.workspace / "watched").touch()
        return 10 if (place.workspace / "short").exists() else 1 << 40

    monkeypatch.setattr(quota, "free_bytes", free_bytes)
    output = await do(shop, place, "terminal", command=command)
    assert output.is_error
    assert "[ended: the disk of the server has 10 bytes free, and tools leave 1000 bytes" in output.text


@pytest.mark.parametrize("files", [10, 5000], ids=["few", "many"])
async def test_a_workspace_is_measured_with_links_and_holes_counted_as_the_disk_does(
    tmp_path: Path, files: int
) -> None:
    for n in range(files):
        (tmp_path / f"{n}").write_bytes(b"x")
    (tmp_path / "big").write_bytes(os.urandom(MIB))
    os.link(tmp_path / "big", tmp_path / "same")
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 40)
    found = await Quotas(QuotaLimits(), Threads(1)).measure(tmp_path)
    expected = size_of(tmp_path)
    assert abs(found.bytes - expected) < 64 * 1024 and not found.unreadable


def size_of(folder: Path) -> int:
    seen = {each.lstat().st_ino: each.lstat().st_blocks * 512 for each in folder.rglob("*") if not each.is_symlink()}
    return sum(seen.values()) + folder.stat().st_blocks * 512


async def test_measuring_costs_a_bounded_share_of_the_time(tmp_path: Path) -> None:
    """A measurement that took long is used for long. The free space of the disk shows growth in between."""
    quotas = Quotas(QuotaLimits(workspace_bytes=1 << 50), Threads(1))
    first = await quotas.measure(tmp_path)
    (tmp_path / "new").write_bytes(os.urandom(MIB))
    quotas._known[tmp_path] = replace(first, cost_s=3600.0)
    assert (await quotas.measured(tmp_path, 1 << 50)).bytes == first.bytes, "not measured again"
    quotas._known[tmp_path] = replace(first, cost_s=3600.0, free=first.free + (1 << 51))
    assert (await quotas.measured(tmp_path, 1 << 50)).bytes > first.bytes, "the disk has less free space"
