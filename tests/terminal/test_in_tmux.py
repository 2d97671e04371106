"""`chat`, `ask` and `runs tail` in a real terminal (tmux), while their server is killed and restarted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.server import KEY, ROOT, Server, Upstream, start_server, start_upstream, wait_until
from tests.terminal.tmux import terminal

HANGS = "[[tokens=60 hang=20 times=1]]"
"""The first model call stops after 20 tokens, so it is in mid-answer until its server dies. The next one is whole."""
WRITE = '[[tools=write_file:{"path":"a.txt","content":"x"}]]'


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    made = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield made
    made.process.stop()


class Restarting:
    """A server that comes back at the same address."""

    def __init__(self, folder: Path, upstream: Upstream, approval: str = "never") -> None:
        self._folder, self._upstream, self._approval = folder, upstream, approval
        self.now: Server = self._start(0)

    def _start(self, at: int) -> Server:
        settings = {"NINELIVES_TOOLS_APPROVAL": self._approval}
        return start_server(self._folder, self._upstream.url, at=at, **settings)

    def again(self) -> None:
        self.now = self._start(self.now.port)

    def stop(self) -> None:
        self.now.stop()


@pytest.fixture
def server(tmp_path: Path, upstream: Upstream) -> Iterator[Restarting]:
    made = Restarting(tmp_path / "server", upstream)
    yield made
    made.stop()


@pytest.mark.parametrize("how", ["kill -9", "SIGTERM"])
def test_a_chat_goes_on_by_itself_after_a_restart_in_mid_answer(tmp_path: Path, server: Restarting, how: str) -> None:
    with terminal(tmp_path / "home", "chat", server.now.data) as shown:
        shown.see("Ninelives at http://127.0.0.1:")
        shown.type(f"count {how} {HANGS}", "Enter")
        shown.see("tok19")
        if how == "kill -9":
            server.now.kill()
        else:
            server.now.process.child.send_signal(signal.SIGTERM)
            server.now.process.child.wait(60)
        shown.see("The server is away")
        server.again()
        shown.see("The server was away for")
        screen = shown.see(" tokens ")
    last = screen[screen.rindex("was away for") :]
    assert re.findall(r"tok(\d+)", last) == [str(n) for n in range(60)], "the whole answer, once"
    assert ("1 crash survived · run_" in screen) is (how == "kill -9"), "a stop in order is no crash"


def test_a_chat_shows_tools_markdown_and_its_last_session_again(tmp_path: Path, server: Restarting) -> None:
    text = "[[text=# Result - **bold** and `code`]]"
    with terminal(tmp_path / "home", "chat", server.now.data) as shown:
        shown.see("Ctrl-D leaves")
        shown.type(f"go {WRITE} {text}", "Enter")
        screen = shown.see(" tokens ")
        assert "🔧 write_file" in screen and "a.txt" in screen and "done in" in screen
        assert "Result - bold and code done after 1 results" in screen, "the signs of Markdown are not shown"
        shown.type("/hlep", "Enter")
        shown.see("Did you mean /help?")
        shown.type("C-d")
        shown.see("exit code 0")
    with terminal(tmp_path / "home", "chat", server.now.data) as shown:
        screen = shown.see("goes on (/new begins another)")
        assert "Result" in shown.see("Result - bold")
        shown.type("and then? [[text=second]]", "Enter")
        shown.see("second")
    asked = server.now.client.get("/v1/runs").json()["data"]
    assert len({run["session_id"] for run in asked}) == 1


def test_a_chat_asks_for_approvals_in_place_and_takes_steers(tmp_path: Path, upstream: Upstream) -> None:
    server = Restarting(tmp_path / "server", upstream, "on-write")
    try:
        with terminal(tmp_path / "home", "chat", server.now.data) as shown:
            shown.see("Ctrl-D leaves")
            shown.type(f"write {WRITE} [[pre=40 callgate]]", "Enter")
            shown.see("tok39")
            shown.type("use fewer words", "Enter")
            shown.see("↪ use fewer words")
            upstream.post("/_go")
            shown.see("approve? y once")
            assert "a.txt" in shown.see("Waiting for you")
            shown.type("x", "Enter")
            shown.see("Answer with y (once)")
            shown.type("y", "Enter")
            shown.see("Answer: once")
            shown.see("↪ read: use fewer words")
            shown.see(" tokens ")
            shown.type("[[tokens=400 pace=0.05]]", "Enter")
            shown.see("tok45 ")  # the first answer had 40 of them
            shown.type("C-c")
            shown.see("cancelled")
    finally:
        server.stop()


def test_ctrl_c_right_after_a_question_cancels_its_run_and_the_chat_stays(tmp_path: Path, server: Restarting) -> None:
    with terminal(tmp_path / "home", "chat", server.now.data) as shown:
        shown.see("Ctrl-D leaves")
        shown.type("[[tokens=400 pace=0.05]]", "Enter", "C-c")
        shown.see("cancelled")
        assert "exit code" not in shown.screen()


def test_ask_in_a_terminal_and_runs_tail_wait_for_a_restart(tmp_path: Path, server: Restarting) -> None:
    with terminal(tmp_path / "home", f"ask 'count for ask {HANGS}'", server.now.data) as shown:
        shown.see("tok19")
        run = server.now.client.get("/v1/runs").json()["data"][0]["run_id"]
        with terminal(tmp_path / "other", f"runs tail {run}", server.now.data) as tail:
            tail.see("tok19")
            server.now.kill()
            tail.see("The server is away.")
            server.again()
            screen = tail.see("run.completed")
        last = shown.see("exit code 0")
    for each in (screen, last):
        after = each[each.rindex("back after") :]
        assert re.findall(r"tok(\d+)", after) == [str(n) for n in range(60)]


def ask(server: Restarting, tmp_path: Path, *words: str, stdin: str = "") -> subprocess.Popen[str]:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "API_SERVER_KEY": KEY}
    args = [sys.executable, "-m", "ninelives", "ask", "--url", server.now.url, *words]
    pipe = subprocess.PIPE
    child = subprocess.Popen(args, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert child.stdin is not None
    child.stdin.write(stdin)
    child.stdin.close()
    child.stdin = None
    return child


def test_ask_in_a_pipe_prints_the_answer_once_whatever_happens_to_the_server(
    tmp_path: Path, server: Restarting
) -> None:
    child = ask(server, tmp_path, "count", "this:", stdin=HANGS)
    wait_until(lambda: b"\nninelives_subscribers 1.0\n" in server.now.client.get("/metrics").body, "ask reads the run")
    server.now.kill()
    server.again()
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, " ".join(f"tok{n}" for n in range(60)) + " \n")
    assert "The server is away. Waiting; nothing is lost." in err and "The server is back after" in err


def test_ask_has_json_and_exit_codes(tmp_path: Path, upstream: Upstream) -> None:
    server = Restarting(tmp_path / "server", upstream, "on-write")
    try:
        out, _ = (child := ask(server, tmp_path, "--json", "[[text=hi there]]")).communicate(timeout=60)
        assert child.returncode == 0 and json.loads(out)["output"] == "hi there"
        out, err = (child := ask(server, tmp_path, "[[status=400]]")).communicate(timeout=60)
        assert (child.returncode, out) == (1, "") and "failed" in err
        out, err = (child := ask(server, tmp_path, WRITE)).communicate(timeout=60)
        assert (child.returncode, out) == (3, "") and "ninelives approvals approve run_" in err and "a.txt" in err
        out, err = (child := ask(server, tmp_path)).communicate(timeout=60)
        assert child.returncode == 2 and "What is the question?" in err
        one = [ask(server, tmp_path, "--idempotency-key", "k", "[[text=same]]").communicate(timeout=60) for _ in "ab"]
        assert [out for out, _ in one] == ["same\n", "same\n"]
        runs = server.now.client.get("/v1/runs?idempotency_key=k").json()["data"]
        assert len(runs) == 1, "the second command joined the run of the first"
    finally:
        server.stop()


def test_chat_in_a_pipe_names_ask(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ninelives", "chat"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 1 and "use `ninelives ask`" in done.stderr
