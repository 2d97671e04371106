"""What a terminal remembers over the calls of a session, and what it does not believe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from ninelives.tools.base import Output, Place
from ninelives.tools.builtin.terminal import (
    ENVIRON_BYTES,
    MOST_SESSIONS,
    Shell,
    forget_session,
    load_session,
    save_session,
    state_after,
)
from ninelives.tools.sandbox.base import Sandbox
from tests.tools.sandboxes import place_in, sandbox_of, shop_of


@pytest.fixture(params=["off", "bwrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return sandbox_of(request.param)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


class Sh:
    """A terminal that is used again and again."""

    def __init__(self, sandbox: Sandbox, place: Place) -> None:
        self._sandbox = sandbox
        self._place = place

    async def __call__(self, command: str, place: Place | None = None, **more: object) -> Output:
        async with shop_of(self._sandbox) as shop:  # anew each time: nothing is kept in memory
            arguments = json.dumps({"command": command, **more})
            return await (await shop.toolbox.prepare("terminal", arguments, place or self._place)).run()


@pytest.fixture
def sh(sandbox: Sandbox, place: Place) -> Sh:
    return Sh(sandbox, place)


async def test_folder_and_exported_environment_are_kept(sh: Sh, place: Place) -> None:
    assert not (await sh("mkdir -p a/b; cd a; export ONE=1 TWO='x\ny é'; three=3; unset LANG; cd b; exit 4")).text[20:]
    output = await sh('pwd; echo "$ONE|$TWO|$three|$LANG|$NINELIVES_CALL_ID"')
    assert output.text == f"{place.workspace}/a/b\n1|x\ny é|||{place.call_id}\n"
    await sh("unset ONE; export TWO=2 LANG=de; cd")
    assert (await sh('pwd; echo "$ONE|$TWO|$LANG"')).text == f"{place.workspace}\n|2|de\n"


async def test_it_is_kept_for_that_session_only(sh: Sh, place: Place) -> None:
    await sh("mkdir a; cd a; export ONE=1")
    other = msgspec.structs.replace(place, session="another")
    assert (await sh("pwd; echo $ONE", other)).text == f"{place.workspace}\n\n"
    nameless = msgspec.structs.replace(place, session="")
    await sh("cd a", nameless)
    assert (await sh("pwd", nameless)).text == f"{place.workspace}\n"
    stateless = msgspec.structs.replace(place, state=Path("/nonexistent"))
    await sh("cd a", stateless)
    assert (await sh("pwd", stateless)).text == f"{place.workspace}\n"
    assert "nonexistent" not in os.listdir("/")
    assert (await sh("pwd; echo $ONE")).text == f"{place.workspace}/a\n1\n"


@pytest.mark.parametrize("end", ["sleep 300", "kill -9 $$", "exec true", "trap - EXIT", "if"])
async def test_a_command_that_does_not_come_to_its_end_leaves_what_was_there(sh: Sh, place: Place, end: str) -> None:
    await sh("mkdir a b; cd a; export ONE=1")
    await sh(f"cd ../b; export ONE=2; {end}", timeout_s=0.3)
    assert (await sh("pwd; echo $ONE")).text == f"{place.workspace}/a\n1\n"


@pytest.mark.parametrize(
    "command",
    [
        "echo one; cd /nowhere",
        "(cd a); pwd",
        "set -eu; false; echo not",
        "set -e; set -C; echo $(pwd)",
        'echo "$0" "$#"',
        "\n\n  nosuchprogram\n",
        "echo 'a",
        "; echo a",
        "# only a word",
        "cat <<E\n$HOME\nE",
        "f() { return 7; }; f",
        "exit 9 # so",
    ],
)
async def test_the_trap_changes_nothing_for_the_command(sh: Sh, place: Place, command: str) -> None:
    (place.workspace / "a").mkdir()
    told = await sh(command)
    plain = await sh(f"exec /bin/sh -c -- '{command.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'")
    assert (told.text, told.is_error) == (plain.text, plain.is_error)


async def test_what_a_command_prints_is_never_taken_for_its_state(sh: Sh, place: Place) -> None:
    (place.workspace / "a").mkdir()
    await sh(f"printf '%s\\0ONE=1\\0' {place.workspace}/a; printf '%s\\0' /etc >&2; trap; set")
    assert (await sh("pwd; echo $ONE")).text == f"{place.workspace}\n\n"


async def test_a_forged_state_can_say_no_more_than_cd_and_export(sh: Sh, place: Place) -> None:
    (place.workspace / "a").mkdir()
    forge = "trap >t; path=$(sed -n 's/.*>|\\([^ ]*\\) 2.*/\\1/p' t); [ -w \"$path\" ] || exit 1; "
    for folder in ("/etc", f"{place.workspace}/../two", "a", "", "/", f"{place.workspace}/a/../.."):
        lines = f"'{folder}\\0NINELIVES_CALL_ID=forged\\0bad.name=1\\0=2\\0GOOD=%s\\0'"
        output = await sh(f'{forge} printf {lines} 1 >|"$path"; exec true')
        assert "outside of the workspace" in output.text and not output.is_error, folder
        state = load_session(place)
        assert state.folder == "." and set(state.environ) == {"GOOD"}
    assert (await sh("pwd; echo $NINELIVES_CALL_ID")).text == f"{place.workspace}\n{place.call_id}\n"


async def test_a_folder_outside_is_not_kept_and_that_is_told(sh: Sh, place: Place) -> None:
    await sh("mkdir a; cd a")
    for command in ("cd /tmp", "ln -s /etc out; cd out"):
        output = await sh(command)
        assert output == Output("[outside of the workspace: the next command starts in a]")
    assert (await sh("pwd")).text == f"{place.workspace}/a\n"


async def test_a_folder_that_is_gone_or_leads_out_is_the_workspace(sh: Sh, place: Place) -> None:
    await sh("mkdir a; cd a; export ONE=1")
    (place.workspace / "a").rmdir()
    assert (await sh("pwd; echo $ONE")).text == f"{place.workspace}\n1\n"
    await sh("mkdir a; cd a")
    (place.workspace / "a").rmdir()
    (place.workspace / "a").symlink_to("/etc")
    assert (await sh("pwd")).text == f"{place.workspace}\n"
    (place.workspace / "~").mkdir()
    await sh("cd ./~")
    assert (await sh("pwd")).text == f"{place.workspace}/~\n"


async def test_an_environment_that_is_too_large_is_told_and_stays_as_it_was(sh: Sh, place: Place) -> None:
    await sh("export ONE=1; mkdir a")
    big = "x=$(head -c 70000 /dev/zero | tr '\\0' x); export ONE=2 BIG=$x; cd a"
    assert (await sh(big)).text == "[the environment is too large to be kept: it stays as it was]"
    many = "i=0; while [ $i -lt 600 ]; do export V$i=1; i=$((i+1)); done"
    assert (await sh(many)).text == "[the environment is too large to be kept: it stays as it was]"
    assert (await sh("pwd; echo $ONE$BIG$V1")).text == f"{place.workspace}/a\n1\n"


async def test_what_is_kept_never_reaches_the_launcher(sh: Sh, sandbox: Sandbox, place: Place) -> None:
    evil = place.workspace / "evil"
    evil.mkdir()
    for name in ("sh", "env", "nice", "setpriv", "bwrap", "cat", "true"):
        (evil / name).write_text(f"#!/bin/sh\necho ran {name} >>{place.workspace}/ran\n")
        (evil / name).chmod(0o755)
    hijack = "export PATH=$PWD/evil LD_PRELOAD=$PWD/evil.so ENV=$PWD/evil/sh BASH_ENV=$PWD/evil/sh IFS=go CDPATH=/usr"
    await sh(hijack)
    assert set(load_session(place).environ) >= {"PATH", "LD_PRELOAD", "ENV"}
    async with shop_of(sandbox) as shop:
        execution = await shop.toolbox.prepare("terminal", '{"command": "true"}', place)
        await execution.abandon()
        assert not (place.workspace / "ran").exists()
        await (await shop.toolbox.prepare("terminal", '{"command": "true; /bin/true"}', place)).run()
        assert not (place.workspace / "ran").exists()  # true is the shell's own
        await (await shop.toolbox.prepare("terminal", '{"command": "cat"}', place)).run()
        assert (place.workspace / "ran").read_text() == "ran cat\n"


async def test_without_a_sandbox_no_file_is_left_by_a_killed_server(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = tmp_path / "lent"
    lent.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(lent))
    async with shop_of(sandbox_of("off")) as shop:
        execution = await shop.toolbox.prepare("terminal", '{"command": "mkdir a; cd a"}', place)
        assert os.listdir(lent) == []
        await execution.run()
    assert load_session(place).folder == "a"


def test_a_damaged_memory_is_a_fresh_shell_and_is_written_anew(place: Place) -> None:
    save_session(place, Shell("a", {"ONE": "1"}))
    (path,) = (place.state / "sessions").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and load_session(place) == Shell("a", {"ONE": "1"})
    for damage in (b"", b"{", b"[]", b'{"folder": 1}', b'{"environ": {"a": 1}}', b"\xff"):
        path.write_bytes(damage)
        assert load_session(place) == Shell()
    save_session(place, Shell("b"))
    assert load_session(place) == Shell("b") and len(list(path.parent.iterdir())) == 1


def test_sessions_without_number_are_forgotten_from_the_oldest(place: Place) -> None:
    save_session(place, Shell("first"))
    (first,) = (place.state / "sessions").iterdir()
    os.utime(first, (1, 1))
    for number in range(MOST_SESSIONS - 1):
        (first.parent / f"{number}.json").touch()
    save_session(place, Shell("again"))
    assert load_session(place).folder == "again"
    os.utime(first, (1, 1))
    other = msgspec.structs.replace(place, session="other")
    save_session(other, Shell("other"))
    assert len(list(first.parent.iterdir())) == MOST_SESSIONS
    assert not first.exists() and load_session(other).folder == "other"


@pytest.mark.parametrize(
    "told",
    [b"", b"/etc", b"\0", b"\xff\0A=1\0", b"\0" * 1000, b"/\0", b"x" * 5000 + b"\0A=1\0", b"/a\0A=1"],
)
def test_any_bytes_are_heard_without_harm(place: Place, told: bytes) -> None:
    before = Shell("a", {"ONE": "1"})
    shell, note = state_after(told, before, {"PATH": "/bin"}, place.workspace)
    assert shell.folder == "a" and len(note) < 200


def test_names_and_values_are_checked(place: Place) -> None:
    top = str(place.workspace).encode()
    told = (
        top
        + b"\0A=1\0B.C=2\0=3\0D\0E=\xff\0F=a=b\n\0_=x\0PWD=/\0SHLVL=3\0NINELIVES_X=1\0PATH=/bin\0"
        + b"G" * 129
        + b"=1\0"
    )
    shell, note = state_after(told, Shell(), {"PATH": "/bin", "HOME": "/h"}, place.workspace)
    assert (shell.folder, shell.environ, shell.unset, note) == (".", {"A": "1", "F": "a=b\n"}, ["HOME"], "")
    assert shell.environ_over({"PATH": "/bin", "HOME": "/h"}) == {"PATH": "/bin", "A": "1", "F": "a=b\n"}
    shell, note = state_after(
        top + b"\0A=" + b"x" * ENVIRON_BYTES + b"\0", Shell(environ={"B": "1"}), {}, place.workspace
    )
    assert shell.environ == {"B": "1"} and "too large" in note


# Runs that are not stored (B6, D2)


@pytest.fixture
def apart(place: Place) -> Place:
    return msgspec.structs.replace(place, apart="r1")


def kept_files(place: Place) -> set[str]:
    return {path.name for path in (place.state / "sessions").glob("*")}


async def test_d2_a_run_that_is_not_stored_begins_in_the_session_and_changes_nothing_there(
    sh: Sh, place: Place, apart: Place
) -> None:
    await sh("mkdir -p a/b; cd a; export ONE=1")
    session = kept_files(place)
    assert (await sh('pwd; echo "$ONE"; cd b; export ONE=2', apart)).text == f"{place.workspace}/a\n1\n"
    assert (await sh('pwd; echo "$ONE"', apart)).text == f"{place.workspace}/a/b\n2\n", "it goes on after a crash"
    other = msgspec.structs.replace(place, apart="r2")
    for before in (place, other):
        assert (await sh('pwd; echo "$ONE"', before)).text == f"{place.workspace}/a\n1\n"
    forget_session(apart)
    forget_session(apart)
    assert kept_files(place) == session


async def test_b6_a_draft_that_a_crash_left_goes_with_the_run(sh: Sh, place: Place, apart: Place) -> None:
    await sh("export ONE=1", apart)
    (file,) = (place.state / "sessions").glob("*.json")
    file.with_suffix(".tmp").write_text("half of it")
    forget_session(apart)
    assert kept_files(place) == set()


async def test_b6_the_shell_of_a_run_in_memory_is_in_memory(sh: Sh, place: Place) -> None:
    await sh("export ONE=1")
    session, scratch = kept_files(place), msgspec.structs.replace(place, apart="", scratch={})
    assert (await sh('mkdir c; cd c; echo "$ONE"; export ONE=2', scratch)).text == "1\n"
    assert (await sh('pwd; echo "$ONE"', scratch)).text == f"{place.workspace}/c\n2\n"
    assert kept_files(place) == session and (await sh('echo "$ONE"')).text == "1\n"
