"""A run that kills its server each time is given up, and takes nobody with it (P18, G10, R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ninelives.core.events import RunFailed
from ninelives.core.state import RunState
from ninelives.testing.playbook import Step, asked, said
from tests.crash.world import DIE, OWNER, Life, World, order

Book = Sequence[Sequence[Step]]
POISON: dict[str, Book] = {
    "a model that kills before its first word": [[DIE]],
    "a model that kills in the middle of its text": [[*said("so ", "far ")[:-1], DIE]],
    "a read tool that kills": [asked(("look", '{"die": true}')), said("never")],
    "a model that kills after a finished tool": [asked(("look", "{}")), [DIE]],
}
SLOW: list[Step] = [*said(*(f"word{n} " for n in range(60)))]
INNOCENT: dict[str, Book] = {
    "short": [said("fine")],
    "long": [SLOW],
    "tool": [asked(("note", "{}"), text="first "), SLOW],
}
MOST_LIVES = 14


async def live_on(world: World, runs: dict[str, str], texts: Sequence[str]) -> tuple[int, dict[str, RunState]]:
    """Start again and again until every run has ended; how often the process died, and how the runs ended."""
    for deaths in range(MOST_LIVES):
        life = await world.begin()
        over = await _all_end(life, runs, texts if not deaths else [])
        states = {name: await life.engine.look(OWNER, run) for name, run in runs.items()} if over else {}
        await life.end()
        if over:
            return deaths, {name: state for name, state in states.items() if state is not None}
    raise AssertionError(f"{MOST_LIVES} deaths, and no end: {world.log.errors}")


async def _all_end(life: Life, runs: dict[str, str], texts: Sequence[str]) -> bool:
    await _all_accepted(life, runs, texts)
    for run in runs.values():
        if await life.wait(run) is None:
            return False
    return True


async def _all_accepted(life: Life, runs: dict[str, str], texts: Sequence[str]) -> None:
    begun = await asyncio.gather(*(life.submit(order(text)) for text in texts))
    assert None not in begun, "somebody was not even accepted"
    runs.update(zip(texts, begun, strict=True))


@pytest.mark.parametrize("poison", POISON)
async def test_P18_a_poison_run_is_sealed_after_five_deaths(tmp_path: Path, poison: str) -> None:
    world = World(tmp_path, "sqlite", {"poison": POISON[poison]})
    deaths, states = await live_on(world, {}, ["poison"])
    end = states["poison"].facts.end
    assert isinstance(end, RunFailed)
    assert (end.code, end.reason) == ("server_error", "recovery_attempts_exceeded")
    # An attempt that settled a message or a tool is no strike: one more death is needed then.
    assert deaths == 5 + ("tool" in poison)


@pytest.mark.parametrize("first", [True, False], ids=["older", "younger"])
@pytest.mark.parametrize("innocent", INNOCENT)
@pytest.mark.parametrize("poison", POISON)
async def test_P18_other_runs_recover_beside_a_poison_run(
    tmp_path: Path, poison: str, innocent: str, first: bool
) -> None:
    books: dict[str, Book] = {"poison": POISON[poison]}
    others = [f"innocent {n}" for n in range(3)]
    world = World(tmp_path, "memory", {**books, **{text: INNOCENT[innocent] for text in others}})
    texts = ["poison", *others] if first else [*others, "poison"]
    _, states = await live_on(world, {}, texts)
    assert states["poison"].status == "failed"
    assert {text: states[text].status for text in others} == dict.fromkeys(others, "completed")


async def test_P4_a_suspect_that_hangs_does_not_keep_the_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninelives.engine.work.TURN_S", 0.05)
    hung: Book = [[asyncio.Event()]]
    world = World(tmp_path, "memory", {"hung": hung, **{f"other {n}": [SLOW] for n in range(3)}})
    runs: dict[str, str] = {}
    for deaths in range(3):
        life = await world.begin()
        if not deaths:
            await _all_accepted(life, runs, ["hung", *(f"other {n}" for n in range(3))])
        await life.store.next_append(deaths and 3)
        await life.end()
    life = await world.begin()
    for text, run in runs.items():
        if text != "hung":
            assert await life.wait(run) == "completed"
    state = await life.engine.look(OWNER, runs["hung"])
    assert state is not None and state.facts.strikes >= 2 and not state.ended
    await life.end()


async def test_G10_a_run_that_settles_something_each_time_is_never_given_up(tmp_path: Path) -> None:
    calls = [asked(("note", '{"die": true}'), text=f"{n} ") for n in range(8)]
    world = World(tmp_path, "memory", {"goes on": [*calls, said("done")]})
    deaths, states = await live_on(world, {}, ["goes on"])
    assert (deaths, states["goes on"].status) == (8, "completed")
    assert states["goes on"].facts.strikes <= 1
    assert set(world.effects.values()) == {1}
