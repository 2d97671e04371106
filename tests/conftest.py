"""For all tests: the slow ones first. Owns: the order in which files are given to the workers (loadfile), so that no
worker is left alone with a long file at the end."""

from __future__ import annotations

import os

import hypothesis
import pytest

hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("new", derandomize=False)
hypothesis.settings.load_profile(os.environ.get("NINELIVES_EXAMPLES", "same"))
"""The same examples in every run; NINELIVES_EXAMPLES=new looks for others."""

SLOW = (
    *("crash/test_kill", "story/test_sent_again", "tools/test_mcp", "crash/test_every_append", "story/test_replicas"),
    *("engine/test_peers", "cluster", "crash", "faults", "schema", "sim", "tools/test_process", "tools/test_sandbox"),
    *("hostile", "story", "clients", "bench", "journal", "tools"),
)
"""Files and directories, the longest first."""


def _place(item: pytest.Item) -> int:
    path = item.nodeid.removeprefix("tests/")
    return next((n for n, name in enumerate(SLOW) if path.startswith(name)), len(SLOW))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable: the order within a file is its own."""
    items.sort(key=_place)
