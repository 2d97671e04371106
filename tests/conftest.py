"""For all tests: the slow ones first, and a canary. Owns: the order in which files are given to the workers (loadfile),
so that no worker is left alone with a long file at the end; after each file, a search for keys in the replies, folders
and databases of its tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from tests.canary import REPLIES, leaks

hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("new", derandomize=False)
hypothesis.settings.load_profile(os.environ.get("NINELIVES_EXAMPLES", "same"))
"""The same examples in every run; NINELIVES_EXAMPLES=new looks for others."""

SLOW = (
    *("documents", "engine/test_peers", "story/test_sent_again", "story/test_forgotten", "faults/test_disk"),
    *("schema", "terminal", "supervisor/test_kept_calls", "story/test_replicas", "supervisor", "crash/test_kill"),
    *("tools/test_mcp", "crash/test_every_append", "sim", "crash", "faults", "hostile", "story/test_slow_and_gone"),
    *("house", "cluster", "engine/test_lapse", "tools/test_process", "tools/test_sandbox", "test_", "golden"),
    *("story", "clients", "bench", "tools", "journal", "http"),
)
"""Files and directories, the longest first."""


def _place(item: pytest.Item) -> int:
    path = item.nodeid.removeprefix("tests/")
    return next((n for n, name in enumerate(SLOW) if path.startswith(name)), len(SLOW))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable: the order within a file is its own."""
    items.sort(key=_place)


_SEEN: set[str] = set()
REPLIES.watch()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The last test of a file fails where a server of its tests has answered, printed, logged or stored a key."""
    yield
    if nextitem is not None and nextitem.path == item.path:
        return
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    new = [path for path in factory.getbasetemp().iterdir() if path.name not in _SEEN and path.is_dir()]
    _SEEN.update(path.name for path in new)
    found = [leak for path in new if not path.is_symlink() for leak in leaks(path)]
    if pg := sys.modules.get("tests.pg"):
        found += pg.leaks()
    found += REPLIES.taken()
    assert not found, f"a key is where none may be: {found[:5]}"
