"""TLS by the server itself: a certificate that is made here, a real request, and errors for wrong files."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.story.server import KEY, ROOT, _said, _start

pytestmark = pytest.mark.xdist_group("processes")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*new, "-keyout", key, "-out", cert, *named], check=True, capture_output=True)
    return cert, key


def environment(folder: Path) -> dict[str, str]:
    own = ("NINELIVES_", "API_SERVER_", "OPENAI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return env | {"API_SERVER_KEY": KEY, "PYTHONPATH": str(ROOT), "HOME": str(folder)}


def test_a_server_with_a_certificate_answers_and_streams_over_https(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "own")
    args = ["-m", "ninelives", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    process = _start([*args, "--tls-cert", str(cert), "--tls-key", str(key)], environment(tmp_path), tmp_path, "server")
    try:
        url = f"https://127.0.0.1:{_said(process, r'listening on https://127[.]0[.]0[.]1:([0-9]+)')}"
        trust = ssl.create_default_context(cafile=str(cert))
        body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(asked, timeout=60, context=trust) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")
        wrong = urllib.request.Request(f"{url}/v1/models", headers={"authorization": "Bearer wrong-key-0123456789"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(wrong, timeout=60, context=trust)
    finally:
        assert process.stop() == 0


def test_wrong_tls_files_are_named(tmp_path: Path) -> None:
    (cert, key), (_, other) = certificate(tmp_path, "own"), certificate(tmp_path, "other")
    (tmp_path / "text.pem").write_text("no certificate")
    for files, words in (
        (["--tls-cert", str(cert)], "belong together"),
        (["--tls-cert", str(tmp_path / "gone.pem"), "--tls-key", str(key)], "gone.pem cannot be read"),
        (["--tls-cert", str(cert), "--tls-key", str(other)], "does not belong to the certificate"),
        (["--tls-cert", str(tmp_path / "text.pem"), "--tls-key", str(key)], "as PEM"),
    ):
        command = [
            sys.executable,
            "-m",
            "ninelives",
            "serve",
            "--port",
            "0",
            "--data-dir",
            str(tmp_path / "data"),
            *files,
        ]
        done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and words in done.stderr, done.stderr
