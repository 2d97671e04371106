"""Free disk space: the low-water mark and the ballast (docs/promises.md, "A short disk is noticed early")."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ninelives.journal.sqlite import space as space_module
from ninelives.journal.sqlite.space import Space, watch_space

MIB = 1 << 20


class Disk(Space):
    """A Space whose free bytes the test sets. The ballast is real and counts."""

    room = 100 * MIB

    def _free(self) -> int:
        return self.room - (self._ballast_bytes - self._missing())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, 10 * MIB, 4 * MIB)


def test_the_ballast_lies_there_while_there_is_room(disk: Disk, tmp_path: Path) -> None:
    assert disk.shortage() is None
    assert (tmp_path / "ballast").stat().st_size == 4 * MIB
    assert (tmp_path / "ballast").stat().st_mode & 0o777 == 0o600


def test_below_the_mark_the_ballast_is_given_back_and_the_reason_is_told(disk: Disk, tmp_path: Path) -> None:
    disk.shortage()
    disk.room = 13 * MIB
    assert disk.shortage() == "9 MiB are free on the disk, 10 MiB are required"
    assert not (tmp_path / "ballast").exists()


def test_room_is_back_only_when_the_ballast_fits_again(disk: Disk, tmp_path: Path) -> None:
    disk.shortage()
    disk.room = 13 * MIB
    disk.shortage()
    assert disk.shortage() is not None, "13 MiB are free now, but only because the ballast is gone"
    disk.room = 14 * MIB
    assert disk.shortage() is None
    assert (tmp_path / "ballast").exists()


def test_both_parts_can_be_off(tmp_path: Path) -> None:
    assert Space(tmp_path, 0, 4 * MIB).shortage() is None and not (tmp_path / "ballast").exists()
    assert Space(tmp_path, 1, 0).shortage() is None and not (tmp_path / "ballast").exists()


def test_a_real_disk_says_how_much_is_free(tmp_path: Path) -> None:
    said = Space(tmp_path, 1 << 60, 0).shortage()
    assert said is not None and "MiB are free" in said and str(tmp_path) not in said


async def test_the_disk_is_asked_again_as_soon_as_something_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is written, the disk is checked rarely: idle is cheap (R19)."""
    monkeypatch.setattr(space_module, "SPACE_S", 0.0)
    monkeypatch.setattr(space_module, "SPACE_IDLE_S", 3600.0)
    written, told = asyncio.Event(), asyncio.Queue[str | None]()
    watching = asyncio.create_task(watch_space(Space(tmp_path, 1, 0), told.put_nowait, written))
    try:
        for _ in range(3):
            assert await asyncio.wait_for(told.get(), 60) is None
            assert told.empty()
            written.set()
    finally:
        watching.cancel()
