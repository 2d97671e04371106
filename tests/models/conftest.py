"""What the tests of the models share: the look for what they left open."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_litter() -> Iterator[None]:
    """A socket or transport that was left open is told in the file that left it."""
    yield
    gc.collect()
