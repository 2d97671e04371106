"""The replicas of one database share its clock."""

from __future__ import annotations

import time
from pathlib import Path

from ninelives.app.settings import ServerSettings, Settings, StoreSettings
from ninelives.app.store import ProcessRole, open_store
from ninelives.observe.log import Log
from tests import pg


async def test_all_replicas_expire_things_by_the_same_clock(tmp_path: Path) -> None:
    """A question from a machine whose clock is a day slow does not expire at once on another (P12)."""
    async with pg.server().borrowed() as (url, clock):
        clock.set(float(int(time.time())) + 86_400)
        settings = Settings(server=ServerSettings(data_dir=str(tmp_path)), store=StoreSettings(url=url))
        shelf = await open_store(settings, ProcessRole(name="one"), Log(lambda: "", None))
        try:
            assert abs(shelf.steady_ms() - clock.now_ms()) < 60_000, "the machine may be slow"
        finally:
            await shelf.close()
