"""What a look through a store is. Owns: the judge that comes along and the report that is made. Refuses to know:
stores, and what an event means."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.journal.base import Record

Judge = Callable[[str, Iterable[Record]], object]
"""Takes a run's records and raises Damaged where they make no sense."""


class Report(Struct):
    """What a look through a store found."""

    runs: int = 0
    entries: int = 0
    bytes: int = 0
    schema: int = 0
    problems: list[str] = []
