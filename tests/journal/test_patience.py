"""Packing waits while much is written, but not for ever."""

from __future__ import annotations

from holdfast.journal.tails import BUSY_ROWS, MANY_RUNS, ROUNDS, Patience


def test_it_is_time_where_little_is_written() -> None:
    patience = Patience()
    patience.over(1_000_000, 1)
    assert all(patience.over(1_000_000 + n * BUSY_ROWS, 1) for n in range(5))


def test_it_waits_while_much_is_written_for_so_many_rounds_only() -> None:
    patience, rows = Patience(), 0
    said = []
    for _ in range(2 * ROUNDS + 2):
        rows += BUSY_ROWS + 1
        said.append(patience.over(rows, 3))
    assert said == [*[False] * ROUNDS, True] * 2


def test_it_does_not_wait_where_many_runs_do() -> None:
    assert Patience().over(10 * BUSY_ROWS, MANY_RUNS)
