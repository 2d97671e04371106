"""A smoke test of an installed server. Owns: starting `ninelives serve`, asking for a chat, a response and the pages,
and checking the store afterwards. Uses the standard library only, so it can test any environment:
`python lab/smoke.py VENV/bin/ninelives`. Refuses to know: how the server was installed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path

START_S = 60.0
KEY = "smoke-key-0123456789abcdef"


class SmokeError(Exception):
    """A check failed."""


class Smoke:
    """One server with the demo model in a new data directory."""

    def __init__(self, command: str, folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("NINELIVES_", "OPENAI_"))},
            "HOME": str(folder),
            "API_SERVER_KEY": KEY,
        }
        self._port = 0

    def run(self) -> list[str]:
        """All checks, with what each took. Raises SmokeError."""
        began = time.monotonic()
        log = self._folder / "serve.log"
        with log.open("wb") as out:
            flags = ["serve", "--port", "0", "--data-dir", str(self._folder / "data")]
            server = subprocess.Popen([self._command, *flags], env=self._env, stdout=out, stderr=out, cwd=self._folder)
        try:
            self._wait(server, log)
            done = [f"started in {time.monotonic() - began:.1f} s"]
            for check in (self._chat, self._stream, self._response, self._websocket, self._pages):
                done.append(check())
        finally:
            server.terminate()
            code = server.wait(30)
        if code != 0:
            raise SmokeError(f"the server ended with {code}: {log.read_text()[-500:]}")
        return [*done, "stopped with exit code 0", self._store()]

    def _wait(self, server: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_S
        while (found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", log.read_text())) is None:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SmokeError(f"the server did not start: {log.read_text()[-800:]}")
            time.sleep(0.05)
        self._port = int(found[1])

    def _ask(self, path: str, body: object = None) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def _expect(self, path: str, wanted: str, body: object = None) -> str:
        status, text = self._ask(path, body)
        if status != 200 or wanted not in text:
            raise SmokeError(f"{path} answered {status} without {wanted!r}: {text[:500]}")
        return text

    def _chat(self) -> str:
        body = {"model": "hermes-agent", "messages": [{"role": "user", "content": "hello"}]}
        answer = json.loads(self._expect("/v1/chat/completions", '"choices"', body))
        return f"chat: {len(answer['choices'][0]['message']['content'])} characters"

    def _stream(self) -> str:
        body = {"model": "hermes-agent", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        return f"streamed chat: {self._expect('/v1/chat/completions', 'data: [DONE]', body).count('data: ')} frames"

    def _response(self) -> str:
        answer = json.loads(self._expect("/v1/responses", '"completed"', {"input": "hello"}))
        self._expect(f"/v1/responses/{answer['id']}", '"completed"')
        return f"response: {answer['status']}"

    def _websocket(self) -> str:
        head = (
            f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: Bearer {KEY}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: c21va2UtdGVzdC0wMTIzNA==\r\n\r\n"
        )
        ask = json.dumps({"type": "response.create", "input": "hello"}).encode()
        frame = bytes((0x81, 0x80 | len(ask), 0, 0, 0, 0)) + ask  # one text frame; a mask of zeros changes nothing
        with socket.create_connection(("127.0.0.1", self._port), timeout=30) as line:
            line.sendall(head.encode())
            got = _read_until(line, b"\r\n\r\n")
            line.sendall(frame)
            got += _read_until(line, b'"response.completed"')
        if not got.startswith(b"HTTP/1.1 101") or b'"response.completed"' not in got:
            raise SmokeError(f"the websocket answered {got[:300]!r}")
        return f"websocket: {len(got)} bytes up to response.completed"

    def _pages(self) -> str:
        pages = {"/health": "ok", "/openapi.json": "openapi", "/docs": "<html", "/v1/models": "data"}
        pages |= {"/": "/static/page.js", "/static/page.js": "./api.js", "/static/page.css": "--page"}
        for path, wanted in pages.items():
            self._expect(path, wanted)
        return "/health, /openapi.json, /docs, /v1/models and the web page: 200"

    def _store(self) -> str:
        checking = [self._command, "store", "check", "--data-dir", str(self._folder / "data")]
        checked = subprocess.run(checking, env=self._env, capture_output=True, text=True, timeout=60, check=False)
        if checked.returncode != 0:
            raise SmokeError(f"store check ended with {checked.returncode}: {checked.stdout}{checked.stderr}")
        return checked.stdout.strip()


def _read_until(line: socket.socket, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got and (piece := line.recv(65536)):
        got += piece
    return got


def main(command: str) -> int:
    """Print what was checked. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="ninelives-smoke-") as folder:
        try:
            for line in Smoke(command, Path(folder)).run():
                print(f"  ok   {line}")
        except (SmokeError, OSError) as error:
            print(f"  FAIL {error!r}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).absolute())))
