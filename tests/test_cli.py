"""What the commands say to a person who made a mistake: one line that says what to do, and an exit code that CI
can tell from a broken promise."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

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
