"""Steps of an agent of one's own: made once, replayed after a crash, and never repeated in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ninelives.agents.adapters import Surroundings, adapted
from ninelives.agents.base import Turn
from ninelives.agents.loop import LoopSettings
from ninelives.agents.steps import StepFailed
from ninelives.core import events as e
from ninelives.core.errors import AgentError
from ninelives.models.scripted import ScriptedModel
from tests.agents.replays import agent_of
from tests.agents.replays import attempt as killed_after
from tests.journals import Pen


async def attempt(function: Callable[..., Any], pen: Pen, events: int = 10**9) -> Pen:
    """One attempt, killed after this many events."""
    return await killed_after(agent_of(function), pen, events)


async def test_a_function_answers_with_what_it_returns() -> None:
    async def agent(question: str) -> str:
        return f"You said: {question}"

    state = (await attempt(agent, Pen().attempt())).state
    assert state.status == "completed" and [said.text for said in state.facts.messages] == ["You said: Say hello"]


def paying(done: list[str]) -> Callable[..., Any]:
    async def pay(amount: int, key: str) -> dict[str, int]:
        done.append(key)
        return {"paid": amount}

    async def look(name: str) -> str:
        done.append(name)
        return name.upper()

    async def agent(question: str, ctx: Any) -> str:
        found = await ctx.step("look", look, "ada", effect="read")
        await ctx.say("Paying. ")
        paid = await ctx.step("pay", pay, 5)
        return f"{found} {paid['paid']}"

    return agent


async def test_finished_steps_are_not_made_again_wherever_the_process_dies() -> None:
    whole = await attempt(paying([]), Pen().attempt())
    assert whole.state.status == "completed"
    for events in range(1, whole.state.seq - 1):
        done: list[str] = []
        pen = await attempt(paying(done), Pen().attempt(), events)
        finished = len(pen.state.facts.results)
        begun = list(done)
        await attempt(paying(done), pen.crash())
        assert done[: len(begun)] == begun
        calls = [each for each in done if each != "ada"]
        assert len(calls) <= 1, "a write is never made twice"
        assert len(done) - len(begun) <= 2 - finished
        assert pen.state.status in ("completed", "failed")


async def test_a_write_in_flight_is_unknown_and_a_read_is_made_again() -> None:
    done: list[str] = []
    pen = await attempt(paying(done), Pen().attempt(), 1)
    assert done == [] and list(pen.state.facts.due), "started, not finished"
    state = (await attempt(paying(done), pen.crash())).state
    assert state.status == "completed" and done[0] == "ada"


async def test_a_step_that_differs_after_a_crash_ends_the_run_and_names_both() -> None:
    clock = iter(range(100))
    made: list[int] = []

    async def note(at: int) -> int:
        made.append(at)
        return at

    async def agent(question: str, ctx: Any) -> str:
        return str(await ctx.step("note", note, next(clock), effect="read"))

    pen = await attempt(agent, Pen().attempt(), 2)
    with pytest.raises(AgentError) as caught:
        await attempt(agent, pen.crash())
    assert caught.value.code == "replay_diverged"
    assert '{"at":0}' in caught.value.message and '{"at":1}' in caught.value.message
    assert made == [0]


async def test_an_agent_that_ends_without_its_recorded_steps_has_diverged() -> None:
    async def nothing() -> None: ...

    first = True

    async def agent(question: str, ctx: Any) -> str:
        nonlocal first
        if first:
            first = False
            await ctx.step("nothing", nothing, effect="read")
        return "done"

    pen = await attempt(agent, Pen().attempt(), 2)
    with pytest.raises(AgentError, match="nothing"):
        await attempt(agent, pen.crash())


async def test_steps_side_by_side_are_found_again_in_any_order() -> None:
    made: list[int] = []

    async def square(n: int) -> int:
        made.append(n)
        await asyncio.sleep(0)
        return n * n

    async def agent(question: str, ctx: Any) -> str:
        found = await asyncio.gather(*(ctx.step("square", square, n, effect="read") for n in range(4)))
        return str(sum(found))

    whole = await attempt(agent, Pen().attempt())
    assert whole.state.facts.messages[-1].text == "14"
    for events in range(1, whole.state.seq - 1):
        pen = await attempt(agent, Pen().attempt(), events)
        finished = {call for call in pen.state.facts.results}
        made.clear()
        state = (await attempt(agent, pen.crash())).state
        assert state.status == "completed" and state.facts.messages[-1].text == "14"
        assert len(made) == 4 - len(finished)


async def test_a_failed_step_fails_with_the_same_words_again() -> None:
    async def broken() -> None:
        raise ValueError("no such city")

    async def agent(question: str, ctx: Any) -> str:
        try:
            await ctx.step("broken", broken, effect="read")
        except StepFailed as error:
            return f"sorry: {error}"
        return "fine"

    pen = await attempt(agent, Pen().attempt(), 2)
    state = (await attempt(agent, pen.crash())).state
    assert state.facts.messages[-1].text == "sorry: ValueError: no such city"


async def test_an_answer_of_the_model_streams_and_is_not_paid_twice() -> None:
    asked = 0

    class Counting(ScriptedModel):
        def stream(self, ask: Any) -> Any:
            nonlocal asked
            asked += 1
            return super().stream(ask)

    async def agent(question: str, ctx: Any) -> str:
        answer = await ctx.ask(ctx.messages)
        hidden = await ctx.ask("Again: hello", shown=False)
        assert hidden.text
        return str(answer.text)

    model = Counting()
    made = adapted(agent, Surroundings(model, LoopSettings(), None))  # type: ignore[arg-type]

    async def go(pen: Pen, events: int = 10**9) -> Pen:
        run = made.run(Turn(pen.state, ()))
        async for event in run:
            pen.write(event)
            events -= 1
            if events == 0:
                break
        await run.aclose()  # type: ignore[attr-defined]
        return pen

    whole = await go(Pen().attempt())
    kinds = [type(item).__name__ for item in whole.state.facts.items]
    assert whole.state.status == "completed" and kinds.count("Said") == 1, "what the model said is not said again"
    assert any(isinstance(entry.event, e.TextDelta) for entry in whole.entries)
    assert asked == 2
    messages_at = [entry.seq for entry in whole.entries if isinstance(entry.event, e.MessageCompleted)]
    asked = 0
    pen = await go(Pen().attempt(), messages_at[0] - 1)
    assert asked == 1
    await go(pen.crash())
    assert asked == 2, "the first answer was not asked for again"


async def test_a_generator_streams_its_text_and_continues_after_its_messages() -> None:
    done: list[str] = []

    async def look(name: str) -> str:
        done.append(name)
        return name

    async def agent(question: str, ctx: Any) -> Any:
        yield "one "
        yield "two "
        await ctx.step("look", look, "x", effect="read")
        yield "three"

    whole = await attempt(agent, Pen().attempt())
    assert [said.text for said in whole.state.facts.messages] == ["one two ", "three"]
    for events in range(1, whole.state.seq - 1):
        done.clear()
        pen = await attempt(agent, Pen().attempt(), events)
        finished = len(pen.state.facts.results)
        done.clear()
        state = (await attempt(agent, pen.crash())).state
        assert [said.text for said in state.facts.messages] == ["one two ", "three"]
        assert len(done) == 1 - finished


async def test_a_function_without_context_is_not_resumable_unless_it_says_so() -> None:
    async def plain(question: str) -> str:
        return question

    async def with_context(question: str, ctx: Any) -> str:
        return question

    assert not agent_of(plain).resumable and agent_of(with_context).resumable
    plain.resumable = True  # type: ignore[attr-defined]
    assert agent_of(plain).resumable


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_steps_inside_of_a_step_belong_to_it(effect: str) -> None:
    made: list[str] = []

    async def leaf(name: str) -> str:
        made.append(name)
        return name

    async def agent(question: str, ctx: Any) -> str:
        async def branch() -> str:
            made.append("branch")
            await ctx.step("leaf", leaf, "one", effect="read")
            return str(await ctx.step("leaf", leaf, "two", effect=effect))

        try:
            found = await ctx.step("branch", branch, effect=effect)
        except StepFailed as error:
            found = error.code
        await ctx.step("leaf", leaf, "three", effect="read")
        return str(found)

    whole = await attempt(agent, Pen().attempt())
    assert whole.state.facts.messages[-1].text == "two" and made == ["branch", "one", "two", "three"]
    for events in range(1, whole.state.seq - 1):
        pen = await attempt(agent, Pen().attempt(), events)
        finished = {done.output for done in pen.state.facts.results.values()}
        made.clear()
        state = (await attempt(agent, pen.crash())).state
        assert state.status == "completed" and not state.facts.due
        assert not finished & set(made), "what was finished is not made again"
        assert len(made) == len(set(made))
        unknown = events in range(1, 6) and effect == "write"
        assert state.facts.messages[-1].text == ("outcome_unknown" if unknown else "two")
