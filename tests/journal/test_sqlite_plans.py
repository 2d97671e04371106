"""Query plans of statements that run often, or over many runs."""

from __future__ import annotations

import apsw

from ninelives.journal import queries


def plan(name: str, *values: apsw.SQLiteValue) -> list[str]:
    """The query plan of a named query on an empty store, where the planner has no statistics."""
    db = apsw.Connection(":memory:")
    for _, script in queries.migrations("sqlite"):
        db.execute(script)
    return [str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {queries.load('sqlite', 'store')[name]}", values)]


def test_eviction_finds_the_descendants_of_a_run_by_index() -> None:
    """A plan that begins with all runs took 4.5 ms per run with 10,000 runs, in the writer thread."""
    steps = plan("youngest", "owner", "run")
    assert not [step for step in steps if "runs_by_owner" in step or "AUTOMATIC" in step], steps
    assert [
        step for step in steps if step.startswith("SEARCH runs USING INDEX runs_by_previous (owner=? AND previous=?)")
    ]
    assert [step for step in steps if step.startswith("SEARCH later") and "(id=?)" in step], steps


def test_an_opening_finds_the_run_that_it_joins_by_index() -> None:
    (step,) = plan("lost_run", "owner", "match", 5)
    assert step.startswith("SEARCH runs USING INDEX runs_lost (owner=? AND fingerprint=?)"), "no sorting"


def test_a_question_finds_its_run_by_index() -> None:
    (step,) = plan("asking", "owner", "code")
    assert step.startswith("SEARCH runs USING INDEX runs_asking (owner=? AND asks=?)")


def test_runs_to_forget_are_found_by_index() -> None:
    steps = [step for step in plan("forgettable", 9, 1, 5, 10) if "runs" in step]
    assert len(steps) == 2 and all("SEARCH runs USING INDEX runs_to_forget" in step for step in steps), steps


def test_a_start_finds_the_waiting_callers_by_index() -> None:
    (step,) = plan("waited_for")
    assert "runs_waited_for" in step


def test_a_start_finds_what_can_be_joined_by_index() -> None:
    steps = [step for step in plan("joinable", 5) if "runs" in step]
    assert len(steps) == 2 and all("runs_lost" in step or "runs_waited_for" in step for step in steps), steps


def test_a_request_finds_the_active_run_of_its_session_among_the_open_ones() -> None:
    (step,) = plan("session_active", "owner", "session")
    assert "runs_open" in step


def test_runs_that_have_not_ended_are_listed_by_the_index_of_open_runs() -> None:
    steps = plan("rows_open", "owner", None, ",waiting_for_approval,", None, None, 50, None, 0)
    assert steps[0].startswith("SCAN runs USING INDEX runs_open"), steps
    assert not [step for step in steps if "TEMP B-TREE" in step], "they are in order already"
