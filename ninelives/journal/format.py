"""The format of stored events, as each store writes it down. Owns: refusing a store whose events are newer than this
release (R18). Refuses to know: what an event is, and where a store keeps the number."""

from __future__ import annotations

from ninelives.core.codec import FORMAT
from ninelives.core.errors import Damaged
from ninelives.journal.values import NewerStore

WRITTEN = str(FORMAT)
"""What a store writes down before this release adds events to it."""


def refuse_newer_format(found: str | None) -> None:
    """Raise NewerStore if this release cannot read all events of the store. A store of 0.1.0 may have no number: its
    format is 1."""
    if found is not None and not found.isdecimal():
        raise Damaged(f"the format of its events is {found[:40]!r}, which is no number")
    if int(found or 1) > FORMAT:
        raise NewerStore(
            f"the events in the store have format {found}, this release reads formats up to {FORMAT}. Use the newer "
            "ninelives that wrote them, or restore a backup from before the upgrade. Nothing was changed."
        )
