"""What comes before a run: long chains are read once, and what is kept is what the store would say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ninelives.core import codec
from ninelives.core.admission import Asked
from ninelives.core.events import AnyEvent, AttemptStarted, Entry, MessageCompleted, RunAccepted, RunCompleted
from ninelives.core.spec import Resolved, Spec
from ninelives.core.state import RunState, fold
from ninelives.engine.run import end_mark
from ninelives.journal.earlier import LONG_CHAIN, Earlier, earlier_messages
from ninelives.journal.memory.store import MemoryStore
from ninelives.journal.values import Opened, Opening, Record, Slice


class Counted(MemoryStore):
    """A store that counts how often turns are read."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.asked = 0

    async def turns(self, owner: str, resolved: Resolved) -> list[bytes]:
        self.asked += 1
        return await super().turns(owner, resolved)


async def said(store: MemoryStore, run: str, **joins: Any) -> RunState:
    """A run that has ended; it says its own name."""
    spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": f"say {run}"},))
    events: list[AnyEvent] = []

    def accept(resolved: Resolved) -> Sequence[bytes]:
        events[:] = [RunAccepted(spec=spec, resolved=resolved, owner="o"), AttemptStarted()]
        return [codec.encode(event) for event in events]

    fields: dict[str, Any] = {"run": run, "at": 1, "dialect": "responses", "model": "m", "holder": "h"}
    asked = Asked(owner="o", fingerprint="", fresh_conversation=f"conv_{run}", **joins)
    assert isinstance(await store.open(Opening(**fields, asked=asked, accept=accept)), Opened)  # type: ignore[arg-type]
    events += [MessageCompleted(run), RunCompleted()]
    state = fold(Entry(run, seq, 1, min(seq, 1), event) for seq, event in enumerate(events))
    records = [Record(seq, 1, 1, codec.encode(event)) for seq, event in enumerate(events)][2:]
    await store.append([Slice(run, 1, records, end_mark(state))])
    return state


async def chain(store: MemoryStore, turns: int, **joins: Any) -> RunState:
    """So many runs, each the next of the one before; the last."""
    state = await said(store, "r0", **joins)
    for n in range(1, turns):
        state = await said(store, f"r{n}", **(joins or {"previous": f"r{n - 1}"}))
    return state


async def test_a_long_chain_is_read_once_and_grows_by_itself() -> None:
    store = Counted()
    await chain(store, LONG_CHAIN)
    earlier, last = Earlier(store), f"r{LONG_CHAIN - 1}"
    for n in range(LONG_CHAIN, LONG_CHAIN + 3):
        follows = Resolved(previous=last)
        assert await earlier.messages("o", follows) == await earlier_messages(store, "o", follows)
        earlier.ended(await said(store, f"r{n}", previous=last))
        last = f"r{n}"
    assert store.asked == 1 + 3, "one for the first, and those of this test"
    assert [m["content"] for m in await earlier.messages("o", Resolved(previous=last))][-2:] == [f"say {last}", last]


async def test_a_branch_of_a_kept_chain_is_its_own() -> None:
    store = Counted()
    await chain(store, LONG_CHAIN)
    earlier, root = Earlier(store), f"r{LONG_CHAIN - 1}"
    await earlier.messages("o", Resolved(previous=root))
    for name in ("left", "right"):
        earlier.ended(await said(store, name, previous=root))
    for name in (root, "left", "right"):
        follows = Resolved(previous=name)
        assert await earlier.messages("o", follows) == await earlier_messages(store, "o", follows)


async def test_a_chain_is_its_owners_and_a_deleted_run_is_forgotten() -> None:
    store = Counted()
    await chain(store, LONG_CHAIN)
    earlier, follows = Earlier(store), Resolved(previous=f"r{LONG_CHAIN - 1}")
    await earlier.messages("o", follows)
    asked = store.asked
    earlier.forget("o", f"r{LONG_CHAIN - 1}")
    await earlier.messages("o", follows)
    assert store.asked == asked + 1
    kept = earlier._kept
    assert kept.get(("o", f"r{LONG_CHAIN - 1}")) and not kept.get(("stranger", f"r{LONG_CHAIN - 1}"))


async def test_short_chains_and_conversations_which_can_be_edited_are_read_each_time() -> None:
    store = Counted()
    state = await chain(store, LONG_CHAIN, conversation="talk")
    earlier, resolved = Earlier(store), state.facts.accepted.resolved
    assert resolved.conversation and resolved.previous
    for times in (1, 2):
        assert len(await earlier.messages("o", resolved)) == 2 * (LONG_CHAIN - 1)
        assert store.asked == times
    await said(store, "alone")
    for times in (3, 4):
        assert len(await earlier.messages("o", Resolved(previous="alone"))) == 2
        assert store.asked == times
