"""Rules of a search with ripgrep: faster, and otherwise the same."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from ninelives.tools.base import Output, Place, Threads
from ninelives.tools.builtin import search
from ninelives.tools.builtin.files import file_tools, ripgrep
from ninelives.tools.registry import Toolbox
from ninelives.tools.sandbox.landlock import abi
from tests.tools.conftest import Caller, children, eventually

needs_rg = pytest.mark.skipif(not ripgrep() or not abi(), reason="ripgrep or Landlock is not there")

Search = Callable[..., Coroutine[Any, Any, Output]]


@pytest.fixture
def searches(place: Place) -> Iterator[list[Search]]:
    """Both ways of searching: here, and with ripgrep."""
    threads = Threads(2)

    def way(rg: str) -> Search:
        caller = Caller(Toolbox(file_tools(threads, rg)), place)

        async def call(pattern: str, **arguments: object) -> Output:
            return await caller("search_files", pattern=pattern, **arguments)

        return call

    yield [way(""), way(ripgrep())]
    threads.close()


@pytest.fixture
def tree(place: Place) -> Path:
    top = place.workspace
    files = {
        "b.txt": "one\ntwo TWO\n  three  \n",
        "a/z.py": "def one():\n    return 'two'\n",
        "a/-dash.txt": "one\n",
        "a/sub/x.md": "# one\r\ntwo\r\n",
        ".hidden": "one\n",
        ".gitignore": "b.txt\n",
        ".git/config": "one\n",
        "node_modules/m.js": "one\n",
        "latin.txt": "",
        "name with space.txt": "one\n",
        "colon:7:.txt": "one\n",
        "umlaut-ä.txt": "öne one\n",
        "long.txt": "one" + "x" * 5000 + "\n",
        "notail.txt": "one",
    }
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(text.encode())
    (top / "latin.txt").write_bytes(b"caf\xe9 one\n")
    (top / os.fsdecode(b"n\xe9.txt")).write_bytes(b"one\n")
    (top / "binary").write_bytes(b"one\n\0one\n")
    (top / "big.txt").write_bytes(b"one\n" * (search.MAX_FILE_BYTES // 4 + 1))
    (top / "link.txt").symlink_to("b.txt")
    (top / "out").symlink_to("/etc")
    os.mkfifo(top / "pipe")
    return top


@needs_rg
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("one", "."),
        ("one", "a"),
        ("one", "a/z.py"),
        ("one", "a/-dash.txt"),
        ("^one$", "."),
        ("(?i)two", "."),
        (r"\bt\w+", "."),
        ("[äö]", "."),
        ("nothing at all", "."),
        (r"(?<=def )one", "."),
        (r"(o)n\w\1?", "."),
        (r"one\Z", "."),
        (r"\n", "."),
        ("-e", "."),
        ("--help", "."),
        ("", "."),
        ("(", "."),
        ("one", "none"),
        ("one", "link.txt"),
        ("root", "out"),
        ("one", "pipe"),
        ("one", "binary"),
    ],
)
async def test_both_ways_give_the_same_answer(searches: list[Search], tree: Path, pattern: str, path: str) -> None:
    here, with_rg = searches
    assert await with_rg(pattern, path=path) == await here(pattern, path=path)


@needs_rg
async def test_ripgrep_is_really_used(searches: list[Search], tree: Path) -> None:
    """A pattern that would take for ever here is answered."""
    (tree / "a.txt").write_text("a" * 60 + "b")
    output = await searches[1]("^(a+)+$", path="a.txt")
    assert output.text == "[nothing found]"


@needs_rg
async def test_the_bound_of_results_is_the_same(searches: list[Search], tree: Path) -> None:
    for n in range(5):
        (tree / f"m{n}.txt").write_text("many\n" * 90)
    here, with_rg = [await each("many") for each in searches]
    assert here == with_rg and len(here.text.splitlines()) == search.MAX_RESULTS + 3
    assert "200 results were found" in here.text


@needs_rg
async def test_many_files_are_looked_at_in_several_batches(searches: list[Search], place: Place) -> None:
    for n in range(2 * search.BATCH_FILES + 10):
        (place.workspace / f"{n:05}.txt").write_text(f"file {n}\n")
    here, with_rg = [await each("file .*09$") for each in searches]
    assert here == with_rg and len(here.text.splitlines()) == 20


@needs_rg
async def test_a_search_with_ripgrep_is_much_faster(searches: list[Search], place: Place) -> None:
    """Not a benchmark: only that the faster way is the faster one where there is much to read."""
    for n in range(12):
        (place.workspace / f"{n}.log").write_text("".join(f"{i} nothing to see in this line\n" for i in range(90_000)))
    took: list[float] = []
    for each in searches:
        tries = []
        for _ in range(3):  # the best of them: other work on the machine can only add to it
            began = time.monotonic()
            assert (await each("absent")).text == "[nothing found]"
            tries.append(time.monotonic() - began)
        took.append(min(tries))
    assert took[1] < took[0]


def instead_of_rg(place: Place, script: str) -> tuple[Threads, Caller]:
    """A search with another program in ripgrep's place, which does what a script says."""
    program = place.workspace / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    threads = Threads(1)
    return threads, Caller(Toolbox(file_tools(threads, str(program))), place)


@needs_rg
async def test_whatever_path_ripgrep_follows_it_reads_nothing_outside(place: Place) -> None:
    """A path that becomes a link to the outside after the walk has seen it is as good as this."""
    (place.workspace.parent / "secret").write_text("the secret")
    (place.workspace / "a.txt").write_text("x")
    script = f'printf "a.txt\\0001:found\\n"; printf "a.txt\\0002:%s\\n" "$(cat {place.workspace.parent}/secret)"'
    threads, caller = instead_of_rg(place, script)
    output = await caller("search_files", pattern="secret")
    threads.close()
    assert output.text == "a.txt:1: found\na.txt:2: "


@needs_rg
def test_a_process_that_is_closed_in_cannot_read_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("x")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert search.closed_in(str(tmp_path / "in"))
            os.listdir(tmp_path / "in")
            open(tmp_path / "secret").close()
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_without_landlock_ripgrep_is_not_used(
    place: Place, tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing but the kernel keeps ripgrep inside, so without it the search is done here."""
    for folder in ("builtin", "sandbox"):
        (tmp_path / folder).mkdir()
    shutil.copy(search.__file__, tmp_path / "builtin" / "search.py")
    (tmp_path / "sandbox" / "landlock.py").write_text("def restrict(plan): raise OSError('none')\nPlan = dict\n")
    monkeypatch.setattr(search, "__file__", str(tmp_path / "builtin" / "search.py"))
    threads = Threads(1)
    output = await Caller(Toolbox(file_tools(threads, "/no/such/rg")), place)("search_files", pattern="two TWO")
    threads.close()
    assert output.text.startswith("b.txt:2: two TWO")


@needs_rg
async def test_a_cancelled_search_ends_ripgrep_too(place: Place) -> None:
    threads, caller = instead_of_rg(place, "echo $$ >&2; exec sleep 77")
    task = asyncio.create_task(caller("search_files", pattern="x"))
    await eventually(lambda: sleeping(place))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()
    assert children() == set()
    await eventually(lambda: not sleeping(place))


def sleeping(place: Place) -> list[str]:
    """The pids of what runs in ripgrep's place."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            here = os.readlink(f"/proc/{pid}/cwd") == str(place.workspace)
            found += [pid] if here and Path(f"/proc/{pid}/comm").read_text() == "sleep\n" else []
        except OSError:
            continue
    return found
