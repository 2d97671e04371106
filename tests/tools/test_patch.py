"""Rules of the patch tool."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

import pytest

from ninelives.tools.base import Place, Threads
from ninelives.tools.builtin import patch
from ninelives.tools.builtin.files import file_tools
from ninelives.tools.builtin.patch import patch_tool
from ninelives.tools.registry import Toolbox
from tests.tools.conftest import Caller

CODE = "def one():\n    return 1\n\n\ndef two():\n    return 2\n"


@pytest.fixture
def toolbox() -> Iterator[Toolbox]:
    threads = Threads()
    yield Toolbox([patch_tool(threads)])
    threads.close()


@pytest.fixture(autouse=True)
def code(place: Place) -> None:
    (place.workspace / "a.py").write_text(CODE)


def now(place: Place, name: str = "a.py") -> str:
    return (place.workspace / name).read_bytes().decode()


async def test_one_piece_is_replaced_and_the_line_is_told(call: Caller, place: Place) -> None:
    output = await call("patch", path="a.py", search="return 2", replace="return 22")
    assert output.text == "1 replacement made in a.py, at line 6." and not output.is_error
    assert now(place) == CODE.replace("return 2", "return 22")


async def test_a_repeated_patch_is_a_write_so_it_is_declared_as_one(toolbox: Toolbox) -> None:
    tool = toolbox.get("patch")
    assert tool is not None and tool.effect == "write"


async def test_several_edits_are_made_in_order(call: Caller, place: Place) -> None:
    edits = [
        {"search": "one", "replace": "first"},
        {"search": "def first", "replace": "def uno"},
        {"search": "return", "replace": "yield", "all": True},
    ]
    output = await call("patch", path="a.py", edits=edits)
    assert output.text == "4 replacements made in a.py, at line 1; at line 1; at lines 2, 6."
    assert now(place) == "def uno():\n    yield 1\n\n\ndef two():\n    yield 2\n"


async def test_all_edits_are_made_or_none(call: Caller, place: Place) -> None:
    edits = [{"search": "one", "replace": "first"}, {"search": "nowhere", "replace": ""}]
    output = await call("patch", path="a.py", edits=edits)
    assert output.is_error and output.text.startswith("Edit 2 of 2: search was not found")
    assert output.text.endswith("Nothing was changed in a.py.")
    assert now(place) == CODE and os.listdir(place.workspace) == ["a.py"]


async def test_a_piece_that_fits_several_places_is_refused_with_their_lines(call: Caller, place: Place) -> None:
    output = await call("patch", path="a.py", search="return", replace="yield")
    assert output.is_error
    assert "search fits 2 places, at lines 2, 6. Add lines around it" in output.text
    (place.workspace / "many.txt").write_text("x\n" * 1000)
    output = await call("patch", path="many.txt", search="x", replace="y")
    assert "fits 1000 places, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 990 more" in output.text
    assert now(place) == CODE


async def test_where_only_whitespace_differs_the_real_lines_are_shown(call: Caller) -> None:
    output = await call("patch", path="a.py", search="def two():\n\treturn 2", replace="")
    assert output.is_error and "differ from it in whitespace only:\n5\tdef two():\n6\t    return 2\n" in output.text


async def test_where_nothing_fits_the_nearest_lines_are_shown(call: Caller) -> None:
    output = await call("patch", path="a.py", search="def too():\n    return 2\n", replace="x")
    assert "the nearest lines are:" in output.text and "5\tdef two():\n6\t    return 2" in output.text
    output = await call("patch", path="a.py", search="@@@@@@@@", replace="x")
    assert "nor anything like it, in 6 lines" in output.text


async def test_a_patch_that_was_made_before_is_recognised(call: Caller, place: Place) -> None:
    await call("patch", path="a.py", search="return 2", replace="yield 3")
    after = now(place)
    output = await call("patch", path="a.py", search="return 2", replace="yield 3")
    assert output.is_error and "replace is there already (at line 6): it may have been made before" in output.text
    assert now(place) == after


async def test_line_ends_of_the_file_are_kept(call: Caller, place: Place) -> None:
    (place.workspace / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await call("patch", path="dos.txt", search="one\ntwo", replace="1\n2\n2.5")
    assert now(place, "dos.txt") == "1\r\n2\r\n2.5\r\nthree\r\n"
    (place.workspace / "mixed.txt").write_bytes(b"one\r\ntwo\nthree")
    await call("patch", path="mixed.txt", search="two\nthree", replace="2\n3")
    assert now(place, "mixed.txt") == "one\r\n2\n3"


async def test_mode_stays_and_nothing_else_is_left(call: Caller, place: Place) -> None:
    (place.workspace / "a.py").chmod(0o750)
    await call("patch", path="a.py", search="return 2", replace="")
    assert stat.S_IMODE((place.workspace / "a.py").stat().st_mode) == 0o750
    assert os.listdir(place.workspace) == ["a.py"]


async def test_a_change_by_somebody_else_in_between_is_not_lost(
    call: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = patch._edited

    def meanwhile(text: str, edit: patch._Edit) -> tuple[str, patch._Places]:
        (place.workspace / "a.py").write_text("theirs")
        return real(text, edit)

    monkeypatch.setattr(patch, "_edited", meanwhile)
    output = await call("patch", path="a.py", search="return 2", replace="")
    assert output.is_error and "changed by somebody else" in output.text
    assert now(place) == "theirs" and os.listdir(place.workspace) == ["a.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "either search and replace, or edits"),
        ({"search": "one"}, "either search and replace, or edits"),
        ({"search": "one", "replace": "x", "edits": [{"search": "two", "replace": ""}]}, "either search and replace"),
        ({"edits": [{"search": "", "replace": "x"}]}, "search is empty"),
        ({"search": "one", "replace": "one"}, "the same"),
        ({"edits": [{"search": "one"}]}, "missing required field `replace`"),
        ({"edits": [{"search": "one", "replace": "", "any": 1}]}, "unknown field `any`"),
        ({"edits": [{"search": str(n), "replace": ""} for n in range(51)]}, "length <= 50"),
    ],
)
async def test_wrong_arguments_change_nothing(
    call: Caller, place: Place, arguments: dict[str, object], says: str
) -> None:
    output = await call("patch", path="a.py", **arguments)
    assert output.is_error and says in output.text
    assert now(place) == CODE


async def test_what_is_no_text_file_of_the_workspace_is_refused(call: Caller, place: Place) -> None:
    (place.workspace / "latin.txt").write_bytes(b"caf\xe9")
    (place.workspace / "big.txt").write_bytes(b"x" * (patch.MAX_BYTES + 1))
    (place.workspace / "out").symlink_to("/etc")
    for path, says in (
        ("latin.txt", "not UTF-8"),
        ("big.txt", "more than"),
        ("out/passwd", "outside the workspace"),
        ("none.txt", "No such file"),
        (".", "workspace itself"),
    ):
        output = await call("patch", path=path, search="x", replace="y")
        assert output.is_error and says in output.text


async def test_neither_a_growing_file_nor_a_long_search_costs_much(call: Caller, place: Place) -> None:
    (place.workspace / "x.txt").write_text("x" * 1_000_000)
    output = await call("patch", path="x.txt", edits=[{"search": "x", "replace": "y" * 1000, "all": True}])
    assert output.is_error and "would have more than" in output.text
    (place.workspace / "lines.txt").write_text("".join(f"line number {n} of many\n" for n in range(100_000)))
    began = time.process_time()
    output = await call("patch", path="lines.txt", search="line nummer x of many\n" * 50, replace="")
    assert output.is_error and "nearest lines" in output.text and time.process_time() - began < 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
async def test_files_and_folders_belong_to_whom_the_workspace_belongs(place: Place) -> None:
    """Commands may run as somebody else than the server: he must be able to change them."""
    os.chown(place.workspace, 60_642, 60_642)
    (place.workspace / "theirs.txt").write_text("x")
    os.chown(place.workspace / "theirs.txt", 1234, 1234)
    threads = Threads(1)
    caller = Caller(Toolbox([patch_tool(threads), *file_tools(threads)]), place)
    await caller("write_file", path="new/deep/a.txt", content="x")
    await caller("patch", path="theirs.txt", search="x", replace="y")
    threads.close()
    wanted = {"new": 60_642, "new/deep": 60_642, "new/deep/a.txt": 60_642, "theirs.txt": 1234}
    assert {name: (place.workspace / name).stat().st_uid for name in wanted} == wanted
