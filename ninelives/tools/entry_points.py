"""What installed packages offer. Owns: the entry points of this environment, read once: that takes 2 ms, and five parts
of a server ask at its start. Refuses to know: what the groups are for."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points_of(group: str) -> list[EntryPoint]:
    """The entry points of a group, by name."""
    return sorted(_found(tuple(sys.path)).select(group=group), key=lambda point: point.name)


@cache
def _found(path: tuple[str, ...]) -> Any:  # Any: its type changed in Python 3.12
    from importlib.metadata import entry_points  # slow to import, and the decorator of tools does not need it

    return entry_points()


def forget_entry_points() -> None:
    """Read them anew when they are asked for next."""
    _found.cache_clear()
