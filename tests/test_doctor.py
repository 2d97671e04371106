"""`ninelives doctor` tells the truth: what cannot work is red, and the line says what to do about it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ninelives.cli import main

KEY = "sk-right-0123456789"
REPLY = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}


class ModelServer(BaseHTTPRequestHandler):
    """An upstream that is as strict as OpenAI's: it wants its key, a model that it has, and /v1."""

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "small"}, {"id": "large"}]} if self.path == "/v1/models" else None)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.path == "/v1/chat/completions" and asked["model"] in ("small", "large")
        self._answer(REPLY if known else None)

    def _answer(self, body: dict[str, Any] | None) -> None:
        refused = self.headers["Authorization"] != f"Bearer {KEY}" and self.path.startswith("/v1")
        code = 401 if refused else 404 if body is None else 200
        content = json.dumps(body if code == 200 else {"error": {"message": "no"}}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """The base URL without /v1."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ModelServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(30)


@pytest.fixture
def env(tmp_path: Path, upstream: str) -> dict[str, str | None]:
    """The settings of a machine on which all is well."""
    own = ("NINELIVES_", "API_SERVER_", "OPENAI_")
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith(own)}
    return unset | {
        "HOME": str(tmp_path),
        "NINELIVES_SERVER_DATA_DIR": str(tmp_path / "data"),
        "NINELIVES_SERVER_PORT": "0",
        "NINELIVES_TOOLS_SANDBOX": "off",
        "NINELIVES_MODEL_URL": f"{upstream}/v1",
        "NINELIVES_MODEL_NAME": "small",
        "NINELIVES_MODEL_API_KEY": KEY,
    }


def diagnose(env: dict[str, str | None], *flags: str) -> dict[str, dict[str, Any]]:
    """Each check by its name. The exit code is that of the checks."""
    result = CliRunner().invoke(main, ["doctor", "--json", *flags], env=env)
    checks = {each["name"]: each for each in json.loads(result.stdout)}
    assert result.exit_code == int(not all(each["ok"] for each in checks.values()))
    return checks


def red(checks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The only red check."""
    (found,) = [each for each in checks.values() if not each["ok"]]
    return found


def test_a_machine_on_which_all_is_well_is_green(env: dict[str, str | None], upstream: str) -> None:
    checks = diagnose(env)
    assert [name for name, each in checks.items() if not each["ok"]] == []
    assert {"configuration", "data directory", "clock", "port", "model", "sandbox"} <= set(checks)
    assert checks["model"]["detail"].startswith(f"small at {upstream}/v1: answered a call after ")


def test_a_wrong_key_is_red_and_is_not_shown(env: dict[str, str | None]) -> None:
    found = red(diagnose(env | {"NINELIVES_MODEL_API_KEY": "sk-wrong-0123456789"}))
    assert found["name"] == "model" and "401" in found["detail"]
    assert "NINELIVES_MODEL_API_KEY" in found["remedy"] and "sk-wrong" not in json.dumps(found)


def test_a_model_that_is_not_there_is_red_and_those_that_are_there_are_named(
    env: dict[str, str | None], upstream: str
) -> None:
    found = red(diagnose(env | {"NINELIVES_MODEL_NAME": "huge"}))
    assert found["detail"].endswith(f"{upstream}/v1 has no model 'huge'")
    assert found["remedy"] == "Set model.name (--model) to one that is listed: small, large"


def test_a_url_without_v1_is_red_and_the_right_one_is_named(env: dict[str, str | None], upstream: str) -> None:
    for given in (upstream, f"{upstream}/"):
        found = red(diagnose(env | {"NINELIVES_MODEL_URL": given}))
        assert found["remedy"] == f"Set model.url (--model-url) to {upstream}/v1"


def test_a_model_server_that_is_down_is_red(env: dict[str, str | None]) -> None:
    found = red(diagnose(env | {"NINELIVES_MODEL_URL": "http://127.0.0.1:1/v1"}))
    assert "cannot be reached" in found["detail"] and found["remedy"].startswith("Start the model server")


def test_a_url_alone_takes_the_first_model_that_is_listed(env: dict[str, str | None], upstream: str) -> None:
    checks = diagnose(env | {"NINELIVES_MODEL_NAME": None})
    assert checks["model"]["detail"].startswith(f"small at {upstream}/v1 (the first that is listed there): answered")


def test_a_dead_mcp_server_is_red_with_its_exit_code(env: dict[str, str | None], tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    config = tmp_path / "my.toml"
    config.write_text('[mcp.dead]\ncommand = "/bin/sh"\nargs = ["-c", "exit 7"]\n')
    found = red(diagnose(env, "--config", str(config)))
    assert (found["name"], "exit code 7" in found["detail"]) == ("mcp: dead", True)
    assert "[mcp.dead]" in found["remedy"]


def test_a_missing_bubblewrap_is_red(env: dict[str, str | None], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = red(diagnose(env | {"NINELIVES_TOOLS_SANDBOX": "auto", "PATH": str(tmp_path / "empty")}))
    assert found["name"] == "sandbox" and "bubblewrap is not installed" in found["detail"]
    assert "apt-get install bubblewrap" in found["remedy"]


def test_a_full_disk_is_red(env: dict[str, str | None], tmp_path: Path) -> None:
    disk = tmp_path / "data"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False)
    if made.returncode:
        pytest.skip("a disk of its own needs root")
    try:
        found = red(diagnose(env))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert found["name"] == "data directory" and "is full" in found["detail"]
    assert "--data-dir" in found["remedy"]


def test_a_disk_below_the_low_water_mark_is_red(env: dict[str, str | None]) -> None:
    found = red(diagnose(env | {"NINELIVES_STORE_LOW_WATER_BYTES": str(2**50)}))
    assert found["name"] == "data directory" and "store.low_water_bytes" in found["detail"]


def test_a_port_that_is_taken_is_red(env: dict[str, str | None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        found = red(diagnose(env, "--port", str(number)))
    assert found["detail"] == f"127.0.0.1:{number} is used by another program" and "--port" in found["remedy"]


def test_the_port_of_the_server_of_this_data_directory_is_fine(env: dict[str, str | None], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as ours:
        number = ours.getsockname()[1]
        (tmp_path / "data" / "address").write_text(f"http://127.0.0.1:{number}\n")
        assert diagnose(env, "--port", str(number))["port"]["ok"]


def test_a_clock_that_is_behind_the_store_is_red(env: dict[str, str | None], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "key").touch()
    os.utime(tmp_path / "data" / "key", (4e9, 4e9))
    found = red(diagnose(env))
    assert found["name"] == "clock" and "NTP" in found["remedy"]


TOOL = """
from ninelives import tool

@tool(effect="read")
def shout(text: str) -> str:
    return text
"""


def test_modules_are_imported_from_the_folder_of_the_configuration_file(
    env: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_doctor_tools.py").write_text(TOOL)
    (folder / "ninelives.toml").write_text('[tools]\nmodules = ["my_doctor_tools", "my_missing_tools"]\n')
    checks = diagnose(env, "--config", str(folder / "ninelives.toml"))
    assert checks["tools: my_doctor_tools"]["detail"] == "shout"
    found = red(checks)
    assert found["name"] == "tools: my_missing_tools" and "No module named" in found["detail"]
    assert str(folder) in found["remedy"]


def test_the_text_has_the_remedy_below_its_check_and_no_colours_where_nobody_sees_them(
    env: dict[str, str | None],
) -> None:
    said = CliRunner().invoke(main, ["doctor"], env=env | {"NINELIVES_MODEL_NAME": "huge"}).output
    assert "FAIL  model " in said and "remedy: Set model.name" in said and "\x1b[" not in said
    assert said.splitlines()[-1] == f"1 of {said.count('FAIL') + said.count('ok  ')} checks failed."
