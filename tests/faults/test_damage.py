"""A damaged data directory in front of a real server (P14): it says what is wrong, ends with an error, and leaves every
file as it was; what is not damage is mended without a word."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ninelives.drill.checks import judge
from ninelives.drill.loads import Load, terminal
from ninelives.drill.rig import Rig
from ninelives.drill.wire import get

DB = "ninelives.db"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed server leaves: runs that ended, and one that was cut off; part in the database, part in its log."""
    import asyncio

    folder = tmp_path_factory.mktemp("killed")

    async def live() -> None:
        async with Rig(folder, 1) as rig:
            for n in range(4):
                await Load(f"load-{n}-a", "responses", f"load-{n}-a [[tools={terminal(0.0)}]]").begin(rig.server.port)
            assert await rig.server.gone_by_signal() == 0  # a clean stop: all of it is in the database
            rig.server = await rig.start()
            load = Load("load-9-a", "responses", "load-9-a [[tokens=200 pace=0.02]]")
            await load.begin(rig.server.port, rig._kill_at(40))

    asyncio.run(live())
    shutil.rmtree(folder / "data" / "workspaces", ignore_errors=True)
    return folder / "data"


def middle(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip_each_page(data: bytearray) -> None:
    """One byte in the middle of every page but the first: wherever runs lie, some are hit."""
    for at in range(4096 + 3000, len(data), 4096):
        data[at] ^= 0xFF


def zero_head(data: bytearray) -> None:
    data[:100] = bytes(100)


BLOWS: dict[str, Callable[[Path], object]] = {
    "a zeroed header": lambda data: middle(data / DB, zero_head),
    "a database cut in half": lambda data: os.truncate(data / DB, (data / DB).stat().st_size // 8192 * 4096),
    "an empty database": lambda data: (data / DB).write_bytes(b""),
    "a database of garbage": lambda data: (data / DB).write_bytes(os.urandom(100_000)),
    "a log of garbage": lambda data: (data / f"{DB}-wal").write_bytes(os.urandom(100_000)),
    "no log": lambda data: (data / f"{DB}-wal").unlink(),
    "the database is a directory": lambda data: ((data / DB).unlink(), (data / DB).mkdir()),
}


def contents(data: Path) -> dict[str, bytes]:
    """The database and its log; the shared-memory file is rebuilt by whoever looks."""
    names = (DB, f"{DB}-wal")
    found = {name: (data / name).read_bytes() for name in names if (data / name).is_file()}
    return {name: content for name, content in found.items() if content or name == DB}


@pytest.mark.parametrize("blow", BLOWS)
async def test_P14_damage_is_told_and_nothing_is_changed(killed: Path, tmp_path: Path, blow: str) -> None:
    async with Rig(tmp_path / "rig", 1) as rig:
        await rig.server.kill()
        shutil.rmtree(rig.folder / "data")
        shutil.copytree(killed, rig.folder / "data")
        BLOWS[blow](rig.folder / "data")
        before = contents(rig.folder / "data")
        with pytest.raises(AssertionError, match="did not start"):
            rig.server = await rig.start()
        said = rig.server.errors.read_text() if rig.server.errors.exists() else ""
        assert "Traceback" not in said and ("damaged" in said or "cannot be used" in said), said[-500:]
        assert contents(rig.folder / "data") == before


async def test_P14_flipped_bytes_are_found_at_the_start_or_when_the_run_is_read(killed: Path, tmp_path: Path) -> None:
    """What is packed is verified when it is read: an error then, never a shorter or another history."""
    async with Rig(tmp_path / "rig", 1) as rig:
        await rig.server.kill()
        data = rig.folder / "data"
        shutil.rmtree(data)
        shutil.copytree(killed, data)
        rig.server = await rig.start()
        whole = {run["run_id"]: run for run in (await get(rig.server.port, "/v1/runs")).json()["data"]}
        assert await rig.server.gone_by_signal() == 0
        middle(data / DB, flip_each_page)
        try:
            rig.server = await rig.start()
        except AssertionError as refused:
            assert "damaged" in str(refused)
            return
        for name, run in whole.items():
            shown = await get(rig.server.port, f"/v1/runs/{name}")
            if shown.status == 200:
                assert shown.json()["output"] == run["output"] or run["status"] != "completed"
            else:
                assert shown.status >= 500 and b"damaged" in shown.data, shown.data


async def test_P14_without_blows_and_without_its_shared_memory_the_directory_opens(
    killed: Path, tmp_path: Path
) -> None:
    async with Rig(tmp_path / "rig", 1) as rig:
        await rig.server.kill()
        shutil.rmtree(rig.folder / "data")
        shutil.copytree(killed, rig.folder / "data")
        (rig.folder / "data" / f"{DB}-shm").unlink(missing_ok=True)
        (rig.folder / "data" / DB).chmod(0o644)
        rig.server = await rig.start()
        assert stat.S_IMODE((rig.folder / "data" / DB).stat().st_mode) == 0o600, "a wrong mode is set right"
        load = Load("load-9-a", "responses", "")
        await rig.find(load)
        assert not await rig.ended([load])
        evidence = await rig.evidence(load, all_places=False)
        evidence.asks = []
        assert judge(evidence) == [] and evidence.status == "completed"
