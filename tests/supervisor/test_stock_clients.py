"""The storm of stock_clients.py, in short, and whether it sees bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.planted import CLIENT_BUGS as PLANTED
from tests.supervisor.stock_clients import Weather, storm

CUT, KEPT = "it was cut", "it is over and still kept"
CLIENT_BUGS = {
    "wrong_client_base": CUT,
    "wrong_version": CUT,
    "lost_end": CUT,
    "double_adoption": CUT,
    "other_bytes": "its bytes are not those of its journal",
    "lost_done": KEPT,
    "lost_over": KEPT,
}
"""What the storm says of each."""
assert CLIENT_BUGS.keys() == PLANTED.keys()
pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.long]


@pytest.mark.parametrize("forked", [False, True])
def test_every_answer_that_has_begun_comes_to_its_end_under_kills(tmp_path: Path, *, forked: bool) -> None:
    verdict = storm(tmp_path, Weather(kills=40, seed=3, forked=forked))
    assert not verdict.wrong, (verdict.show(), verdict.wrong[:10])
    assert verdict.in_flight >= 28 and verdict.adopted >= 40, verdict.show()


@pytest.mark.parametrize("bug", CLIENT_BUGS)
def test_the_storm_sees_a_planted_bug(tmp_path: Path, bug: str) -> None:
    weather = Weather(kills=6, seed=4, streams=6, bug=bug, most_wrong=1, deadline_s=20, forked=True)
    verdict = storm(tmp_path, weather)
    assert any(CLIENT_BUGS[bug] in each for each in verdict.wrong), (verdict.show(), verdict.wrong[:5])
