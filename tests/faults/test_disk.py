"""A disk that is full, short, read-only or broken (P13): nothing that was told is lost, reads go on, and writing goes
on by itself where it may."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninelives.drill.checks import judge
from ninelives.drill.loads import Load, terminal
from ninelives.drill.rig import Rig
from ninelives.drill.wire import get, post, until, until_shown

OFF = {"NINELIVES_STORE_LOW_WATER_BYTES": "0", "NINELIVES_STORE_BALLAST_BYTES": "0"}
MIB = 1 << 20


def mounted(*args: str) -> None:
    """mount, or a loud skip where this machine does not allow it."""
    done = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED, this machine cannot mount: {done.stderr.strip()}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """The folder of a rig whose data directory is a disk of 1.5 MB."""
    disk = tmp_path / "data"
    disk.mkdir()
    mounted("-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk))
    yield tmp_path
    subprocess.run(["umount", "-l", str(disk)], check=True)


def grow(folder: Path, size: str) -> None:
    mounted("-o", f"remount,size={size}", str(folder / "data"))


async def degraded(rig: Rig) -> None:
    await until_shown(rig.server.port, "/health/detailed", lambda shown: shown["status"] == "degraded")


async def judged(rig: Rig, *loads: Load) -> None:
    """All have ended as they should, and P1 to P5 hold."""
    assert not await rig.ended(list(loads))
    rig.take_asks()
    for load in loads:
        evidence = await rig.evidence(load, all_places=False)
        assert judge(evidence) == [] and evidence.status == "completed", evidence.status


async def test_P13_a_full_disk_stops_writing_keeps_reading_and_goes_on_when_there_is_room(small: Path) -> None:
    async with Rig(small, 1, **OFF) as rig:
        before = Load("load-1-a", "responses", "load-1-a [[tokens=5]]")
        await before.begin(rig.server.port)
        big = Load("load-2-b", "responses", "load-2-b [[big=1000000 messages=4]]")
        reading = asyncio.create_task(big.begin(rig.server.port))
        await degraded(rig)
        refused = await post(rig.server.port, "/v1/responses", {"input": "hi"})
        assert (refused.status, refused.json()["error"]["code"]) == (503, "storage_full")
        assert int(refused.headers["retry-after"]) > 0
        assert (await get(rig.server.port, "/health")).status == 200
        assert (await get(rig.server.port, f"/v1/responses/{before.id}")).json()["status"] == "completed"
        grow(small, "200m")
        await asyncio.wait_for(reading, 60)
        await judged(rig, before, big)
        await until_shown(rig.server.port, "/health/detailed", lambda shown: shown["status"] == "ok")
        assert (await post(rig.server.port, "/v1/responses", {"input": "hi"})).status == 200


@pytest.mark.long
async def test_P13_a_kill_on_a_full_disk_loses_nothing_that_was_told(small: Path) -> None:
    async with Rig(small, 2, **OFF) as rig:
        big = Load("load-1-a", "responses", "load-1-a [[big=1000000 messages=4]]")
        reading = asyncio.create_task(big.begin(rig.server.port))
        await degraded(rig)
        await rig.server.kill()
        await reading
        grow(small, "200m")
        rig.server = await rig.start()
        await judged(rig, big)


async def test_P13_a_short_disk_parks_what_runs_and_goes_on_with_it(small: Path) -> None:
    grow(small, "64m")
    low = {"NINELIVES_STORE_LOW_WATER_BYTES": str(32 * MIB), "NINELIVES_STORE_BALLAST_BYTES": str(4 * MIB)}
    async with Rig(small, 3, **low) as rig:
        calls = "|".join(terminal(0.3) for _ in range(25))
        load = Load("load-1-a", "responses", f"load-1-a [[tools={calls}]]")
        reading = asyncio.create_task(load.begin(rig.server.port))
        await until(rig.lines, what="the first tool")
        (small / "data" / "somebody-elses").write_bytes(b"x" * (36 * MIB))
        await degraded(rig)
        assert not (small / "data" / "ballast").exists(), "the ballast is given back"
        await until_shown(rig.server.port, "/health/detailed", lambda shown: shown["runs"]["active"] == 0)
        done = rig.lines()
        assert done < 25 and not reading.done(), "it was parked in the middle, and its reader is still there"
        assert (await post(rig.server.port, "/v1/responses", {"input": "hi"})).status == 503
        (small / "data" / "somebody-elses").unlink()
        await asyncio.wait_for(reading, 60)
        await judged(rig, load)
        assert rig.lines() == 25 and (small / "data" / "ballast").exists()


FILLS = "i=0; while :; do head -c 1048576 /dev/zero > f$i || exit 9; i=$((i+1)); done"
UNNAMED = "exec 3> f 4> g; rm f g; head -c 500000000 /dev/zero >&3; head -c 500000000 /dev/zero >&4; sleep 50"


@pytest.mark.parametrize("command", [FILLS, UNNAMED], ids=["files", "without a name"])
async def test_P13_a_command_that_fills_the_disk_stops_no_stored_run(small: Path, command: str) -> None:
    grow(small, "600m")
    async with Rig(small, 3, NINELIVES_STORE_LOW_WATER_BYTES=str(64 * MIB)) as rig:
        call = f"terminal:{json.dumps({'command': command, 'timeout_s': 50})}"
        hostile = asyncio.create_task(post(rig.server.port, "/v1/responses", {"input": f"[[tools={call}]]"}))
        while not hostile.done():
            await post(rig.server.port, "/v1/responses", {"input": "hi"})
        assert "[ended: the disk" in (await hostile).data.decode()
        for _ in range(10):
            shown = (await post(rig.server.port, "/v1/responses", {"input": "hi"})).json()
            assert shown["status"] == "completed"


async def test_P13_a_read_only_disk_is_refused_with_a_clear_line(tmp_path: Path) -> None:
    async with Rig(tmp_path / "rig", 4) as rig:
        await rig.server.kill()
        data = rig.folder / "data"
        mounted("--bind", str(data), str(data))
        try:
            mounted("-o", "remount,ro,bind", str(data))
            with pytest.raises(AssertionError, match=r"cannot be used|read-?only|Read-only"):
                rig.server = await rig.start()
        finally:
            await asyncio.to_thread(subprocess.run, ["umount", str(data)], check=True)
        rig.server = await rig.start()


STRACE = shutil.which("strace")
traced = pytest.mark.skipif(STRACE is None, reason="NOT TESTED: strace is not installed (apt-get install strace)")


@traced
@pytest.mark.parametrize(
    "nth", [12, pytest.param(25, marks=pytest.mark.long), pytest.param(40, marks=pytest.mark.long)]
)
async def test_P13_an_error_of_fsync_is_never_taken_for_written(tmp_path: Path, nth: int) -> None:
    inject = f"fdatasync:error=EIO:when={nth}+"
    async with Rig(tmp_path, 5, NINELIVES_STORE_DURABILITY="full", **OFF) as rig:
        await rig.server.kill()
        rig.server = await rig.start(*tracer("fdatasync", inject))
        loads: list[Load] = []
        while (health := await get(rig.server.port, "/health/detailed")).status == 200 and len(loads) < 60:
            name = f"load-{len(loads)}-a"
            loads.append(Load(name, "responses", f"{name} [[tools={terminal(0.05)}]]"))
            await asyncio.wait_for(loads[-1].begin(rig.server.port), 60)
        assert health.json()["status"] == "degraded" and health.json()["store"]["writable"] is False, health.data
        refused = await post(rig.server.port, "/v1/responses", {"input": "hi"})
        assert refused.status == 503
        await rig.server.kill()
        rig.server = await rig.start()
        for load in loads:
            await rig.find(load)
        await judged(rig, *[load for load in loads if load.id])
        assert any(load.id for load in loads) and rig.tally.found == []


def tracer(call: str, inject: str) -> list[str]:
    """strace in the background, so that the server stays our child."""
    assert STRACE is not None
    return [
        STRACE,
        "-D",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        f"inject={inject}",
    ]


POINTS = [9, 33]


@traced
@pytest.mark.parametrize(
    "nth", [*POINTS, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 81) if n not in POINTS)]
)
async def test_P1_a_kill_at_the_nth_write_loses_nothing_that_was_told(tmp_path: Path, nth: int) -> None:
    async with Rig(tmp_path, nth) as rig:
        await rig.server.kill()
        rig.server = await rig.start(*tracer("pwrite64", f"pwrite64:signal=SIGKILL:when={nth}"), waits=False)
        load = Load("load-1-a", "responses", f"load-1-a [[tools={terminal(0.0)}|{terminal(0.0)}]] [[tokens=20]]")
        if await rig.server.listens():
            await asyncio.wait_for(load.begin(rig.server.port), 60)
        await rig.server.kill()
        rig.server = await rig.start()
        await rig.find(load)
        if load.id:
            await judged(rig, load)
        assert rig.tally.found == []
