"""Noticing that the code of an agent changed (`ninelives serve --reload`). Owns: which files are watched, and when a
change is told. Refuses to know: what follows from it.

Theory of operation. Watched are the Python files in the folders of all modules that are loaded and that are neither
installed nor part of Python or of this package, and the configuration file. A thread reads their times of change. A
change is told when two looks in a row see the same, so that a file is not read while an editor writes it."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

POLL_S = 0.25
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = ("stdlib", "platstdlib", "purelib", "platlib")
_FOREIGN = tuple({*(sysconfig.get_path(name) for name in _PYTHON), str(Path(__file__).parents[1])})
Times = dict[str, dict[str, int]]
"""Folders, and in each the times of its files."""


class CodeWatch:
    """Calls `on_change` with the name of a file that changed, in a thread of its own."""

    def __init__(self, on_change: Callable[[str], None], config: Path | None = None) -> None:
        self._on_change = on_change
        self._config = config
        self._told = self._seen = self._look()

    def start(self) -> None:
        """Watch until the process ends."""
        Thread(target=self._watch, name="code watch", daemon=True).start()

    def folders(self) -> list[str]:
        """What is watched."""
        return sorted(self._told)

    def look(self) -> None:
        """Look once."""
        seen = self._look()
        settled, self._seen = seen == self._seen, seen
        if settled and (changed := _changed(self._told, seen)):
            self._on_change(changed)
        if settled:
            self._told = seen

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            self.look()

    def _look(self) -> Times:
        times: Times = {folder: dict(_times(folder)) for folder in set(own_folders())}
        if self._config is not None:
            times[str(self._config)] = dict(_time(str(self._config)))
        return times


def own_folders() -> Iterator[str]:
    """The folders of loaded modules that are the user's own."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            path = os.path.abspath(file)
            if not path.startswith(_FOREIGN) and not any(part in path for part in _INSTALLED):
                yield os.path.dirname(path)


def _times(folder: str) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(folder) as found:
            names = [entry.path for entry in found if entry.name.endswith(".py")]
    except OSError:
        return
    for name in names:
        yield from _time(name)


def _time(path: str) -> Iterator[tuple[str, int]]:
    try:
        yield path, os.stat(path).st_mtime_ns
    except OSError:
        return  # it was deleted meanwhile


def _changed(before: Times, now: Times) -> str:
    """A file that differs in a folder that was known before: one that is seen for the first time did not change."""
    for folder in before.keys() & now.keys():
        if differing := before[folder].items() ^ now[folder].items():
            return os.path.basename(min(differing)[0])
    return ""
