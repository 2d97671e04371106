"""`ninelives serve --uds PATH`: requests, commands and restarts over a Unix socket, and who its clients are."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import stat
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.story.server import KEY, ROOT, _said, _start, signal_process, wait_until
from tests.story.test_tls import environment

pytestmark = pytest.mark.xdist_group("processes")


class UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(str(self.path))


def ask(path: Path, url: str, body: object = None, **headers: str) -> tuple[int, bytes]:
    sent = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(UnixConnection(path)) as connection:
        connection.request("GET" if body is None else "POST", url, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    where, env = tmp_path / "s", environment(tmp_path) | {"NINELIVES_SERVER_TRUSTED_PROXIES": "unix,10.0.0.0/8"}
    args = ["-m", "ninelives", "serve", "--uds", str(where), "--data-dir", str(tmp_path / "data")]
    process = _start(args, env | {"NINELIVES_SERVER_KEEP_CLIENTS": "true"}, tmp_path, "server")
    try:
        assert _said(process, r"listening on unix:(\S+)") == str(where)
        assert '"level":"warning","event":"clients_not_kept"' in process.err.read_text(), "the user asked for it"
        assert stat.S_IMODE(where.stat().st_mode) == 0o660
        chat = {"stream": True, "messages": [{"role": "user", "content": "hello"}]}
        status, body = ask(where, "/v1/chat/completions", chat, host="agents.example.org")
        assert status == 200 and body.endswith(b"data: [DONE]\n\n")
        status, body = ask(
            where, "/api/keys", {"name": "a", "owner": "ann"}, x_forwarded_for="1.1.1.1, 2.2.2.2, 10.0.0.9"
        )
        assert status in (200, 201), body
        wait_until(
            lambda: b'"remote":"2.2.2.2"' in ask(where, "/api/audit?action=key")[1].replace(b" ", b""), "the entry"
        )

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "ninelives", *words]
            named = env | {"NINELIVES_SERVER_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}
            return subprocess.run(command, env=named, capture_output=True, text=True, timeout=60)

        assert run("status").returncode == 0, "the data directory names the socket"
        assert "ok" in run("status", "--url", f"unix:{where}").stdout
        again = run("serve", "--uds", str(where), "--data-dir", str(tmp_path / "other"))
        assert again.returncode == 1 and "Address already in use" in again.stderr and "--uds" in again.stderr
        first = (tmp_path / "data/lock").read_text()
        signal_process(int(first), signal.SIGKILL)
        wait_until(lambda: (tmp_path / "data/lock").read_text() not in ("", first), "the next server")
        assert ask(where, "/health")[0] == 200
    finally:
        assert process.stop() == 0
    process = _start(args, env, tmp_path, "server")
    try:
        assert _said(process, r"listening on unix:(\S+)") == str(where), "a socket of a server that is gone is replaced"
    finally:
        assert process.stop() == 0
