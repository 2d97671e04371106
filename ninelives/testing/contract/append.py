"""Contract: how a run goes on and ends. Owns: the rules of Journal.append, its verdicts and marks. See contract.py."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from ninelives.core.spec import Resolved
from ninelives.journal.accounts.base import AuditEntry, AuditQuery
from ninelives.journal.values import Mark, Record, Slice, Verdict
from ninelives.testing.author import Author, Backend, refusal

WRITTEN, FENCED = Verdict.WRITTEN, Verdict.FENCED


class AppendContract:
    """Slices, verdicts, marks."""

    async def test_records_come_back_as_they_were_written(self, backend: Backend) -> None:
        ann = Author(backend)
        opened = await ann.open("r1")
        backend.clock.advance(2)
        records = ann.records("r1", b"a", b"b", b"c")
        assert await backend.store.append([Slice("r1", 1, records)]) == [WRITTEN]
        assert await ann.read("r1") == opened.records + records

    async def test_data_is_any_bytes(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        data = [b"", b"\n", b"a\nb 1 2 3\n\n", b"\0", bytes(range(256)), b" ", "é€😀".encode(), b"x" * 100_000]
        assert await ann.write("r1", *data) is WRITTEN
        assert await ann.data("r1", after=1) == data

    async def test_any_number_of_records_is_one_slice(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        expected: list[bytes] = []
        for count in (1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 5000):
            data = [b"%d of %d" % (n, count) for n in range(count)]
            assert await ann.write("r1", *data) is WRITTEN
            expected += data
        assert await ann.data("r1", after=1) == expected

    async def test_slices_of_many_runs_are_one_append(self, backend: Backend) -> None:
        ann = Author(backend)
        runs = [f"r{n}" for n in range(50)]
        for run in runs:
            await ann.open(run)
        slices = [ann.slice(run, *(b"%d %d" % (n, k) for k in range(n))) for n, run in enumerate(runs)]
        assert await backend.store.append(slices) == [WRITTEN] * 50
        for n, run in enumerate(runs):
            assert await ann.data(run, after=1) == [b"%d %d" % (n, k) for k in range(n)]

    async def test_two_slices_of_one_run_follow_each_other(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        first = ann.slice("r1", b"a")
        second = Slice("r1", 1, [Record(3, 1, 0, b"b")])
        assert await backend.store.append([first, second, second]) == [WRITTEN, WRITTEN, FENCED]
        assert await ann.data("r1", after=1) == [b"a", b"b"]

    async def test_an_empty_append_is_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await backend.store.append([]) == []
        assert await backend.store.append([Slice("r1", 1, [])]) == [WRITTEN]
        assert await ann.write("r1", b"a") is WRITTEN

    async def test_entries_of_the_audit_log_are_written_with_their_slice_or_not_at_all(self, backend: Backend) -> None:
        ann = Author(backend)
        for run in ("r1", "r2", "r3", "r4"):
            await ann.open(run)
        await ann.park("r4")

        def part(run: str, *details: str, mark: Mark | None = None) -> Slice:
            entry = AuditEntry(owner="ann", key="k", action="tool.execute", object=run, result="ok", at=7)
            audit = tuple(replace(entry, detail=each, id=each) for each in details)
            return replace(ann.slice(run, b"x", mark=mark), audit=audit)

        ended = Mark(status="completed", at=1, ended=True)
        slices = [part("r1", "a", "b"), part("r2", "c", mark=ended), part("r4", "never"), ann.slice("r3", b"x")]
        assert await backend.store.append(slices) == [WRITTEN, WRITTEN, FENCED, WRITTEN]
        ann.seqs["r1"] += 1
        assert await backend.store.append([part("r1", "a", "d"), part("r2", "never")]) == [WRITTEN, FENCED]
        found = await backend.store.audit.page(AuditQuery())
        shown = sorted((each.detail, each.object, each.owner, each.key, each.result, each.at) for each in found)
        wrote = {"a": "r1", "b": "r1", "c": "r2", "d": "r1"}
        assert shown == [(detail, run, "ann", "k", "ok", 7) for detail, run in wrote.items()]
        assert len({each.n for each in found}) == 4

    async def test_one_fenced_slice_never_fails_another(self, backend: Backend) -> None:
        ann = Author(backend)
        for run in ("r1", "r2", "r3"):
            await ann.open(run)
        slices = [ann.slice("r1", b"a"), replace(ann.slice("r2", b"bad"), attempt=9), ann.slice("r3", b"c")]
        assert await backend.store.append(slices) == [WRITTEN, FENCED, WRITTEN]
        assert [await ann.data(run, after=1) for run in ("r1", "r2", "r3")] == [[b"a"], [], [b"c"]]

    async def test_a_wrong_attempt_is_fenced(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        for attempt in (0, 2):
            assert await backend.store.append([replace(ann.slice("r1", b"x"), attempt=attempt)]) == [FENCED]
        assert await ann.data("r1", after=1) == []

    async def test_a_wrong_number_is_fenced(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.write("r1", b"a")
        for seq in (0, 1, 2, 4, 99):
            assert await backend.store.append([Slice("r1", 1, [Record(seq, 1, 0, b"x")])]) == [FENCED]
        assert await ann.data("r1", after=1) == [b"a"]

    async def test_the_same_slice_twice_is_written_once(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        part = ann.slice("r1", b"a")
        verdicts = await asyncio.gather(*(backend.store.append([part]) for _ in range(10)))
        assert sorted(verdict.value for (verdict,) in verdicts) == ["fenced"] * 9 + ["written"]
        assert await ann.data("r1", after=1) == [b"a"]

    async def test_a_run_that_ended_is_fenced(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        assert await ann.write("r1", b"late") is FENCED
        assert await ann.end("r1", chains=False) is FENCED
        assert (await ann.data("r1"))[-1] == b"ended"
        assert await ann.status("r1") == "completed"

    async def test_a_run_that_nobody_holds_is_fenced(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("queued", held=False)
        await ann.open("parked")
        await ann.park("parked")
        assert await ann.write("queued", b"x") is FENCED
        assert await ann.write("parked", b"x") is FENCED

    async def test_an_unknown_run_is_fenced(self, backend: Backend) -> None:
        assert await backend.store.append([Slice("nobody", 1, [Record(0, 1, 0, b"x")])]) == [FENCED]
        assert await backend.store.append([Slice("nobody", 0, [])]) == [FENCED]

    async def test_the_mark_of_a_fenced_slice_does_nothing(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk", session="s")
        ann.attempts["r1"] = 2
        assert await ann.end("r1", session="s") is FENCED
        assert await ann.park("r1") is FENCED
        assert await ann.status("r1") == "running"
        assert await ann.claimable() == []
        assert (await refusal(ann.open("r2", conversation="talk"))).status == 409
        assert (await backend.store.resolve(ann.asked(session="s", kept="memory"))).session_turns == 0

    # marks

    async def test_a_plain_mark_changes_the_status_and_keeps_the_claim(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        backend.clock.advance(3)
        assert await ann.write("r1", b"a", mark=Mark(status="waiting", at=1_003_000)) is WRITTEN
        row = await backend.store.find("ann", "r1")
        assert row is not None
        assert (row.status, row.ended, row.updated_at, row.last_seq) == ("waiting", False, 1_003_000, 2)
        assert await ann.claimable() == []
        assert await ann.write("r1", b"b") is WRITTEN

    async def test_parking_gives_the_claim_back(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk")
        assert await ann.park("r1", b"a") is WRITTEN
        assert await ann.status("r1") == "queued"
        assert await ann.claimable() == ["r1"]
        assert (await refusal(ann.open("r2", conversation="talk"))).status == 409

    async def test_parking_needs_no_record(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await ann.park("r1") is WRITTEN
        claim = await ann.claim("r1")
        assert claim is not None and claim.record.seq == 2

    async def test_an_end_needs_no_record(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await ann.write("r1", mark=Mark(status="failed", at=0, ended=True)) is WRITTEN
        assert await ann.claim("r1") is None
        assert len(await ann.data("r1")) == 2

    async def test_an_end_frees_the_conversation_and_becomes_its_latest(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk")
        assert await ann.end("r1") is WRITTEN
        assert await ann.status("r1") == "completed"
        assert (await ann.open("r2", conversation="talk")).resolved.previous == "r1"

    async def test_an_end_that_does_not_chain_keeps_the_latest(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", conversation="talk")
        await ann.open("r2", conversation="talk")
        await ann.end("r2", chains=False)
        assert (await ann.open("r3", conversation="talk")).resolved.previous == "r1"

    async def test_an_end_gives_its_turn_to_the_session_that_is_named(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1", session="s")
        await ann.finished("r2", session="s")
        turns = await backend.store.turns("ann", Resolved(session="s", session_turns=2))
        assert turns == [b'["r1"]', b'["r2"]']

    async def test_a_session_gets_the_turn_without_the_history_that_a_chain_gets(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", session="s", history_given=True)
        await ann.end("r1", session="s", turn=b'["given","r1"]', said=b'["r1"]')
        assert await backend.store.turns("ann", Resolved(session="s", session_turns=1)) == [b'["r1"]']
        assert await backend.store.turns("ann", Resolved(previous="r1")) == [b'["given","r1"]']

    async def test_the_row_of_an_ended_run_tells_its_end(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.write("r1", b"a", b"b")
        backend.clock.advance(1)
        await ann.end("r1")
        row = await backend.store.find("ann", "r1")
        assert row is not None
        assert (row.ended, row.last_seq, row.updated_at) == (True, 4, 1_001_000)

    async def test_an_end_and_a_fenced_end_in_one_append(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", conversation="talk")
        first = ann.slice("r1", b"end", mark=Mark(status="completed", at=0, ended=True, chains=True, turn=b"[1]"))
        late = Slice("r1", 1, [Record(3, 1, 0, b"late")], Mark(status="failed", at=0, ended=True))
        assert await backend.store.append([first, late]) == [WRITTEN, FENCED]
        assert await ann.status("r1") == "completed"
        assert (await ann.open("r2", conversation="talk")).resolved.previous == "r1"
