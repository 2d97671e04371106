"""Rules of read_file, write_file and search_files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import time

import msgspec
import pytest

from ninelives.tools.base import Place, ToolRefused
from ninelives.tools.builtin import files, search
from ninelives.tools.registry import Toolbox
from tests.tools.conftest import Caller, children, open_files

# ripgrep would be done with it at once if it took a reference to a group.
NEVER_ENDS = r"^(a+)+\1$"


async def test_what_is_written_can_be_read_with_line_numbers(call: Caller, place: Place) -> None:
    written = await call("write_file", path="a/b/c.txt", content="one\ntwo\nthrée\n")
    assert written.text == "15 bytes written to a/b/c.txt" and not written.is_error
    assert (place.workspace / "a/b/c.txt").read_text() == "one\ntwo\nthrée\n"
    assert (await call("read_file", path="a/b/c.txt")).text == "1\tone\n2\ttwo\n3\tthrée\n"


async def test_writing_replaces_in_one_step_and_leaves_nothing_else(call: Caller, place: Place) -> None:
    script = place.workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o755)
    before = script.open()
    await call("write_file", path="run.sh", content="new")
    await call("write_file", path="run.sh", content="new")
    assert before.read() == "old"
    before.close()
    assert script.read_text() == "new" and stat.S_IMODE(script.stat().st_mode) == 0o755
    assert os.listdir(place.workspace) == ["run.sh"]


class _Crash(BaseException):
    """The process ends here."""


def _crash(*_names: object, **_folders: object) -> None:
    raise _Crash


async def test_a_draft_that_a_crash_left_is_replaced_by_the_same_call(
    call: Caller, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call("write_file", path="x.txt", content="first")
    with monkeypatch.context() as patched, pytest.raises(_Crash):
        patched.setattr(os, "rename", _crash)
        await call("write_file", path="x.txt", content="second")
    assert len(os.listdir(place.workspace)) == 2 and (place.workspace / "x.txt").read_text() == "first"
    await call("write_file", path="x.txt", content="second")
    assert os.listdir(place.workspace) == ["x.txt"] and (place.workspace / "x.txt").read_text() == "second"


@pytest.mark.parametrize("path", ["../x", "/etc/x", "link/x", "link"])
async def test_no_file_tool_leaves_the_workspace(call: Caller, place: Place, path: str) -> None:
    outside = place.workspace.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("secret")
    (place.workspace.parent / "x").write_text("secret")
    (place.workspace / "link").symlink_to(outside)
    for output in (
        await call("read_file", path=path),
        await call("write_file", path=path, content="mine"),
        await call("search_files", pattern="secret", path=path),
    ):
        assert output.is_error and "outside the workspace" in output.text
    assert (outside / "x").read_text() == "secret" and os.listdir(outside) == ["x"]


async def test_a_search_of_all_does_not_follow_links_outside(call: Caller, place: Place) -> None:
    outside = place.workspace.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("secret")
    (place.workspace / "folder").symlink_to(outside)
    (place.workspace / "file").symlink_to(outside / "x")
    assert (await call("search_files", pattern="secret")).text == "[nothing found]"


async def test_long_files_are_shown_in_parts(call: Caller, place: Place) -> None:
    (place.workspace / "long.txt").write_text("".join(f"line {n}\n" for n in range(1, 5001)))
    first = (await call("read_file", path="long.txt")).text
    assert first.endswith("2000\tline 2000\n[more follows: read on with offset 2001]")
    part = (await call("read_file", path="long.txt", offset=4999, limit=10)).text
    assert part == "4999\tline 4999\n5000\tline 5000\n"
    assert (await call("read_file", path="long.txt", offset=6000)).text == "[the file has 5000 lines]"


async def test_a_read_is_bounded_in_bytes_and_says_where_to_go_on(call: Caller, place: Place) -> None:
    (place.workspace / "wide.txt").write_text(("w" * 1000 + "\n") * 1000)
    small = msgspec.structs.replace(place, output_bytes=10_000)
    text = (await call("read_file", small, path="wide.txt")).text
    assert len(text) <= 10_000 and text.endswith("[more follows: read on with offset 10]")
    assert len((await call("read_file", path="wide.txt")).text) <= files.READ_BYTES


async def test_one_endless_line_is_cut(call: Caller, place: Place) -> None:
    (place.workspace / "min.js").write_text("x" * 1_000_000 + "\nlast")
    lines = (await call("read_file", path="min.js")).text.splitlines()
    assert len(lines[0]) < 5_000 and lines[0].endswith("[line cut]") and lines[1] == "2\tlast"


async def test_a_binary_file_is_said_to_be_one(call: Caller, place: Place) -> None:
    (place.workspace / "a.png").write_bytes(b"\x89PNG\0" * 10)
    output = await call("read_file", path="a.png")
    assert output.is_error and output.text == "a.png is a binary file of 50 bytes and is not shown."
    assert (await call("search_files", pattern="PNG")).text == "[nothing found]"


async def test_what_cannot_be_read_is_told_and_never_hangs(call: Caller, place: Place) -> None:
    os.mkfifo(place.workspace / "pipe")
    (place.workspace / "folder").mkdir()
    (place.workspace / "empty").touch()
    assert "not a plain file" in (await call("read_file", path="pipe")).text
    assert "is a folder" in (await call("read_file", path="folder")).text
    assert "workspace itself" in (await call("read_file", path=".")).text
    assert (await call("read_file", path="none")).text == "none: No such file or directory"
    assert (await call("read_file", path="empty/x")).text == "empty/x: Not a directory"
    assert (await call("read_file", path="empty")).text == "[the file is empty]"
    assert "names a folder" in (await call("write_file", path="new/", content="")).text
    assert "Is a directory" in (await call("write_file", path="folder", content="")).text
    assert (await call("search_files", pattern=".", path="pipe")).text == "[nothing found]"
    assert sorted(os.listdir(place.workspace)) == ["empty", "folder", "pipe"]


async def test_content_is_found_by_regex_with_file_and_line(call: Caller, place: Place) -> None:
    (place.workspace / "src").mkdir()
    (place.workspace / "src" / "b.py").write_text("import os\n\ndef walk():\n    return 1\n")
    (place.workspace / "a.txt").write_text("def no\r\ndef walk(x)\r\n")
    (place.workspace / ".git").mkdir()
    (place.workspace / ".git" / "c").write_text("def walk()")
    text = (await call("search_files", pattern=r"def \w+\(")).text
    assert text == (
        "a.txt:2: def walk(x)\nsrc/b.py:3: def walk():\n[1 folders were left out, such as .git and node_modules]"
    )
    assert (await call("search_files", pattern="return", path="src")).text == "src/b.py:4: return 1"
    assert (await call("search_files", pattern="return", path="src/b.py")).text == "src/b.py:4: return 1"
    assert (await call("search_files", pattern="x", path="none")).is_error


async def test_names_are_found_by_glob_or_by_part(call: Caller, place: Place) -> None:
    (place.workspace / "src").mkdir()
    for name in ("top.py", "src/Deep.py", "src/notes.md"):
        (place.workspace / name).touch()

    async def names(pattern: str) -> list[str]:
        return (await call("search_files", pattern=pattern, kind="names")).text.splitlines()

    assert await names("*.py") == ["top.py", "src/Deep.py"]
    assert await names("**/*.py") == ["top.py", "src/Deep.py"]
    assert await names("src/*.md") == ["src/notes.md"]
    assert await names("deep") == ["src/Deep.py"]
    assert await names("nothing") == ["[nothing found]"]


async def test_a_search_is_bounded_in_results_and_file_size(call: Caller, place: Place) -> None:
    (place.workspace / "many.txt").write_text(("hit " + "x" * 1000 + "\n") * 1000)
    text = (await call("search_files", pattern="hit")).text
    assert len(text.splitlines()) == search.MAX_RESULTS + 1
    assert text.endswith("[stopped: 200 results were found; there may be more]")
    assert max(map(len, text.splitlines())) < 400
    (place.workspace / "many.txt").write_bytes(b"hit\n" * (search.MAX_FILE_BYTES // 4 + 1))
    text = (await call("search_files", pattern="hit")).text
    assert text == "[nothing found]\n[1 files of more than 4194304 bytes were not searched]"


async def test_a_pattern_that_never_ends_stops_neither_the_server_nor_the_call(call: Caller, place: Place) -> None:
    (place.workspace / "a.txt").write_text("a" * 60 + "b")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    output = await call("search_files", msgspec.structs.replace(place, timeout_s=1.0), pattern=NEVER_ENDS)
    ticking.cancel()
    assert output.is_error and "took longer than 0.8 s" in output.text
    assert ticks > 3, "the pattern is matched outside of the event loop"
    assert children() == set()


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a" * 3000, "", "x\0"])
async def test_a_pattern_that_is_none_is_told(call: Caller, pattern: str) -> None:
    output = await call("search_files", pattern=pattern)
    assert output.is_error and "pattern" in output.text


async def test_a_cancelled_search_leaves_no_process_and_no_open_file(
    toolbox: Toolbox, call: Caller, place: Place
) -> None:
    (place.workspace / "a.txt").write_text("a" * 60 + "b")
    await call("search_files", pattern="x")
    before = open_files()
    arguments = json.dumps({"pattern": NEVER_ENDS})
    task = asyncio.create_task((await toolbox.prepare("search_files", arguments, place)).run())
    deadline = time.monotonic() + 10
    while not children():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == set() and open_files() == before


async def test_names_that_are_not_text_do_not_break_a_search(call: Caller, place: Place) -> None:
    (place.workspace / os.fsdecode(b"caf\xe9.txt")).write_text("hit")
    assert "hit" in (await call("search_files", pattern="hit")).text


# What is not a plain file

SOCKET = "import socket; socket.socket(socket.AF_UNIX).bind('it')"


STRANGE = ["mkfifo it", f'python3 -c "{SOCKET}"', "mkdir it", "ln -s it it", "mkfifo p; ln -s p it"]
READERS = {"read_file": {}, "patch": {"search": "a", "replace": "b"}, "search_files": {"pattern": "a"}}


@pytest.mark.parametrize("made", STRANGE)
async def test_no_file_tool_waits_for_what_is_not_a_plain_file(call: Caller, place: Place, made: str) -> None:
    assert not (await call("terminal", command=made)).is_error
    for name, more in READERS.items():
        before = sorted(entry.name for entry in place.workspace.iterdir())
        async with asyncio.timeout(60):
            try:
                output = await call(name, path="it", **more)
            except ToolRefused:
                continue
        assert output.is_error or name == "search_files"
        assert sorted(entry.name for entry in place.workspace.iterdir()) == before


@pytest.mark.parametrize("made", ["mkfifo it", f'python3 -c "{SOCKET}"'])
async def test_write_file_takes_the_name_of_a_pipe_or_socket(call: Caller, place: Place, made: str) -> None:
    assert not (await call("terminal", command=made)).is_error
    async with asyncio.timeout(60):
        assert not (await call("write_file", path="it", content="text")).is_error
    assert (place.workspace / "it").read_text() == "text"


async def test_write_file_works_where_a_folder_has_the_name_of_its_draft(call: Caller, place: Place) -> None:
    await call("write_file", path="first", content="1")
    digest = hashlib.sha256(place.call_id.encode()).hexdigest()[:16]
    (place.workspace / f".ninelives-{digest}.tmp").mkdir()
    assert not (await call("write_file", path="second", content="2")).is_error
    assert (place.workspace / "second").read_text() == "2"
    assert len(list(place.workspace.iterdir())) == 3, "no draft is left"
