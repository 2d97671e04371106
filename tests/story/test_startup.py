"""A server that is told to stop before it is ready (A9): it ends with 0 and leaves nothing behind. One that cannot
start says why, and what to do, in one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.server import KEY, ROOT, start_demo, wait_until


def serve(tmp_path: Path, *flags: str, **settings: str) -> subprocess.Popen[bytes]:
    own = ("NINELIVES_", "API_SERVER_", "OPENAI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    env |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "NINELIVES_STORE_BALLAST_BYTES": "0", **settings}
    args = [sys.executable, "-m", "ninelives", "serve", "--port", "0", "--data-dir", str(tmp_path / "data"), *flags]
    return subprocess.Popen(args, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ends_with_nought(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    child.send_signal(signal.SIGTERM)
    try:
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err.decode()
    assert b"Traceback" not in err
    return out, err


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A model server that takes a connection and says nothing: looking for it takes the start-up a while."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(60)
        yield sock


def test_A9_sigterm_while_the_server_is_put_together_ends_with_0(tmp_path: Path, silent: socket.socket) -> None:
    child = serve(tmp_path, OPENAI_BASE_URL=f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
    with silent.accept()[0]:
        out, _ = ends_with_nought(child)
    assert b"listening on" not in out


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1/v1", "MODEL DOES NOT ANSWER (run `ninelives doctor`); sandbox off"),
        ("", "model answers; sandbox off"),
    ],
)
def test_the_start_says_in_one_line_whether_the_model_answers(tmp_path: Path, url: str, says: str) -> None:
    child = serve(tmp_path, "--sandbox", "off", "--approval", "never", "--model-url", url, OPENAI_API_KEY="")
    out = b""
    while b"Try it" not in out and child.stdout is not None:
        out += child.stdout.readline()
    ends_with_nought(child)
    rest = ", approval never, shell tools offered; no config file\n"
    assert f"  state     {says}{rest}" in out.decode()


def test_ctrl_c_says_what_it_waits_for(tmp_path: Path) -> None:
    server = start_demo(tmp_path)
    try:
        with server.client.stream("/v1/responses", {"input": "work slowly", "stream": True}) as stream:
            stream.until("response.output_text.delta")
            server.process.child.send_signal(signal.SIGINT)
            assert server.process.child.wait(60) == 0
    finally:
        server.stop()
    said = server.process.out.read_text()
    assert "Stopping: waiting at most 3 s for 1 run (0 in a tool, 1 with the model) to reach a safe point." in said
    assert "Ctrl-C again ends at once" in said


def test_A9_sigterm_before_the_server_listens_ends_with_0(tmp_path: Path) -> None:
    """A configuration that comes through a pipe holds the start-up where nothing has begun yet."""
    pipe = tmp_path / "ninelives.toml"
    os.mkfifo(pipe)
    child = serve(tmp_path, "--config", str(pipe))

    def read_by_the_server() -> int | None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    held = wait_until(read_by_the_server, "the server to open its configuration")
    try:
        # Python calls its handlers between system calls: a signal right before read() would wait for its end.
        wait_until(lambda: sleeps(child.pid), "the server to wait for its configuration")
        ends_with_nought(child)
    finally:
        os.close(held)
    assert not (tmp_path / "data").exists()


def sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_A9_sigterm_ends_a_start_also_where_python_drops_exceptions(tmp_path: Path) -> None:
    """An exception of a handler that runs in __del__ is printed and forgotten."""
    program = """
import os, signal
from ninelives.cli.serve import settings_of
settings_of(None, {})
class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        os.getpid()
Dropped()
raise SystemExit("the signal was lost")
"""
    env = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    child = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, timeout=60)
    assert (child.returncode, child.stderr) == (0, b"")


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path, silent: socket.socket) -> None:
    says_why(serve(tmp_path, "--port", str(silent.getsockname()[1])), "Address already in use", "--port")


def test_an_address_that_is_none_of_ours_is_told_in_one_line(tmp_path: Path) -> None:
    done = serve(tmp_path, "--host", "300.1.1.1", "--allow-remote", API_SERVER_KEY=KEY)
    says_why(done, "cannot listen on 300.1.1.1", "--host")


def test_a_data_directory_that_is_a_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    says_why(serve(tmp_path, "--data-dir", str(tmp_path / "file")), "it is a file", "--data-dir")


def test_a_store_that_is_a_directory_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data" / "ninelives.db").mkdir(parents=True)
    says_why(serve(tmp_path), "unable to open database file", "--data-dir")


def says_why(child: subprocess.Popen[bytes], why: str, flag: str) -> None:
    try:
        err = child.communicate(timeout=60)[1].decode()
    finally:
        child.kill()
    assert (child.returncode, err.count("\n")) == (1, 1), err
    assert why in err and f"Choose another with {flag}" in err
