"""Rules of the todo list and the memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ninelives.tools.base import Place, Threads
from ninelives.tools.builtin import notes
from ninelives.tools.builtin.notes import note_tools
from ninelives.tools.registry import Toolbox
from tests.tools.conftest import Caller

ITEMS = [
    {"text": "plan", "status": "done"},
    {"text": "build", "status": "in_progress"},
    {"id": "c", "text": "rest", "status": "pending"},
]
SHOWN = "1. [x] plan\n2. [>] build\nc. [ ] rest"


@pytest.fixture
def toolbox() -> Iterator[Toolbox]:
    threads = Threads()
    yield Toolbox(note_tools(threads))
    threads.close()


@pytest.fixture
def place(place: Place, tmp_path: Path) -> Place:
    (tmp_path / "state").mkdir()
    return msgspec.structs.replace(place, state=tmp_path / "state")


_CALLS = itertools.count(1)


def other(place: Place, **fields: object) -> Place:
    """The same place for another call."""
    return msgspec.structs.replace(place, **{"call_id": f"call_{next(_CALLS)}", **fields})


async def test_the_todo_list_is_replaced_as_a_whole_and_shown(call: Caller) -> None:
    assert (await call("todo")).text == "[the todo list is empty]"
    assert (await call("todo", items=ITEMS)).text == SHOWN
    assert (await call("todo")).text == SHOWN
    assert (await call("todo", items=[])).text == "[the todo list is empty]"


async def test_a_todo_list_belongs_to_one_session_of_one_owner(call: Caller, place: Place) -> None:
    await call("todo", items=ITEMS)
    for elsewhere in (other(place, session="s2"), other(place, owner="o2"), other(place, session="../s")):
        assert (await call("todo", elsewhere)).text == "[the todo list is empty]"


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"text": "x", "status": "open"}], "Invalid enum value"),
        ([{"text": "", "status": "done"}], "length >= 1"),
        ([{"text": "x" * 501, "status": "done"}], "length <= 500"),
        ([{"status": "done"}], "missing required field `text`"),
        ([{"text": "x", "status": "done"}] * 101, "at most 100 items"),
        ("plan", "must be of type array"),
    ],
)
async def test_a_wrong_todo_list_changes_nothing(call: Caller, items: object, says: str) -> None:
    await call("todo", items=ITEMS)
    try:
        output = await call("todo", items=items)
        assert output.is_error and says in output.text
    except notes.ToolRefused as refusal:
        assert says in str(refusal)
    assert (await call("todo")).text == SHOWN


async def test_the_lists_of_old_sessions_go_first(call: Caller, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MAX_LISTS", 3)
    for number in range(6):
        await call("todo", other(place, session=f"s{number}"), items=ITEMS)
    assert len(list((place.state / "todo").glob("*.json"))) == 3
    assert (await call("todo", other(place, session="s5"))).text == SHOWN
    assert (await call("todo", other(place, session="s0"))).text == "[the todo list is empty]"


async def test_memory_survives_sessions_and_is_found_again(call: Caller, place: Place) -> None:
    assert (await call("memory", other(place), action="list")).text == "[no notes]"
    assert (await call("memory", other(place), action="add", text="Likes green tea.")).text == "Noted as m1."
    assert (await call("memory", other(place), action="add", text="Lives in Bern.")).text == "Noted as m2."
    later = other(place, session="next")
    assert (await call("memory", later, action="list")).text == "m1: Likes green tea.\nm2: Lives in Bern."
    assert (await call("memory", later, action="search", text="GREEN bern tea")).text == (
        "m1: Likes green tea.\nm2: Lives in Bern."
    )
    assert (await call("memory", later, action="search", text="coffee")).text == "[no notes]"
    assert (await call("memory", other(place), action="replace", id="m1", text="Likes coffee.")).text == (
        "Note m1 is replaced."
    )
    assert "m2 is removed" in (await call("memory", other(place), action="remove", id="m2")).text
    assert (await call("memory", later, action="list")).text == "m1: Likes coffee."
    assert (await call("memory", other(place), action="add", text="Again.")).text == "Noted as m3."


async def test_memory_belongs_to_one_owner_and_scope(call: Caller, place: Place) -> None:
    await call("memory", action="add", text="mine")
    for elsewhere in (other(place, owner="o2"), other(place, memory_scope="work")):
        assert (await call("memory", elsewhere, action="list")).text == "[no notes]"


async def test_the_same_call_again_changes_memory_once(call: Caller, place: Place) -> None:
    """After a crash an idempotent call is made again with the same id."""
    first = other(place)
    for _ in range(2):
        assert (await call("memory", first, action="add", text="one")).text == "Noted as m1."
    assert (await call("memory", other(place), action="add", text="one")).text == "Note m1 says that already."
    second = other(place)
    for _ in range(2):
        assert (await call("memory", second, action="remove", id="m1")).text == "Note m1 is removed: one"
    assert (await call("memory", first, action="add", text="one")).text == "Noted as m1."
    assert (await call("memory", other(place), action="list")).text == "[no notes]"


async def test_calls_at_the_same_time_lose_nothing(call: Caller, place: Place) -> None:
    await asyncio.gather(*(call("memory", other(place), action="add", text=f"n{n}") for n in range(40)))
    text = (await call("memory", other(place), action="list")).text
    assert len({line.partition(": ")[0] for line in text.splitlines()}) == 40


async def test_memory_is_bounded(call: Caller, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MAX_NOTES", 2)
    for text in ("a", "b"):
        await call("memory", other(place), action="add", text=text)
    output = await call("memory", other(place), action="add", text="c")
    assert output.is_error and "memory is full" in output.text
    monkeypatch.setattr(notes, "MEMORY_CHARS", 10)
    output = await call("memory", other(place), action="replace", id="m1", text="a" * 20)
    assert output.is_error and "memory is full" in output.text
    assert (await call("memory", other(place), action="list")).text == "m1: a\nm2: b"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"action": "add"}, "from 1 to 2000 characters"),
        ({"action": "add", "text": "x" * 2001}, "from 1 to 2000 characters"),
        ({"action": "replace", "id": "m9", "text": "x"}, "There is no note 'm9'. Notes: none."),
        ({"action": "remove"}, "There is no note"),
        ({"action": "search", "text": " "}, "words to search for"),
    ],
)
async def test_wrong_memory_calls_are_told(call: Caller, arguments: dict[str, object], says: str) -> None:
    output = await call("memory", **arguments)
    assert output.is_error and says in output.text


async def test_notes_are_closed_to_others_and_written_in_one_step(call: Caller, place: Place) -> None:
    await call("memory", action="add", text="secret")
    folder = place.state / "memory"
    (file,) = folder.glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(os.listdir(folder)) == [".lock", file.name]


async def test_a_broken_file_is_set_aside_and_told_never_dropped(call: Caller, place: Place) -> None:
    await call("memory", other(place), action="add", text="one")
    (file,) = (place.state / "memory").glob("*.json")
    file.write_bytes(b"{broken")
    output = await call("memory", other(place), action="add", text="two")
    assert output.is_error and "set aside" in output.text
    (aside,) = (place.state / "memory").glob("*.broken-*")
    assert aside.read_bytes() == b"{broken"
    assert (await call("memory", other(place), action="add", text="two")).text == "Noted as m1."


async def test_without_a_state_folder_the_model_is_told(call: Caller, place: Place) -> None:
    nowhere = other(place, state=Path("/nonexistent"))
    assert (await call("memory", nowhere, action="list")).text == "memory: No such file or directory"


def test_both_are_declared_idempotent(toolbox: Toolbox) -> None:
    assert [tool.effect for tool in note_tools(Threads())] == ["idempotent", "idempotent"]
