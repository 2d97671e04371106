"""python -m tests.supervisor.planted BUG serve ...: a server with a planted bug in what it does with kept calls. Owns:
the bugs. Refuses to know: who looks for them."""

from __future__ import annotations

import runpy
import sys

import msgspec

from ninelives.agents import loop_state
from ninelives.core.state import RunState
from ninelives.supervisor.holder import SupervisedConnections


def wrong_base() -> None:
    """One character too few is skipped."""
    right = loop_state.draft_of

    def draft_of(state: RunState) -> loop_state.ToldDraft | None:
        draft = right(state)
        return draft and msgspec.structs.replace(draft, text=max(0, draft.text - 1))

    loop_state.draft_of = draft_of


def asks_again() -> None:
    """What is held is not read again: the model is asked anew."""
    SupervisedConnections.held = lambda self, call: False  # type: ignore[method-assign]


BUGS = {"wrong_base": wrong_base, "asks_again": asks_again}

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    runpy.run_module("ninelives", run_name="__main__", alter_sys=True)
