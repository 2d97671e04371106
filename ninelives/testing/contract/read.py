"""Contract: what a reader and a holder see. Owns: the rules of Journal.read, Journal.signal and Pending.signals. See
contract.py."""

from __future__ import annotations

import asyncio

from ninelives.journal.values import MAX_GRANTS, PAGE_BYTES, Grant, Signal, Verdict
from ninelives.testing.author import Author, Backend


class ReadContract:
    """Pages and wishes."""

    async def test_a_read_begins_after_any_place(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.write("r1", *(b"%d" % n for n in range(2, 20)))
        whole = await ann.read("r1")
        assert [record.seq for record in whole] == list(range(20))
        for after in range(-1, 20):
            assert await ann.read("r1", after) == whole[after + 1 :]

    async def test_a_read_after_the_end_is_empty(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await backend.store.read("ann", "r1", 1) == []
        assert await backend.store.read("ann", "r1", 999) == []
        assert await backend.store.read("ann", "nobody", -1) == []

    async def test_a_long_run_is_read_in_pages(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        data = [b"%06d" % n + b"x" * 4_000 for n in range(300)]
        for start in range(0, 300, 50):
            await ann.write("r1", *data[start : start + 50])
        seen: list[bytes] = []
        pages, after = 0, 1
        while page := await backend.store.read("ann", "r1", after):
            assert page[0].seq == after + 1
            assert sum(len(record.data) for record in page) <= PAGE_BYTES + 4_006
            seen += [record.data for record in page]
            after = page[-1].seq
            pages += 1
        assert seen == data
        assert pages >= 4

    async def test_a_record_longer_than_a_page_is_read_whole(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        data = [b"a", b"x" * (3 * PAGE_BYTES), b"b"]
        await ann.write("r1", *data)
        assert await ann.data("r1", after=1) == data
        assert await ann.data("r1", after=2) == data[1:]

    async def test_reads_while_others_write_never_see_a_gap(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")

        async def follow() -> list[bytes]:
            seen: list[bytes] = []
            after = -1
            while not seen or seen[-1] != b"ended":
                page = await backend.store.read("ann", "r1", after)
                assert [record.seq for record in page] == list(range(after + 1, after + 1 + len(page)))
                seen += [record.data for record in page]
                after += len(page)
                await asyncio.sleep(0)
            return seen

        async def write() -> None:
            for n in range(100):
                assert await ann.write("r1", b"%d" % n) is Verdict.WRITTEN
            await ann.end("r1")

        async with asyncio.timeout(20):
            *followers, _ = await asyncio.gather(follow(), follow(), follow(), write())
        assert followers[0] == followers[1] == followers[2]
        assert followers[0][2:] == [b"%d" % n for n in range(100)] + [b"ended"]

    # signals

    async def test_a_signal_waits_for_the_holder(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1", held=False)
        wish = Signal("r1", "cancel", "k", b"payload")
        assert await backend.store.signal("ann", wish)
        assert await backend.store.signals("r1") == [wish]
        await ann.claim("r1")
        assert await backend.store.signals("r1") == [wish]

    async def test_the_same_signal_is_kept_once(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert await backend.store.signal("ann", Signal("r1", "cancel", "k", b"first"))
        assert await backend.store.signal("ann", Signal("r1", "cancel", "k", b"second"))
        assert await backend.store.signal("ann", Signal("r1", "cancel", "l"))
        assert await backend.store.signal("ann", Signal("r1", "approval", "k", b"other"))
        kept = sorted((signal.kind, signal.key, signal.payload) for signal in await backend.store.signals("r1"))
        assert kept == [("approval", "k", b"other"), ("cancel", "k", b"first"), ("cancel", "l", b"")]

    async def test_many_signals_at_once_are_kept_once(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        assert all(await asyncio.gather(*(ann.cancel("r1") for _ in range(20))))
        assert len(await backend.store.signals("r1")) == 1

    async def test_signals_are_gone_at_the_end(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.open("r2")
        await ann.cancel("r1")
        await ann.cancel("r2")
        await ann.end("r1")
        assert await backend.store.signals("r1") == []
        assert len(await backend.store.signals("r2")) == 1

    async def test_steers_stay_until_the_run_goes(self, backend: Backend) -> None:
        ann, store = Author(backend), backend.store
        await ann.open("r1")
        steers = [Signal("r1", "steer", f"{n:06d}", b"%d" % n) for n in range(3)]
        for steer in (*reversed(steers), steers[0]):
            assert await store.signal("ann", steer)
        await ann.cancel("r1")
        await ann.end("r1")
        assert await store.signals("r1") == steers
        assert not await store.signal("ann", Signal("r1", "steer", "000003"))
        assert await store.delete("ann", "r1")
        assert await store.signals("r1") == []

    async def test_a_run_that_ended_or_never_was_takes_no_signal(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.finished("r1")
        assert not await ann.cancel("r1")
        assert not await ann.cancel("nobody")
        assert await backend.store.signals("r1") == []

    async def test_a_grant_is_found_by_its_id_until_it_is_revoked(self, backend: Backend) -> None:
        store = backend.store
        first = Grant("ann", "g1", "s", "terminal", '{"command":"ä \\"x\\""}', 1_700_000_000_000, "key 1")
        second = Grant("ann", "g2", "", "write_file", "{}", 1_700_000_000_001, "key 2")
        for grant in (first, first, second):
            await store.grant(grant)
        assert await store.grants("ann") == [second, first]
        assert await store.granted("ann", ["g0", "g1"]) and await store.granted("ann", ["g2"])
        assert not await store.granted("ann", ["g0"]) and not await store.granted("ann", [])
        assert await store.revoke("ann", "g1")
        assert not await store.revoke("ann", "g1")
        assert not await store.granted("ann", ["g1"]) and await store.grants("ann") == [second]

    async def test_an_owner_keeps_the_newest_grants(self, backend: Backend) -> None:
        store = backend.store
        for n in range(MAX_GRANTS + 2):
            await store.grant(Grant("ann", f"g{n}", "", "t", "{}", n, "key 1"))
        kept = await store.grants("ann")
        assert len(kept) == MAX_GRANTS and kept[0].id == f"g{MAX_GRANTS + 1}" and kept[-1].id == "g2"

    async def test_parking_keeps_the_signals(self, backend: Backend) -> None:
        ann = Author(backend)
        await ann.open("r1")
        await ann.cancel("r1")
        await ann.park("r1")
        assert len(await backend.store.signals("r1")) == 1
