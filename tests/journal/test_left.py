"""How long a run waits for a caller who has left."""

from __future__ import annotations

from ninelives.core.admission import Asked
from ninelives.core.spec import Resolved
from ninelives.journal.memory.deliveries import wake_at
from ninelives.journal.memory.tables import MemoryRun
from ninelives.journal.sqlite.fences import Fence
from ninelives.journal.values import Mark, Opening

LEFT_AT, RESEND_MS = 1_000_000, 60_000
MARK = Mark(status="queued", at=LEFT_AT + 86_400_000, parked=True, left=True, wake_at=LEFT_AT)
"""Somebody set the clock of the machine a day ahead, so entries have that time."""


def test_a_run_that_was_left_waits_by_the_clock_that_nobody_sets() -> None:
    fence = Fence(owner="ann", n=1, attempt=1, seq=1, crc=0, parked=False, holder="p", resend_ms=RESEND_MS)
    after = fence.after_mark(MARK)
    assert after is not None and after.wake_at == LEFT_AT + RESEND_MS
    asked = Asked(owner="ann", fingerprint="f", resend_ms=RESEND_MS)
    opening = Opening(run="r", at=0, dialect="chat", model="m", asked=asked, accept=lambda _: [])
    run = MemoryRun("ann", opening, Resolved(), "running", 0, b"{}", [])
    assert wake_at(run, MARK) == LEFT_AT + RESEND_MS
