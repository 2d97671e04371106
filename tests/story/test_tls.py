"""TLS by the server itself: a certificate that is made here, a real request, and errors for wrong files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from ninelives.http.edge.tls import Certificate
from tests.story.server import KEY, ROOT, _said, _start, signal_process, wait_until

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


def serial_of(port: int) -> str:
    """The certificate that a new connection is shown."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_a_renewed_certificate_is_used_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    files, (newer, its_key) = certificate(tmp_path, "own"), certificate(tmp_path, "newer")
    cert, lines = Certificate(*map(str, files)), Lines()
    port, stop = serve_tls(cert.context)
    try:
        first = serial_of(port)
        cert.renew(lines)
        assert lines.names == [] and serial_of(port) == first, "nothing has changed"
        files[0].write_bytes(newer.read_bytes())
        cert.renew(lines)
        assert lines.names == ["tls_not_renewed"] and serial_of(port) == first, "the key is still the old one"
        files[1].write_bytes(its_key.read_bytes())
        cert.renew(lines)
        assert lines.names[1:] == ["tls_renewed"] and serial_of(port) == newer.read_text()
        files[0].unlink()
        cert.renew(lines)
        assert lines.names[2:] == ["tls_not_renewed"] and serial_of(port) == newer.read_text()
    finally:
        stop()


class Lines:
    """A log that keeps the names of its lines."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def info(self, name: str, **fields: object) -> None:
        self.names.append(name)

    warning = error = info


def serve_tls(context: ssl.SSLContext) -> tuple[int, Callable[[], None]]:
    """A listener that only shakes hands."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with listener, contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()

    def stop() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()

    return listener.getsockname()[1], stop


def health(port: int, trust: ssl.SSLContext) -> int:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"https://127.0.0.1:{port}/health", timeout=60, context=trust) as answer,
    ):
        return int(answer.status)
    return 0


def test_under_the_supervisor_a_killed_server_and_sighup_keep_tls(tmp_path: Path) -> None:
    files, (newer, its_key) = certificate(tmp_path, "own"), certificate(tmp_path, "newer")
    args = ["-m", "ninelives", "serve", "--port", "0", "--data-dir", str(tmp_path / "data")]
    args += ["--tls-cert", str(files[0]), "--tls-key", str(files[1])]
    process = _start(args, environment(tmp_path), tmp_path, "server")
    try:
        port = int(_said(process, r"listening on https://127[.]0[.]0[.]1:([0-9]+)"))
        told = re.search(r'"level":"(\w+)","event":"clients_not_kept"', process.err.read_text())
        assert told is not None and told[1] == "info", "nobody asked for keep_clients"
        trust = ssl.create_default_context(cafile=str(files[0]))
        first = (tmp_path / "data/lock").read_text()
        signal_process(int(first), signal.SIGKILL)
        wait_until(
            lambda: health(port, trust) == 200 and (tmp_path / "data/lock").read_text() not in ("", first), "a server"
        )
        files[0].write_bytes(newer.read_bytes())
        files[1].write_bytes(its_key.read_bytes())
        process.child.send_signal(signal.SIGHUP)
        wait_until(lambda: serial_of(port) == newer.read_text(), "the new certificate")
        assert health(port, ssl.create_default_context(cafile=str(newer))) == 200
    finally:
        assert process.stop() == 0
