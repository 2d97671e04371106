"""What others can read of the server's environment: nothing, also without a sandbox (the table of threats in
docs/promises.md)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.story.chat import PATH, ask
from tests.story.server import KEY, Server, Upstream, start_demo, start_server

UPSTREAM_KEY = "sk-upstream-Zy3kW8qT1mVb"
READ = "cat /proc/{pid}/environ /proc/$PPID/environ /proc/self/environ | tr '\\0' '\\n'; echo end"


def _read_by_a_tool(server: Server) -> str:
    """What a command without a sandbox reads of the environments in its sight."""
    call = "terminal:" + json.dumps({"command": READ.format(pid=server.process.pid)})
    with server.client.stream(PATH, ask(f"[[tools={call}]]", stream=True)) as stream:
        frames = [frame.data for frame in stream.rest() if frame.name]
    (done,) = [event for event in frames if event["status"] == "completed"]
    assert not done["isError"] and str(done["output"]).endswith("end\n"), done
    return str(done["output"])


def test_without_a_sandbox_a_tool_reads_no_secret_in_the_servers_environment(
    tmp_path: Path, upstream: Upstream
) -> None:
    own = {"NINELIVES_MODEL_API_KEY": UPSTREAM_KEY, "OPENAI_API_KEY": "sk-other-Qw7eRt2yUi9o", "MY_TOKEN": "hush-1"}
    server = start_server(tmp_path, upstream.url, **own)
    try:
        seen = _read_by_a_tool(server)
        assert not [secret for secret in (KEY, *own.values()) if secret in seen]
        assert Path(f"/proc/{server.process.pid}/environ").read_bytes().strip(b"\0") == b""
        assert server.client.get("/v1/models").status == 200  # the key itself still holds
        assert server.anonymous.get("/v1/models").status == 401
    finally:
        assert server.stop() == 0


def test_a_program_of_the_servers_own_still_has_its_environment(tmp_path: Path, upstream: Upstream) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, subprocess\nfrom ninelives import tool\n\n"
        "@tool(effect='read')\ndef mine() -> str:\n"
        "    '''What a child of this process has.'''\n"
        "    child = subprocess.run(['/usr/bin/env'], capture_output=True, text=True).stdout\n"
        "    return f\"{os.environ['MY_TOKEN']} {os.getenv('API_SERVER_KEY')} {'MY_TOKEN=x1' in child} \""
        " f\"{'API_SERVER_KEY' in child}\"\n"
    )
    root = f"{Path(__file__).parents[2]}:{tmp_path}"
    server = start_server(tmp_path, upstream.url, MY_TOKEN="x1", NINELIVES_TOOLS_MODULES="mine", PYTHONPATH=root)
    try:
        with server.client.stream(PATH, ask("[[tools=mine:{}]]", stream=True)) as stream:
            frames = [frame.data for frame in stream.rest() if frame.name]
        assert frames[-1]["output"] == "x1 None True False"
    finally:
        assert server.stop() == 0


def test_secrets_may_stand_in_files_and_in_credentials_of_systemd(tmp_path: Path) -> None:
    key = tmp_path / "api-key"
    key.write_text(f"{KEY}\n")
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "model.api_key").write_text(UPSTREAM_KEY)
    named = {"API_SERVER_KEY": "", "API_SERVER_KEY_FILE": str(key), "CREDENTIALS_DIRECTORY": str(credentials)}
    server = start_demo(tmp_path, **named)
    try:
        assert server.client.get("/v1/models").status == 200
        assert not (server.data / "key").exists()
    finally:
        assert server.stop() == 0
