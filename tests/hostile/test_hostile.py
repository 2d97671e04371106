"""A short version of `make test-hostile`: requests that once stopped the server for seconds. Judged by a factor against
a plain request of the same size, on the same machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.hostile.field import Field, Result, Row, control
from tests.hostile.report import cells, page, verdict
from tests.hostile.rows import ROWS, chat, sent
from tests.story.server import wait_until

BY_NAME = {row.name: row for row in ROWS}
PLAIN = "a message of 9.9 MB"
FACTOR, FLOOR_MS = 10.0, 30.0
"""These requests took 600 ms to 10 s, and a plain one of their size some 30 ms."""
ONCE_SLOW = (
    "approve ABCD, 40,000 spaces, x",
    "logit_bias with 700,000 keys",
    "input_tokens with 2,000 pictures",
    "9.9 MB of brackets in a field",
)
OTHERS = (
    "approve ABCD, 900,000 newlines, x",
    "3.3 million empty arrays in a schema",
    "a tool with 100,000 properties",
    "a forged compaction item of 9.9 MB",
)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with control() as port:
        made = Field(tmp_path_factory.mktemp("hostile"), port, {}, settle_s=0.0)
        try:
            made.warm_up()
            yield made
        finally:
            made.close()


def tried(field: Field, name: str, calm_ms: float) -> Result:
    row = BY_NAME[name]
    row.attack.prepare()  # type: ignore[attr-defined]
    return field.measure(row, rounds=4, calm_ms=calm_ms)


@pytest.mark.parametrize("names", [ONCE_SLOW, pytest.param(OTHERS, marks=pytest.mark.long)], ids=["some", "others"])
def test_no_request_stops_the_server_for_much_longer_than_a_plain_one_of_its_size(
    field: Field, names: tuple[str, ...]
) -> None:
    base = field.server.fds()
    plain = tried(field, PLAIN, FLOOR_MS)
    bound = FACTOR * max(plain.stop_ms, plain.control_ms, FLOOR_MS)
    found = [tried(field, name, bound) for name in names]
    assert {each.row.name: round(each.stop_ms) for each in found if each.stop_ms > bound} == {}, round(bound)
    assert [each.row.name for each in found if each.failed] == []
    wait_until(lambda: field.server.fds() <= base, "descriptors come back", 60)
    assert {each.answer[:3] for each in found} <= {"200", "400"}, [each.answer for each in found]


def test_a_server_under_attack_obeys_sigterm(field: Field) -> None:
    """The last test of this file: its server ends."""
    row = BY_NAME["approve ABCD, 900,000 newlines, x"]
    row.attack.prepare()  # type: ignore[attr-defined]
    assert field.terminate(row)[1] == 0


def test_every_row_has_a_name_of_its_own_and_bodies_stay_within_the_limit_of_a_body() -> None:
    assert len(BY_NAME) == len(ROWS) > 30
    assert len(chat("x" * 9_900_000)) < 10_000_000


RESULT = Result(Row("a | b", sent("/", bytes), key=False), "200", 7.0, 1.0, (1.0, 2.0, 1.0), 0, 0, 0, 0.2, 0)


def test_a_row_over_the_goal_is_marked_and_a_fault_is_named() -> None:
    assert cells(RESULT)[3] == "7" and verdict([RESULT]) == "No row is over 50 ms."
    bad = replace(RESULT, stop_ms=51.0, failed=2, fds=3, term_code=None)
    assert cells(bad)[3] == "51 (!)" and cells(bad)[-1] == "code None"
    said = verdict([bad])
    assert "Over the goal of 50 ms: a | b (51 ms)." in said and "2 journaled runs failed" in said
    assert "3 descriptors did not come back" in said and "SIGTERM" in said
    assert "| a \\| b | no | 200 | 7 |" in page([RESULT], 3)
