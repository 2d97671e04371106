"""What the commands say to a person who made a mistake: one line that says what to do, and an exit code that CI
can tell from a broken promise."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result

from ninelives.app.build import refuse_left_behind
from ninelives.app.errors import StartError
from ninelives.app.settings import load
from ninelives.cli import main


def ninelives(*args: str) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.output.count("\n") == 1, result.output
    return result


@pytest.fixture(params=[b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", b"220 mail.example.org ESMTP\r\n"])
def other(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is not ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(65536)
                line.sendall(request.param)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://", "http://127.0.0.1:port", "127.0.0.1:8642"])
@pytest.mark.parametrize("command", [["status"], ["runs", "ls"]], ids=" ".join)
def test_a_url_that_is_none_is_told(command: list[str], url: str) -> None:
    assert "is not the URL of a server, such as http://" in ninelives(*command, "--url", url).output


@pytest.mark.parametrize("command", [["status"], ["runs", "ls"]], ids=" ".join)
def test_a_server_that_is_not_there_is_told(command: list[str]) -> None:
    assert "does not answer" in ninelives(*command, "--url", "http://127.0.0.1:1").output


def test_a_server_that_is_not_ours_is_told(other: str) -> None:
    said = ninelives("status", "--url", other)
    assert said.exit_code == 1 and "is another server" in said.output


class Gateway(BaseHTTPRequestHandler):
    """Answers /health, and /health/detailed as told."""

    detailed = 200
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        code = self.detailed if self.path == "/health/detailed" else 200
        self.send_response(code if self.path in ("/health", "/health/detailed") else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "ok", "from": self.path}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of a server elsewhere. Here is a data directory with a key."""
    monkeypatch.setattr(Gateway, "asked", [])
    monkeypatch.setattr(Gateway, "detailed", 200)
    monkeypatch.setenv("NINELIVES_SERVER_DATA_DIR", str(tmp_path))
    (tmp_path / "key").write_text("nl-a-key-of-this-directory")
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(30)


@pytest.mark.parametrize("tail", ["", "/v1", "/health", "/v1/health", "/health/detailed"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_F2_status_takes_any_usual_url_of_a_server(gateway: str, tail: str, slash: str) -> None:
    said = CliRunner().invoke(main, ["status", "--json", "--url", gateway + tail + slash])
    assert (said.exit_code, json.loads(said.output)["from"]) == (0, "/health/detailed")


def test_F2_status_asks_for_plain_health_where_the_detailed_one_is_refused(
    gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in (401, 404, 405):
        monkeypatch.setattr(Gateway, "detailed", code)
        said = CliRunner().invoke(main, ["status", "--json", "--url", gateway])
        assert (said.exit_code, json.loads(said.output)["from"]) == (0, "/health")


def test_F2_status_reads_the_names_of_hermes_and_sends_no_key_there(
    gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_HEALTH_URL", gateway + "/health/")
    monkeypatch.setenv("GATEWAY_HEALTH_TIMEOUT", "60")
    said = CliRunner().invoke(main, ["status", "--json"])
    assert said.exit_code == 0 and Gateway.asked == [("/health/detailed", None)]
    assert CliRunner().invoke(main, ["status", "--url", gateway]).exit_code == 0
    assert Gateway.asked[-1] == ("/health/detailed", "Bearer nl-a-key-of-this-directory")
    monkeypatch.setenv("GATEWAY_HEALTH_TIMEOUT", "soon")
    assert "'soon' is not a valid" in CliRunner().invoke(main, ["status"]).output


def test_F2_a_drill_with_a_wrong_configuration_breaks_no_promise(tmp_path: Path) -> None:
    said = ninelives("drill", "--config", str(tmp_path / "none.toml"))
    assert said.exit_code == 2 and "There is no configuration file" in said.output


def test_data_of_version_0_1_at_the_old_place_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that would hide it is refused before anything is made, and the command that is printed works."""
    monkeypatch.setenv("HOME", str(tmp_path))
    old, new = (tmp_path / ".local" / "share" / name for name in ("holdfast", "ninelives"))
    old.mkdir(parents=True)
    loaded = load(None, {"HOME": str(tmp_path)}, {})
    refuse_left_behind(loaded)
    (old / "holdfast.db").touch()
    for made_by_doctor in (False, True):
        if made_by_doctor:
            new.rename(old)
            new.mkdir()
        with pytest.raises(StartError) as told:
            refuse_left_behind(loaded)
        refuse_left_behind(load(None, {}, {"server.data_dir": str(new)}))
        command = str(told.value).partition("run: ")[2].partition("   ")[0]
        subprocess.run(command, shell=True, check=True)
        refuse_left_behind(loaded)
        assert (new / "holdfast.db").exists() and not old.exists()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rnus"], "'runs'"),
        (["runs", "lss"], "'ls'"),
        (["approvals", "aprove"], "'approve'"),
        (["store", "chek"], "'check'"),
    ],
    ids=" ".join,
)
def test_a_mistyped_command_names_the_one_that_was_meant(words: list[str], meant: str) -> None:
    said = CliRunner().invoke(main, words)
    assert said.exit_code == 2 and f"Did you mean {meant}?" in said.output


def test_a_mistyped_flag_names_the_one_that_was_meant() -> None:
    said = CliRunner().invoke(main, ["serve", "--prot", "1"])
    assert said.exit_code == 2 and "--port" in said.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_the_shell_can_read(shell: str) -> None:
    said = CliRunner().invoke(main, ["completion", shell])
    assert said.exit_code == 0 and f"_NINELIVES_COMPLETE={shell}_complete" in said.output
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=said.output, text=True, check=True, timeout=60)


def test_the_completion_knows_commands() -> None:
    env = {**os.environ, "_NINELIVES_COMPLETE": "bash_complete", "COMP_WORDS": "ninelives ru", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from ninelives.cli import main; main(prog_name='ninelives')"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert said.stdout == "plain,runs\n"


@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_the_unit_is_shown_before_anything_is_written_and_systemd_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = [
        "service",
        "install",
        "--dry-run",
        *(["--system"] if scope == "--system" else []),
        "--",
        "--port",
        "9000",
    ]
    said = CliRunner().invoke(main, command)
    assert said.exit_code == 0 and "-m ninelives serve --port 9000\n" in said.stdout
    declined = CliRunner().invoke(main, ["service", "install"], input="n\n")
    assert declined.exit_code == 1 and "[Service]" in declined.output
    assert not (tmp_path / ".config").exists()
    unit = tmp_path / "ninelives.service"
    unit.write_text(said.stdout)
    if analyze := shutil.which("systemd-analyze"):
        env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
        verify = [analyze, "verify", *([scope] if scope == "--user" else []), str(unit)]
        done = subprocess.run(verify, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_no_color_is_respected_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NINELIVES_MODEL_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("NINELIVES_TOOLS_SANDBOX", "off")
    assert "\x1b[31mFAIL" in CliRunner().invoke(main, ["doctor"], color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(main, ["doctor"], color=True).output
