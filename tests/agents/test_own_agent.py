"""The agent in the documentation of agents/base.py is a whole one."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from ninelives.agents import base
from ninelives.agents.base import Turn
from ninelives.core import events
from tests.journals import Pen


def documented() -> Any:
    """The agent in the docstring."""
    assert base.__doc__ is not None
    source = textwrap.dedent("    class Echo:" + base.__doc__.partition("    class Echo:")[2])
    space: dict[str, Any] = {**vars(base), "events": events}
    exec("from __future__ import annotations\n" + source, space)
    return space["Echo"]()


async def finish(pen: Pen) -> Pen:
    async for event in documented().run(Turn(pen.state, ())):
        pen.write(event)
    return pen


@pytest.mark.parametrize("died", [False, True])
async def test_the_documented_agent_answers_and_is_resumed_in_a_draft(died: bool) -> None:
    pen = Pen().attempt()
    state = (await finish(pen.text("Say").crash() if died else pen)).state
    assert state.status == "completed"
    assert [said.text for said in state.facts.messages] == ["Say hello"]


async def test_the_documented_agent_says_nothing_twice() -> None:
    state = (await finish(Pen().attempt().text("Say hello").settle().crash())).state
    assert state.status == "completed" and len(state.facts.messages) == 1
