"""Workspaces on several machines: each has one home, and is refused everywhere else (D3)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ninelives.tools.base import Place, Threads, Tool, ToolRefused
from ninelives.tools.decorator import tool_of
from ninelives.tools.homes import NOWHERE, Homes, home_of
from ninelives.tools.output import OutputFiles
from ninelives.tools.registry import Toolbox, builtin_tools


class Book:
    """Where it is written down which workspace has which home."""

    def __init__(self) -> None:
        self.homes: dict[tuple[str, str], str] = {}
        self.asked = 0

    async def assign(self, owner: str, name: str, home: str) -> str:
        self.asked += 1
        return self.homes.setdefault((owner, name), home)


class Machine:
    """A server with a disk of its own."""

    def __init__(self, folder: Path, book: Book) -> None:
        self.folder = folder
        self.homes = Homes(home_of(folder / "workspaces"), book.assign)
        self.tools = Toolbox(builtin_tools("off", Threads()))

    def place(self, name: str = "ann", owner: str = "ann") -> Place:
        workspace, state = self.folder / "workspaces" / name.replace("/", "-"), self.folder / "state"
        workspace.mkdir(exist_ok=True)
        state.mkdir(exist_ok=True)
        return Place(owner, "s", "call_1", workspace, state, home=self.homes.of(owner, name))

    async def call(self, tool: str, arguments: str, place: Place) -> str:
        execution = await self.tools.prepare(tool, arguments, place)
        return (await execution.run()).text


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def two(tmp_path: Path, book: Book) -> tuple[Machine, Machine]:
    return Machine(tmp_path / "a", book), Machine(tmp_path / "b", book)


def test_a_folder_of_workspaces_has_one_id_for_ever(tmp_path: Path) -> None:
    first = home_of(tmp_path / "workspaces")
    assert first and home_of(tmp_path / "workspaces") == first != home_of(tmp_path / "others")
    assert [path.name for path in (tmp_path / "workspaces").iterdir()] == [".home"]


async def test_servers_that_make_the_id_at_the_same_moment_agree(tmp_path: Path) -> None:
    made = await asyncio.gather(*(asyncio.to_thread(home_of, tmp_path / "w") for _ in range(8)))
    assert len(set(made)) == 1


async def test_a_workspace_is_used_where_it_began_and_refused_elsewhere(two: tuple[Machine, Machine]) -> None:
    here, there = two
    await here.call("write_file", '{"path":"a.txt","content":"one"}', here.place())
    for tool, arguments in (
        ("read_file", '{"path":"a.txt"}'),
        ("write_file", '{"path":"a.txt","content":"two"}'),
        ("search_files", '{"pattern":"one"}'),
        ("patch", '{"path":"a.txt","edits":[{"search":"one","replace":"two"}]}'),
        ("terminal", '{"command":"touch b.txt"}'),
        ("execute_code", '{"code":"print(1)"}'),
        ("process", '{"action":"list"}'),
        ("todo", "{}"),
        ("memory", '{"action":"list"}'),
    ):
        with pytest.raises(ToolRefused, match="on another machine"):
            await there.call(tool, arguments, there.place())
    assert list(there.place().workspace.iterdir()) == [], "nothing was begun there"
    assert "one" in await here.call("read_file", '{"path":"a.txt"}', here.place())


async def test_tools_that_need_no_files_work_everywhere_and_settle_nothing(
    two: tuple[Machine, Machine], book: Book
) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    tool: Tool = tool_of(add, Threads())
    for machine in two:
        execution = await Toolbox([tool]).prepare("add", '{"a":1,"b":2}', machine.place())
        assert (await execution.run()).text == "3"
    assert book.homes == {}


async def test_a_function_of_somebody_elses_gets_no_files_where_they_are_elsewhere(
    two: tuple[Machine, Machine],
) -> None:
    def note(text: str, place: Place) -> str:
        (place.workspace / "note.txt").write_text(text)
        return "noted"

    here, there = two
    toolbox = Toolbox([tool_of(note, Threads())])
    assert (await (await toolbox.prepare("note", '{"text":"a"}', here.place())).run()).text == "noted"
    with pytest.raises(OSError, match=NOWHERE.name):
        await (await toolbox.prepare("note", '{"text":"b"}', there.place())).run()
    with pytest.raises(OSError):
        (NOWHERE / "x").mkdir(parents=True)


async def test_a_long_output_is_not_laid_in_a_workspace_that_is_elsewhere(two: tuple[Machine, Machine]) -> None:
    here, there = two
    await OutputFiles().keep(here.place(), "out/1.txt", "long")
    with pytest.raises(ToolRefused):
        await OutputFiles().keep(there.place(), "out/1.txt", "long")


async def test_sessions_of_one_owner_may_live_on_different_machines_but_the_owners_notes_may_not(
    two: tuple[Machine, Machine],
) -> None:
    here, there = two
    await here.call("write_file", '{"path":"a","content":"1"}', here.place("ann/one"))
    await there.call("write_file", '{"path":"a","content":"2"}', there.place("ann/two"))
    await here.call("memory", '{"action":"add","text":"likes tea"}', here.place("ann/one"))
    with pytest.raises(ToolRefused, match="notes"):
        await there.call("memory", '{"action":"list"}', there.place("ann/two"))
    await there.call("todo", "{}", there.place("ann/two"))


async def test_a_shared_volume_is_one_home(tmp_path: Path, book: Book) -> None:
    first, second = Machine(tmp_path / "volume", book), Machine(tmp_path / "volume", book)
    await first.call("write_file", '{"path":"a.txt","content":"one"}', first.place())
    assert "one" in await second.call("read_file", '{"path":"a.txt"}', second.place())


async def test_the_answer_is_asked_for_once(two: tuple[Machine, Machine], book: Book) -> None:
    for _ in range(5):
        await two[0].call("todo", "{}", two[0].place())
    assert book.asked == 1
