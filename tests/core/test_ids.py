"""Names of things on the wire (G7)."""

from __future__ import annotations

import pytest

import ninelives.dialects  # noqa: F401 - registers the prefixes
from ninelives.core import ids
from ninelives.core.ids import call_id, handed_id, item_id, run_of, run_of_any, wire_id

RUN = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("dialect", "shown"), [("runs", "run_"), ("responses", "resp_"), ("chat", "chatcmpl-"), ("messages", "msg_")]
)
def test_ids_share_one_random_core(dialect: str, shown: str) -> None:
    """G7: run_X, resp_X, chatcmpl-X, msg_X."""
    assert wire_id(dialect, RUN) == shown + RUN
    assert run_of(dialect, shown + RUN) == RUN
    assert run_of_any(shown + RUN) == RUN


@pytest.mark.parametrize(
    "shown", ["", RUN, "resp_", "resp_a/b", "resp_../x", "resp_\n" + RUN, f"resp_{RUN}\n", "conv_" + RUN]
)
def test_another_shape_names_no_run(shown: str) -> None:
    """G7: then it is 404."""
    assert run_of_any(shown) is None and run_of("responses", shown) is None


def test_a_route_takes_its_own_ids_only_and_runs_take_all() -> None:
    """G7."""
    assert run_of("responses", wire_id("chat", RUN)) is None
    assert run_of_any(wire_id("chat", RUN)) == RUN


@pytest.mark.parametrize(
    ("dialect", "prefix"), [("other", "resp_"), ("other", "resp_x_"), ("other", "r"), ("responses", "answer_")]
)
def test_no_id_can_belong_to_two_dialects(dialect: str, prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        ids.register(dialect, prefix)


def test_item_and_call_ids_derive_from_the_run_and_a_place_in_it() -> None:
    """G1, E3: unique per run, the same on every replay."""
    assert item_id("msg", RUN, 10) == f"msg_{RUN}00000a"
    assert call_id(RUN, 10) == f"call_{RUN}000a"
    assert handed_id(call_id(RUN, 10)) == f"fc_{RUN}000a" != item_id("fc", RUN, 10)
