"""The storm of stock_clients.py, in short, and whether it sees bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.planted import CLIENT_BUGS
from tests.supervisor.stock_clients import Weather, storm

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.long]


def test_every_answer_that_has_begun_comes_to_its_end_under_kills(tmp_path: Path) -> None:
    verdict = storm(tmp_path, Weather(kills=40, seed=3))
    assert not verdict.wrong, (verdict.show(), verdict.wrong[:10])
    assert verdict.in_flight >= 28 and verdict.adopted >= 40, verdict.show()


@pytest.mark.parametrize("bug", CLIENT_BUGS)
def test_the_storm_sees_a_planted_bug(tmp_path: Path, bug: str) -> None:
    verdict = storm(tmp_path, Weather(kills=6, seed=4, streams=6, bug=bug, most_wrong=1, deadline_s=20))
    assert verdict.wrong, verdict.show()
