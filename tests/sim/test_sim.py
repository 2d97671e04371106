"""Seeds that must hold: a fixed batch, a fresh one, and the promise that a seed means the same everywhere."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.dice import FAULTS, PEER_FAULTS, peers_plan_of
from tests.sim.play import play

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
FIXED, FRESH = 150, 20
ROOT = Path(__file__).parents[2]


def hold(seeds: range, *, peers: bool = False) -> Counter[str]:
    """Play them; fail with all that is needed to play a bad one again."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        result = play(seed, plan=peers_plan_of(seed) if peers else None)
        if result.findings:
            told = play(seed, trace=True, plan=peers_plan_of(seed) if peers else None)
            tail = "\n".join(told.trace[-120:])
            wrong = "\n".join(map(str, result.findings))
            how = f"python -m tests.sim{' --peers' if peers else ''} --seed {seed} --trace"
            pytest.fail(f"seed {seed}: {how}\n{tail}\n\n{wrong}", pytrace=False)
        counts += result.counts
    return counts


def test_a_fixed_batch_of_seeds_holds_and_meets_every_fault() -> None:
    counts = hold(range(FIXED))
    for fault in (*set(FAULTS), "crashes", "cancels", "deletes", "answers", "gone_in_submit", "clock_jumps"):
        assert counts[fault] > 0, f"no seed of the batch has {fault}"


def test_a_fresh_batch_of_seeds_holds() -> None:
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds {first} to {first + FRESH - 1}")
    hold(range(first, first + FRESH))


def test_P4_P11_P15_a_fixed_batch_of_seeds_of_processes_that_share_a_store_holds_and_meets_every_fault() -> None:
    counts = hold(range(FIXED), peers=True)
    for fault in (
        *set(PEER_FAULTS),
        "deaf",
        "hung",
        "unheard",
        "crashes",
        "cancels",
        "deletes",
        "answers",
        "refused_slices",
    ):
        assert counts[fault] > 0, f"no seed of the batch has {fault}"


def test_a_fresh_batch_of_seeds_of_processes_that_share_a_store_holds() -> None:
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds {first} to {first + FRESH - 1}")
    hold(range(first, first + FRESH), peers=True)


@pytest.mark.parametrize("seed", [3, 17, 29])
def test_a_seed_means_the_same_in_every_process(seed: int) -> None:
    traces = {_trace(seed, hash_seed) for hash_seed in ("1", "2")}
    assert len(traces) == 1


def _trace(seed: int, hash_seed: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "tests.sim", "--seed", str(seed), "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "life 1 begins" in done.stdout, done.stdout + done.stderr
    return done.stdout
