"""Sealing waits while the store is busy, for a limited time."""

from __future__ import annotations

from ninelives.journal.sqlite.tails import BUSY_ROWS, MANY_RUNS, ROUNDS, SealDelay


def test_sealing_starts_at_once_when_little_is_written() -> None:
    delay = SealDelay()
    delay.is_over(1_000_000, 1)
    assert all(delay.is_over(1_000_000 + n * BUSY_ROWS, 1) for n in range(5))


def test_sealing_waits_a_limited_number_of_rounds_while_much_is_written() -> None:
    delay, rows = SealDelay(), 0
    answers = []
    for _ in range(2 * ROUNDS + 2):
        rows += BUSY_ROWS + 1
        answers.append(delay.is_over(rows, 3))
    assert answers == [*[False] * ROUNDS, True] * 2


def test_sealing_does_not_wait_when_many_runs_are_due() -> None:
    assert SealDelay().is_over(10 * BUSY_ROWS, MANY_RUNS)
