"""How long a newcomer needs from a clone to the first answer. Owns: the steps of "Start" in README.md, in a fresh clone
and a fresh home, with git, make and Python only, and their times. Refuses to know: how any step works.

python -m lab.newcomer [CHECKOUT]    exit code 1 after more than LIMIT_S"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 60.0
STEP_S = 600.0


def main(source: str) -> int:
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        home, clone = Path(folder), Path(folder) / "ninelives"
        env = {"HOME": folder, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        given = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
        env |= {name: text for name, text in os.environ.items() if name.upper().startswith(given)}
        begun = time.monotonic()
        subprocess.run(["git", "clone", "-q", source, str(clone)], env=env, check=True, timeout=STEP_S)
        print(f"{time.monotonic() - begun:6.1f} s  git clone", flush=True)
        with (home / "out").open("w") as out:
            command = ["make", "serve", "ARGS=--port 0"]
            server = subprocess.Popen(command, cwd=clone, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            _listening(server, home / "out", begun)
            print(f"{time.monotonic() - begun:6.1f} s  make serve listens", flush=True)
            asked = [str(clone / ".venv/bin/ninelives"), "ask", "hello"]
            answer = subprocess.run(
                asked, env=env, check=True, capture_output=True, text=True, timeout=STEP_S, stdin=subprocess.DEVNULL
            )
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)
        took = time.monotonic() - begun
        print(f"{took:6.1f} s  the first answer: {answer.stdout[:60]!r}\n")
        print((home / "out").read_text())
    return int(took > LIMIT_S or not answer.stdout)


def _listening(server: subprocess.Popen[bytes], out: Path, begun: float) -> None:
    while "Try it" not in out.read_text():
        if server.poll() is not None or time.monotonic() - begun > STEP_S:
            raise SystemExit(f"make serve did not start:\n{out.read_text()}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
