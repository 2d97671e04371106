"""The storm of one_call.py, in short, and whether it sees bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.one_call import storm
from tests.supervisor.planted import CALL_BUGS

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.long
def test_a_storm_of_kills_asks_the_model_once_per_message(tmp_path: Path) -> None:
    verdict = storm(tmp_path, 40, 3)
    assert not verdict.wrong, (verdict.show(), verdict.wrong[:10])
    assert verdict.kills == 40 and verdict.in_flight >= 20 and verdict.kept >= 10, verdict.show()


@pytest.mark.parametrize("bug", CALL_BUGS)
def test_the_storm_sees_a_planted_bug(tmp_path: Path, bug: str) -> None:
    verdict = storm(tmp_path, 1, 4, bug=bug, most_wrong=1, gated=True)
    assert verdict.wrong, verdict.show()


def test_a_kill_while_models_write_is_not_seen(tmp_path: Path) -> None:
    verdict = storm(tmp_path, 1, 4, gated=True)
    assert not verdict.wrong and verdict.kept == 2, (verdict.show(), verdict.wrong)
