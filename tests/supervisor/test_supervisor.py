"""`ninelives serve` as its user runs it on Linux: a supervisor, the server and a spare. The server is killed, swapped
and stopped; the supervisor is killed too."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from ninelives.supervisor.line import ControlLine
from tests.story.server import (
    KEY,
    ROOT,
    Server,
    Upstream,
    signal_process,
    start_server,
    start_supervised,
    start_upstream,
    wait_until,
)

pytestmark = pytest.mark.xdist_group("processes")
PACKAGE = ROOT / "ninelives/supervisor"


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def server_pid(server: Server) -> int:
    """The pid of the server that serves now."""

    def look() -> int | None:
        with suppress(OSError):
            pid = status(server)["server"]
            return pid if lives(pid) and pid in children(server.process.pid) else None
        return None

    found = wait_until(look, "a server that serves", 60)
    assert found is not None
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_server(server: Server) -> int:
    """kill -9 $(cat $DATA/lock), and wait for the next server. Returns its pid. A shared store has no lock."""
    old, lock = server_pid(server), server.data / "lock"
    assert not lock.exists() or int(lock.read_text()) == old
    signal_process(old, signal.SIGKILL)
    wait_until(lambda: not lives(old), "the server to die")
    return server_pid(server)


def has_spare(server: Server) -> bool:
    """Two children, and the second has imported the server and waits for its line."""
    own = children(server.process.pid)
    spare = [each for each in own if each != server_pid(server)]
    if not spare:
        return False
    with suppress(OSError):
        return "unix_seqpacket" in Path(f"/proc/{spare[0]}/wchan").read_text() or sleeping(spare[0])
    return False


def sleeping(pid: int) -> bool:
    """It used no CPU for a while."""
    seen = Path(f"/proc/{pid}/stat").read_text().split()[13:15]
    time.sleep(0.2)
    return Path(f"/proc/{pid}/stat").read_text().split()[13:15] == seen


def status(server: Server) -> dict[str, int]:
    return dict(json.loads((server.data / "supervisor").read_text()))


def command(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NINELIVES_SERVER_DATA_DIR": str(server.data)}
    words = (sys.executable, "-m", "ninelives", *words)
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    made = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield made
    made.process.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    """One for the tests that leave a server behind that serves."""
    where = tmp_path_factory.mktemp("server")
    made = start_supervised(where, upstream.url, NINELIVES_CONFIG=str(_config(where)))
    yield made
    assert made.stop() == 0, made.log()


def _config(where: Path) -> Path:
    path = where / "own.toml"
    path.write_text("[agent]\nmax_rounds = 9\n")
    return path


def test_the_server_that_was_killed_comes_back_by_itself_and_its_run_goes_on(
    server: Server, upstream: Upstream
) -> None:
    asked = {"input": "over-kill [[tokens=60 pace=0.02]]", "background": True, "store": True}
    made = server.client.post("/v1/responses", asked).json()
    wait_until(lambda: upstream.asked("over-kill"), "the model to be asked")
    kill_server(server)

    def ended() -> bool:
        return server.client.get(f"/v1/responses/{made['id']}").json()["status"] == "completed"

    wait_until(ended, "the run to go on and end", 60)
    assert status(server)["restarts"] >= 1
    assert "server_died" in server.log() and "server_back" in server.log()


def test_no_connection_is_refused_while_the_server_is_killed_again_and_again(server: Server) -> None:
    """The supervisor holds the listening socket. A request that a killed server had read is cut; none is refused."""
    refused, answered, done = [], [], False

    def ask() -> None:
        while not done:
            try:
                answered.append(server.anonymous.get("/health").status)
            except ConnectionRefusedError as error:
                refused.append(error)
            except OSError:
                continue  # cut: the server that had it was killed
            except Exception as error:
                assert "IncompleteRead" in repr(error) or "RemoteDisconnected" in repr(error), error

    asking = Thread(target=ask)
    asking.start()
    try:
        for _ in range(3):
            kill_server(server)
    finally:
        done = True
        asking.join(60)
    assert not refused and answered


def test_with_a_warm_spare_the_next_server_has_the_imports_behind_it(server: Server) -> None:
    """A cold start takes at least 4 times as long: here the processes are compared, not the clock of one machine."""
    wait_until(lambda: has_spare(server), "a spare", 60)
    spare = next(each for each in children(server.process.pid) if each != server_pid(server))
    assert kill_server(server) == spare


def test_restart_swaps_the_server_and_says_so(server: Server) -> None:
    before, swaps = server_pid(server), status(server)["swaps"]
    said = command(server, "restart")
    assert said.returncode == 0, said.stderr
    after = server_pid(server)
    assert re.search(rf"restarted in [0-9.]+ s: pid {before} -> {after}$", said.stdout.strip()), said.stdout
    assert before != after and status(server)["swaps"] == swaps + 1
    assert server.anonymous.get("/health").status == 200


def test_restart_takes_the_configuration_of_now_and_refuses_one_that_is_wrong(server: Server) -> None:
    own = server.process.out.parent / "own.toml"
    before = server_pid(server)
    own.write_text("[agent]\nmax_rounds = 'many'\n")
    try:
        said = command(server, "restart")
    finally:
        own.write_text("[agent]\nmax_rounds = 9\n")
    assert said.returncode == 1 and "the old one goes on" in said.stderr
    assert "agent.max_rounds cannot be" in server.log()
    assert server_pid(server) == before and server.anonymous.get("/health").status == 200
    assert command(server, "restart").returncode == 0 and server_pid(server) != before


def test_restart_without_a_supervisor_says_what_to_do(tmp_path: Path, upstream: Upstream) -> None:
    alone = start_server(tmp_path, upstream.url)
    try:
        said = command(alone, "restart")
    finally:
        assert alone.stop() == 0
    assert said.returncode == 1 and "names no supervisor" in said.stderr and "start it again" in said.stderr


def test_the_supervisor_has_no_secret_in_its_environment_and_the_server_shows_none(server: Server) -> None:
    assert KEY.encode() not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert Path(f"/proc/{server_pid(server)}/environ").read_bytes().strip(b"\0") == b""


def test_no_tool_inherits_the_control_line_or_the_listening_socket(server: Server) -> None:
    def fds() -> str:
        asked = 'fds [[tools=terminal:{"command": "ls -l /proc/self/fd; env"}]]'
        made = server.client.post("/v1/responses", {"input": asked, "store": True}).json()
        return json.dumps(made["output"])

    said = fds()
    assert "/dev/null" in said or "pipe:" in said
    assert "socket:" not in said and "_NINELIVES" not in said, said


def test_no_descriptor_that_comes_over_the_line_is_inherited() -> None:
    """A spare that had a client's socket would keep its connection open for ever."""
    ours, theirs = ControlLine.pair()
    with ours.sock, theirs.sock, socket.socket() as given:
        ours.send({"client": 1}, given.fileno())
        (fd,) = theirs.receive()[1]
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_when_memory_is_short_the_supervisor_goes_last_and_a_tool_first(server: Server) -> None:
    def score(pid: int | str) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    asked = 'oom [[tools=terminal:{"command": "cat /proc/self/oom_score_adj"}]]'
    said = json.dumps(server.client.post("/v1/responses", {"input": asked, "store": True}).json()["output"])
    assert score(server.process.pid) < score(server_pid(server)) < 1000 and "1000" in said


def test_sigterm_to_the_server_process_stops_both(tmp_path: Path, upstream: Upstream) -> None:
    """`kill $(cat $DATA/lock)` stopped a server before there was a supervisor."""
    made = start_supervised(tmp_path, upstream.url)
    signal_process(server_pid(made), signal.SIGTERM)
    assert made.process.child.wait(30) == 0
    assert not (made.data / "supervisor").exists()


def test_a9_a_second_sigterm_ends_all_at_once(tmp_path: Path, upstream: Upstream) -> None:
    made = start_supervised(tmp_path, upstream.url, NINELIVES_LIMITS_DRAIN_S="30")
    begun = tmp_path / "begun"
    call = json.dumps({"command": f"touch {begun}; sleep 60"})
    made.client.post("/v1/responses", {"input": f"stuck [[tools=terminal:{call}]]", "background": True, "store": True})
    wait_until(begun.exists, "the tool to run")
    made.process.child.send_signal(signal.SIGTERM)
    wait_until(lambda: made.anonymous.get("/readyz").status == 503, "the drain")
    began = time.monotonic()
    made.process.child.send_signal(signal.SIGTERM)
    assert made.process.child.wait(15) == 1 and time.monotonic() - began < 10


@pytest.mark.parametrize("supervised", [True, False])
def test_a9_a_server_without_a_drain_notice_refuses_connections_at_once(
    tmp_path: Path, upstream: Upstream, supervised: bool
) -> None:
    """The supervisor has the socket too. What waits in it would be reset at the end, when it was sent already."""
    start = start_supervised if supervised else start_server
    made = start(tmp_path, upstream.url, NINELIVES_LIMITS_DRAIN_S="30", NINELIVES_LIMITS_DRAIN_NOTICE_S="0")
    begun = tmp_path / "begun"
    call = json.dumps({"command": f"touch {begun}; sleep 60"})
    made.client.post("/v1/responses", {"input": f"stuck [[tools=terminal:{call}]]", "background": True, "store": True})
    wait_until(begun.exists, "the tool to run")
    idle = HTTPConnection("127.0.0.1", made.port, timeout=30)
    idle.request("GET", "/livez")
    assert idle.getresponse().read()
    made.process.child.send_signal(signal.SIGTERM)

    def refused() -> bool:
        with socket.socket() as fresh:
            return fresh.connect_ex(("127.0.0.1", made.port)) == errno.ECONNREFUSED

    wait_until(refused, "the listener to close")
    body = json.dumps({"input": "new"})
    idle.request("POST", "/v1/responses", body, {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    told = idle.getresponse()
    assert (told.status, told.headers["connection"], told.headers["retry-after"]) == (503, "close", "5")
    made.process.child.send_signal(signal.SIGTERM)
    assert made.process.child.wait(15) == 1


@pytest.mark.parametrize("kept", ["true", "false"])
def test_a_supervisor_that_is_killed_leaves_no_process_behind_and_loses_no_run(
    tmp_path: Path, upstream: Upstream, kept: str
) -> None:
    settings = {"NINELIVES_SERVER_KEEP_CALLS": kept, "NINELIVES_SERVER_KEEP_CLIENTS": kept}
    made = start_supervised(tmp_path, upstream.url, **settings)
    wait_until(lambda: has_spare(made), "a spare", 60)
    body = {"input": f"orphan-{kept}. [[tokens=60 pace=0.02]]", "stream": True, "store": True}
    stream = made.client.stream("/v1/responses", body)
    response = stream.take(8)[0].data["response"]["id"]
    left = children(made.process.pid)
    made.kill()
    wait_until(lambda: not any(map(lives, left)), "server and spare to end", 10)
    stream.leave()
    again = start_server(tmp_path, upstream.url)  # the data directory is free
    wait_until(lambda: again.client.get(f"/v1/responses/{response}").json()["status"] == "completed", "the run", 60)
    assert len(upstream.asked(f"orphan-{kept}.")) == 2, "the connection to the model is gone with its supervisor"
    assert again.stop() == 0


def test_without_a_spare_there_is_one_child(tmp_path: Path, upstream: Upstream) -> None:
    made = start_supervised(tmp_path, upstream.url, NINELIVES_SERVER_SPARE="false")
    try:
        kill_server(made)
        wait_until(lambda: "server_back" in made.log(), "the next server", 60)
        assert len(children(made.process.pid)) == 1
    finally:
        assert made.stop() == 0


LATE = """
import os, time
become = os.execve
def execve(path, words, env):
    while not os.path.exists(os.path.join(os.environ["HOME"], "go")):
        time.sleep(0.01)
    become(path, words, env)
os.execve = execve
"""
"""A sitecustomize.py: the supervisor begins when a file is there."""


@pytest.mark.parametrize("how", ["interrupt", "hang up", "hang up before the supervisor runs"])
def test_a_terminal_stops_it_once_with_ctrl_c_and_when_it_closes(tmp_path: Path, how: str) -> None:
    """The terminal signals supervisor and server alike, and the supervisor tells the server again: that is one stop."""
    own = ("NINELIVES_", "API_SERVER_", "OPENAI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"PYTHONPATH": f"{tmp_path}:{ROOT}", "HOME": str(tmp_path), "NINELIVES_STORE_BALLAST_BYTES": "0"}
    (tmp_path / "sitecustomize.py").write_text(LATE if "before" in how else "")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
        words = [sys.executable, "-m", "ninelives", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
        os.execve(sys.executable, words, env)
    said = b""
    while b"OpenAI clients" not in said:
        said += os.read(terminal, 65536)
    left = children(pid)
    if how == "interrupt":
        os.write(terminal, b"\x03")
    else:
        os.close(terminal)
        (tmp_path / "go").touch()
    _, ended = wait_until(lambda: (found := os.waitpid(pid, os.WNOHANG))[0] and found, "the end of the command", 120)
    assert os.waitstatus_to_exitcode(ended) == 0 or how != "interrupt", "the last log line has no place to go"
    assert left and not any(map(lives, left))
    if how == "interrupt":
        os.close(terminal)


def modules_after(program: str, *flags: str) -> list[str]:
    """What a process has imported."""
    words = [sys.executable, *flags, "-c", f"import sys; {program}; print(*sorted(sys.modules))"]
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.split()


def foreign(modules: list[str]) -> set[str]:
    """The packages among them that are not part of Python."""
    packages = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    return {name for name in packages if not name.startswith("_")}


def test_the_supervisor_is_small() -> None:
    """What can break in it breaks everything. It has the standard library and itself."""
    modules = modules_after("import ninelives.supervisor.__main__", "-S")
    assert foreign(modules) == {"ninelives"}
    assert all(name == "ninelives" or name.startswith("ninelives.supervisor") for name in modules if "nine" in name)
    assert not {"asyncio", "ssl", "logging", "inspect", "pathlib"} & set(modules), "each takes a megabyte or more"
    assert len(modules) < 100, len(modules)
    own = [name.rpartition(".")[2] for name in modules if name.startswith("ninelives.supervisor.")]
    assert sorted(own) == ["__main__", "held", "line", "loop", "plan", "process", "relay"]
    lines = [line for name in own for line in (PACKAGE / f"{name}.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 630


def test_a_spare_has_no_package_that_most_servers_do_not_need() -> None:
    """A megabyte of imports is two: the server has them, and the spare (docs/supervisor.md has the memory of all)."""
    modules = modules_after("import ninelives.cli, ninelives.app.serve as serve; serve.import_server()")
    wanted = {"ninelives", "click", "msgspec", "apsw"}
    wanted |= {"starlette", "anyio", "sniffio", "python_multipart", "uvicorn", "httptools", "uvloop", "cython_runtime"}
    assert foreign(modules) - {"typing_extensions"} <= wanted
    assert sum(name.startswith("ninelives.") for name in modules) < 330
    assert len(modules) < 740, len(modules)
