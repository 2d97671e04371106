"""The table of attacks and the lines that their tests depend on agree with the code. `make test-undone` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.undone import ROOT, UNDONE, Undone, all_tests, attacks, copied, fails, named


def test_every_test_of_an_attack_has_a_line_without_which_it_must_fail() -> None:
    assert len(list(attacks())) > 25
    assert {named(each) for each in UNDONE} == set(all_tests())
    assert len(all_tests()) == len(set(all_tests()))


@pytest.mark.parametrize("undone", UNDONE, ids=lambda each: each.test)
def test_the_line_stands_once_in_its_file_and_the_change_is_python(undone: Undone) -> None:
    whole = (ROOT / "ninelives" / undone.file).read_text("utf-8")
    assert whole.count(undone.line) == 1
    compile(whole.replace(undone.line, undone.instead), undone.file, "exec")


def test_a_test_that_fails_is_told_from_one_that_stays_green(tmp_path: Path) -> None:
    copied(tmp_path)
    (bounded,) = [each for each in UNDONE if each.test == "test_the_queue_is_bounded_in_bytes"]
    assert fails(bounded, tmp_path).endswith("::test_the_queue_is_bounded_in_bytes")
    assert fails(bounded._replace(instead=bounded.line), tmp_path) == ""
