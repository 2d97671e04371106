"""A reader with a terminal: one bash for a page, one server beside it. Owns: the environment that the README describes,
and starting the server again where a page kills it. Refuses to know: what a page says."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from ninelives.tools.sandbox.reaper import end_group
from tests.documents.stand_ins import put_stand_ins
from tests.story.server import wait_until

ROOT = Path(__file__).parents[2]
BLOCK_S = 90.0
# A timeout that the page itself asks for (--max-time) is no failure. An HTTP error is one.
PRELUDE = """\
curl() {{ command curl -sS --fail-with-body "$@" || {{ local code=$?; [ $code = 28 ] || return $code; }}; }}
DATA=~/.local/share/ninelives
URL=$(cat $DATA/address); KEY=$(cat $DATA/key); ADMIN_KEY=$KEY
AUTH="Authorization: Bearer $KEY"; JSON="Content-Type: application/json"
export OPENAI_BASE_URL=$URL/v1 OPENAI_API_KEY=$KEY
set -e
"""


class Reader:
    """Someone who has followed "Start" of the README, in a home of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / ".local/share/ninelives"
        self.folder = home / "work"
        (home / "bin").mkdir(parents=True)
        self.folder.mkdir()
        put_stand_ins(home / "bin")
        own = ("NINELIVES_", "API_SERVER_", "OPENAI_", "ANTHROPIC_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        path = f"{home / 'bin'}:{os.environ['PATH']}"
        self.env |= {"HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self.env["NINELIVES_MODEL_URL"] = "demo:"  # a model on this machine would answer in other words
        self.places: dict[str, str] = {}
        """What stands on a page -> what is meant here."""
        self._port, self._server = "0", None
        self.serve()

    @property
    def port(self) -> str:
        return (self.data / "address").read_text().strip().rpartition(":")[2]

    def serve(self, *flags: str) -> None:
        """Start the server, at the place where it was."""
        out = self.home / "server.out"
        with out.open("w") as stdout:
            command = ["ninelives", "serve", "--port", self._port, *flags]
            settings = {"NINELIVES_STORE_BALLAST_BYTES": "0", "NINELIVES_LIMITS_DRAIN_S": "3"}
            self._server = subprocess.Popen(
                command, cwd=self.folder, env=self.env | settings, stdout=stdout, stderr=stdout
            )
        wait_until(lambda: "Try it" in out.read_text(), f"the server of {self.home}: {out.read_text()}", 60, 0.05)
        self._port = self.port

    def stop(self) -> None:
        self._server.send_signal(signal.SIGTERM)
        self._server.wait(60)

    def as_here(self, text: str) -> str:
        """A text of a page with the places of this machine."""
        for there, here in {"127.0.0.1:8642": f"127.0.0.1:{self._port}", **self.places}.items():
            text = text.replace(there, here)
        return text


class Shell:
    """One bash that is given block after block."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._bash = subprocess.Popen(  # closed by close()
            ["bash", "--norc"],
            cwd=reader.folder,
            env=reader.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._leader = os.pidfd_open(self._bash.pid)
        self._lines: Queue[str | None] = Queue()
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        self.run(PRELUDE.format())

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, text: str) -> str:
        """What a block prints. Fails where a command fails."""
        assert self._bash.stdin is not None
        mark = f"end-of-block-{time.monotonic_ns()}"
        file = self._reader.home / "block.sh"  # a command that reads stdin must not read the next block
        file.write_text(self._reader.as_here(text))
        self._bash.stdin.write(f". {file} < /dev/null\necho; echo {mark}\n")
        self._bash.stdin.flush()
        said, until = "", time.monotonic() + BLOCK_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                raise AssertionError(f"not within {BLOCK_S:.0f} s:\n{text}\nsaid:\n{said}") from None
            assert line is not None, f"a command failed:\n{text}\nsaid:\n{said}"
            if line.startswith(mark):
                return said
            said += line

    def close(self) -> None:
        """End what the page left running."""
        end_group(self._leader, self._bash.pid)  # bash was not reaped yet: its group is still its own
        os.close(self._leader)
        self._bash.wait(10)
        self._reading.join(10)
        for pipe in (self._bash.stdin, self._bash.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
