"""A terminal that a test can type into and look at. Owns: one tmux server per terminal, on a socket of its own. Refuses
to know: what runs in it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.story.server import KEY, ROOT, wait_until

WIDE, HIGH = 100, 40


class Terminal:
    """A tmux window. The last screen is kept in a file."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / f"tmux-{secrets.token_hex(4)}"  # a tmux that ends may still hold the socket of before
        self._screen = folder / "screen.txt"

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    def run(self, command: str, env: dict[str, str]) -> None:
        """Start a command. The screen stays after its end."""
        sets = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        size = ["-x", str(WIDE), "-y", str(HIGH)]
        self._tmux("new-session", "-d", *size, *sets, f"{command}; echo exit code $?; exec sleep 600")

    def type(self, *keys: str) -> None:
        """Press keys: text, or names such as Enter and C-c."""
        self._tmux("send-keys", *keys)

    def screen(self) -> str:
        """All lines, those that scrolled away too."""
        shown = self._tmux("capture-pane", "-pJ", "-S", "-500")
        self._screen.write_text(shown)
        return shown

    def see(self, text: str) -> str:
        """Wait until a text is on the screen."""
        wait_until(lambda: text in self.screen(), f"{text!r} on the screen of {self._screen}", 60, 0.05)
        return self.screen()

    def close(self) -> None:
        """End what runs in it."""
        self._tmux("kill-server")


@contextmanager
def terminal(folder: Path, command: str, data: Path) -> Iterator[Terminal]:
    """A terminal in which `ninelives COMMAND` runs, with its own home."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (apt-get install tmux)")
    folder.mkdir(parents=True, exist_ok=True)
    made = Terminal(folder)
    env = {"HOME": str(folder), "API_SERVER_KEY": KEY, "NINELIVES_SERVER_DATA_DIR": str(data)}
    made.run(f"{sys.executable} -m ninelives {command}", env | {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"})
    try:
        yield made
    finally:
        made.close()
