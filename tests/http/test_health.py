"""Rules of the probes once the server has started (A1). The start itself is in test_starting.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ninelives import __version__
from ninelives.http.routes.health import HealthRoutes

HOLD_S = 10.0
PLATFORM = {"platform": "hermes-agent", "server": "ninelives"}


class House:
    """A server whose store and clock the test sets."""

    def __init__(self) -> None:
        self.draining = False
        self.away: str | None = None
        self.full: str | None = None
        self.now = 0.0
        engine: Any = self
        about: Any = SimpleNamespace(
            parts=SimpleNamespace(engine=engine), away=lambda: self.away, now=lambda: self.now, hold_s=HOLD_S
        )
        self._routes = HealthRoutes(about)

    def stats(self) -> dict[str, Any]:
        return {"writable": self.full is None, "degraded": self.full}

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        (endpoint,) = [each for each in self._routes.endpoints() if each.path == path]
        unused: Any = None
        answer = await endpoint.answer(unused)
        assert answer.status_code != 503 or "retry-after" in answer.headers
        return answer.status_code, msgspec.json.decode(answer.body)


@pytest.mark.parametrize("trouble", ["away", "full"])
async def test_a1_readyz_is_503_when_the_store_has_been_away_for_longer_than_hold_s(trouble: str) -> None:
    house = House()
    assert await house.get("/readyz") == (200, {"status": "ok"})
    setattr(house, trouble, "no store")
    for house.now, status in ((0.0, 200), (HOLD_S, 200), (HOLD_S + 1, 503)):
        assert (await house.get("/readyz"))[0] == status
    assert (await house.get("/readyz"))[1] == {"status": "degraded", "reason": "no store"}
    setattr(house, trouble, None)
    assert (await house.get("/readyz"))[0] == 200
    setattr(house, trouble, "again")
    assert (await house.get("/readyz"))[0] == 200, "the time begins anew"


async def test_a1_readyz_is_503_with_a_reason_while_the_server_drains() -> None:
    house = House()
    house.draining = True
    status, said = await house.get("/readyz")
    assert (status, said["status"]) == (503, "draining") and said["reason"]


async def test_a1_livez_is_200_whatever_happens() -> None:
    house = House()
    house.draining, house.away, house.full = True, "no store", "no room"
    assert await house.get("/livez") == (200, {"status": "ok", **PLATFORM})


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
async def test_a1_health_is_200_once_started_and_says_how_it_is(path: str) -> None:
    house = House()
    assert await house.get(path) == (200, {"status": "ok", **PLATFORM, "version": __version__})
    house.away = "no store"
    assert (await house.get(path))[1]["status"] == "degraded"
    house.draining = True
    assert await house.get(path) == (200, {"status": "draining", **PLATFORM, "version": __version__})
