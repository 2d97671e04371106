"""`ninelives serve my_agent:agent --reload`: the code of the agent is changed, broken and mended while it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninelives.supervisor import reload
from ninelives.supervisor.reload import CodeWatch
from tests.story.responses import PATH, text_of
from tests.story.server import ROOT, Server, start_supervised, wait_until

pytestmark = pytest.mark.xdist_group("processes")

CODE = """
import asyncio, pathlib
from my_words import WORD

HERE = pathlib.Path(__file__).parent

def pay() -> str:
    with (HERE / "paid").open("a") as file:
        file.write("x\\n")
    return "paid"

async def wait_for(name: str) -> str:
    while not (HERE / name).exists():
        await asyncio.sleep(0.02)
    return "seen"

async def agent(question, ctx):
    if question == "wait":
        await ctx.step("pay", pay)
        await ctx.step("wait_for", wait_for, "go", effect="read")
    return WORD
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "my_agent.py").write_text(CODE)
    (tmp_path / "my_words.py").write_text('WORD = "one"\n')
    flags = [f"{tmp_path / 'my_agent.py'}:agent", "--reload"]
    made = start_supervised(tmp_path, "", flags=flags, NINELIVES_LIMITS_DRAIN_S="0.3")
    yield made
    made.stop()


def said(server: Server, question: str = "hello") -> str:
    return text_of(server.client.post(PATH, {"input": question}).json())


def swaps(server: Server) -> tuple[int, int]:
    """Swaps of the supervisor, and those that failed."""
    found = json.loads((server.data / "supervisor").read_text())
    return found["swaps"], found["failed"]


def write(server: Server, name: str, text: str) -> None:
    """As an editor does: a new file takes the place of the old one."""
    draft = server.data.parent / f"{name}.draft"
    draft.write_text(text)
    draft.replace(server.data.parent / name)


def test_a_change_of_the_code_is_served_and_runs_go_on(server: Server) -> None:
    assert said(server) == "one"
    line = f"when a file changes in {server.data.parent}"
    wait_until(lambda: line in server.process.out.read_text(), "the start says what is watched")
    run = server.client.post(PATH, {"input": "wait", "background": True}).json()["id"]
    wait_until(lambda: (server.data.parent / "paid").exists(), "the run has paid")
    write(server, "my_words.py", 'WORD = "two"\n')
    wait_until(lambda: swaps(server) == (1, 0), "the server was swapped", 60)
    (server.data.parent / "go").write_text("")
    wait_until(lambda: server.client.get(f"{PATH}/{run}").json()["status"] == "completed", "the run ended", 60)
    assert text_of(server.client.get(f"{PATH}/{run}").json()) == "two"
    assert (server.data.parent / "paid").read_text() == "x\n", "a finished step was not made again"
    attempts = server.client.get(f"/v1/runs/{run}/receipt").json()["attempts"]
    assert [attempt["clean"] for attempt in attempts] == [True, True], "a restart is no crash"


def test_a_mistake_in_the_code_is_told_and_the_server_of_before_goes_on(server: Server) -> None:
    write(server, "my_words.py", "WORD = = 3\n")
    wait_until(lambda: swaps(server) == (0, 1), "the mistake was noticed", 60)
    assert "SyntaxError" in server.log() and "my_words.py, line 1" in server.log()
    assert said(server) == "one"


@pytest.mark.long
def test_code_that_cannot_be_served_is_refused_and_mended_code_is_served(server: Server) -> None:
    write(server, "my_agent.py", CODE + "\nagent = 5\n")
    wait_until(lambda: swaps(server) == (0, 1), "it was refused", 60)
    assert "which cannot be served" in server.log() and said(server) == "one"
    write(server, "my_agent.py", CODE + "\n1 / 0\n")
    wait_until(lambda: swaps(server) == (0, 2), "it was refused", 60)
    line = f"{server.data.parent / 'my_agent.py'}, line {len(CODE.splitlines()) + 2}"
    assert f"ZeroDivisionError: division by zero ({line})" in server.log()
    write(server, "my_agent.py", CODE)
    write(server, "my_words.py", 'WORD = "four"\n')
    wait_until(lambda: swaps(server)[0] == 1 and said(server) == "four", "the mended code is served", 60)


def test_reload_without_a_supervisor_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(CODE)
    words = ("-m", "ninelives", "serve", "my_agent:agent", "--reload", "--no-supervisor", "--port", "0")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NINELIVES_SERVER_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run((sys.executable, *words), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--reload needs the supervisor" in done.stderr


def test_a_change_is_told_once_when_the_file_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [str(tmp_path)]
    monkeypatch.setattr(reload, "own_folders", lambda: iter(folders))
    one, told = tmp_path / "one.py", list[str]()
    one.write_text("1")
    watch = CodeWatch(told.append, tmp_path / "own.toml")
    watch.look()
    os.utime(one, ns=(5, 5))
    watch.look()
    assert told == [], "an editor may be writing still"
    watch.look()
    watch.look()
    assert told == ["one.py"]
    (tmp_path / "own.toml").write_text("")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "two.py").write_text("")
    folders.append(str(tmp_path / "deeper"))
    watch.look()
    watch.look()
    assert told == ["one.py", "own.toml"], "a folder that is seen for the first time did not change"


def test_installed_packages_and_this_one_are_not_watched() -> None:
    watched = set(reload.own_folders())
    assert str(Path(pytest.__file__).parent) not in watched and str(ROOT / "ninelives" / "app") not in watched
    assert str(Path(__file__).parent) in watched
