"""What the audit log says of calls: in the transaction of their results, or before the next step of a run in memory."""

from __future__ import annotations

from collections.abc import Sequence

from ninelives.journal.accounts.base import AuditEntry, AuditQuery
from ninelives.journal.accounts.trail import NoTrail
from ninelives.testing.playbook import asked, said
from tests.engine.peers import OWNER, House, order

CALL = [asked(("note", '{"n": 1}')), said("done")]


class Trail(NoTrail):
    """Keeps what it is told."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._noted: list[AuditEntry] = []
        self.kept: list[tuple[AuditEntry, int]] = []
        """Each with how often the model had been asked."""

    def note(self, entry: AuditEntry) -> None:
        """See Trail.note."""
        self._noted.append(entry)

    async def keep(self, entries: Sequence[AuditEntry]) -> None:
        """See Trail.keep."""
        self.kept += [(entry, len(self._house.asked)) for entry in (*self._noted, *entries)]
        self._noted.clear()


async def test_an_entry_of_a_stored_run_is_committed_with_the_result_once(house: House) -> None:
    """Also where the answer of the store is lost."""
    house.books["go"] = CALL
    house.audit = trail = Trail(house)
    engine = await house.engine()
    store = house.valves[0]._store
    entries: list[list[AuditEntry]] = []
    append = store.append

    async def noted(slices: object) -> object:
        verdicts = await append(slices)
        entries.append(await store.audit.page(AuditQuery()))
        if entries[-1] and not entries[-2]:
            house.valves[0].unanswered.add("noted")
        return verdicts

    store.append = noted
    ticket = await engine.submit(order("go"))
    state = await engine.wait(OWNER, ticket.run)
    assert state is not None and state.status == "completed"
    assert [(e.action, e.detail, e.result, e.owner) for e in entries[-1]] == [("tool.execute", "note", "ok", OWNER)]
    assert entries[-1][0].object.endswith(ticket.run) and entries[-1][0].at > 0
    assert trail.kept == [] and not house.valves[0].unanswered


async def test_an_entry_of_a_run_in_memory_is_kept_before_its_next_step(house: House) -> None:
    house.books["go"] = CALL
    house.audit = trail = Trail(house)
    engine = await house.engine()
    ticket = await engine.submit(order("go", kept="memory"))
    state = await engine.wait(OWNER, ticket.run)
    assert state is not None and state.status == "completed"
    assert [(e.action, e.detail, e.result, asks) for e, asks in trail.kept] == [("tool.execute", "note", "ok", 1)]
    assert await house.valves[0]._store.audit.page(AuditQuery()) == []
