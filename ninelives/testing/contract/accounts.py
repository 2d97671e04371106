"""Contract: API keys and the audit log. Owns: the rules of Keys and AuditLog. See contract.py."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ninelives.journal.accounts.base import ENDED_MS, AuditEntry, AuditQuery, KeyLimits, KeyRow
from ninelives.testing.author import Backend, need_processes


def key_row(name: str, **fields: Any) -> KeyRow:
    """A key."""
    given = {"digest": name.encode().ljust(32, b"."), "owner": "ann", "name": f"key {name}", "scopes": ("chat",)}
    return KeyRow(id=name, **{**given, **fields})


FULL = key_row(
    "full",
    scopes=("chat", "tools:approve"),
    profile="p",
    models=("p", "a b"),
    limits=KeyLimits(runs=3, money_per_day=0.5),
    acts_for="optional",
    expires_at=9_000,
    created_by="boss",
    created_at=1_000,
)


class KeyContract:
    """Keys are added, changed and found; a change names the version that it replaces."""

    async def test_a_key_is_found_as_it_was_stored(self, backend: Backend) -> None:
        keys = backend.store.keys
        assert await keys.add(FULL)
        found = await keys.find("full")
        assert found is not None
        assert replace(found, version=0) == FULL
        assert await keys.find("nobody") is None
        assert await keys.count() == 1

    async def test_an_id_is_given_once(self, backend: Backend) -> None:
        keys = backend.store.keys
        assert await keys.add(key_row("a"))
        assert not await keys.add(key_row("a", digest=b"!" * 32, owner="bob"))
        found = await keys.find("a")
        assert found is not None and found.owner == "ann"

    async def test_a_change_needs_the_version_that_was_read(self, backend: Backend) -> None:
        keys = backend.store.keys
        await keys.add(key_row("a", created_at=5))
        first = await keys.find("a")
        assert first is not None
        assert await keys.replace(replace(first, revoked_at=7, name="new", digest=b"?" * 32, created_at=6))
        assert not await keys.replace(replace(first, revoked_at=0))
        second = await keys.find("a")
        assert second is not None and second.version > first.version
        assert (second.revoked_at, second.name, second.digest, second.created_at) == (7, "new", first.digest, 5)

    async def test_a_change_and_its_audit_entry_are_both_written_or_none(self, backend: Backend) -> None:
        keys, audit = backend.store.keys, backend.store.audit

        async def noted() -> list[str]:
            return [each.action for each in await audit.page(AuditQuery(newest=False))]

        assert await keys.add(key_row("a"), entry(1, action="key.create", id="1"))
        assert not await keys.add(key_row("a", digest=b"!" * 32), entry(2, action="key.create", id="2"))
        (row,) = await keys.since(-1)
        assert await keys.replace(replace(row, name="new"), entry(3, action="key.change", id="3"))
        assert not await keys.replace(replace(row, name="newer"), entry(4, action="key.change", id="4"))
        assert await noted() == ["key.create", "key.change"]

    async def test_a_key_that_replaces_another_is_added_while_that_one_is_unchanged(self, backend: Backend) -> None:
        keys, audit = backend.store.keys, backend.store.audit
        await keys.add(key_row("old"))
        (old,) = await keys.since(-1)
        rotated = entry(1, action="key.rotate", id="1")
        assert await keys.replace(replace(old, name="changed"))
        assert not await keys.add(key_row("new"), rotated, replace(old, revoked_at=7))
        assert await keys.find("new") is None and await audit.page(AuditQuery()) == []
        (now,) = await keys.since(-1)
        assert await keys.add(key_row("new"), rotated, replace(now, revoked_at=7))
        assert {row.id: row.revoked_at for row in await keys.since(-1)} == {"old": 7, "new": 0}
        assert [each.action for each in await audit.page(AuditQuery())] == ["key.rotate"]

    async def test_the_changes_since_a_version_are_told_in_order(self, backend: Backend) -> None:
        keys = backend.store.keys
        for name in "abc":
            await keys.add(key_row(name))
        every = await keys.since(-1)
        assert [row.id for row in every] == ["a", "b", "c"]
        assert await keys.since(every[-1].version) == []
        await keys.replace(replace(every[0], revoked_at=1))
        assert [(row.id, row.revoked_at) for row in await keys.since(every[-1].version)] == [("a", 1)]

    async def test_another_process_sees_a_change(self, backend: Backend) -> None:
        other = need_processes(backend).store.keys
        await backend.store.keys.add(key_row("a"))
        (row,) = await other.since(-1)
        await backend.store.keys.replace(replace(row, revoked_at=4))
        assert [each.revoked_at for each in await other.since(row.version)] == [4]

    async def test_a_use_is_no_change_and_never_goes_back(self, backend: Backend) -> None:
        keys = backend.store.keys
        await keys.add(key_row("a"))
        (row,) = await keys.since(-1)
        await keys.used({"a": 60_000, "nobody": 1})
        await keys.used({"a": 50_000})
        assert await keys.since(row.version) == []
        assert await keys.find("a") == replace(row, last_used_at=60_000)

    async def test_pages_of_keys_are_newest_first_and_meet(self, backend: Backend) -> None:
        keys = backend.store.keys
        for n, name in enumerate("abcde"):
            await keys.add(key_row(name, created_at=n // 2))
        seen: list[str] = []
        while page := await keys.page(2, seen[-1] if seen else ""):
            seen += [row.id for row in page]
        assert seen == ["e", "d", "c", "b", "a"]
        assert await keys.page(2, "nobody") == []

    async def test_keys_that_ended_long_ago_are_deleted(self, backend: Backend) -> None:
        keys, later = backend.store.keys, ENDED_MS + 100
        for name, times in {
            "old": {"revoked_at": 50},
            "expired": {"expires_at": 60},
            "young": {"revoked_at": 200},
        }.items():
            await keys.add(key_row(name, **times))
        await keys.add(key_row("new", created_at=later))
        assert {row.id for row in await keys.since(-1)} == {"young", "new"}


def entry(at: int, **fields: Any) -> AuditEntry:
    """An entry of the audit log."""
    given = {"owner": "ann", "key": "k1", "action": "run.approve", "object": f"run_{at}", "result": "ok"}
    return AuditEntry(at=at, **{**given, **fields})


class AuditContract:
    """Entries come in order, can be searched, and go by age and number."""

    async def test_entries_are_told_as_they_were_written(self, backend: Backend) -> None:
        audit = backend.store.audit
        written = [entry(1, remote="127.0.0.1", detail="terminal"), entry(2, owner="bob", key="", result="denied")]
        await audit.add(written)
        shown = await audit.page(AuditQuery())
        assert [replace(each, n=0) for each in shown] == written[::-1]
        assert shown[0].n > shown[1].n > 0
        assert await audit.page(AuditQuery(newest=False)) == shown[::-1]

    async def test_an_entry_that_is_added_again_is_there_once(self, backend: Backend) -> None:
        audit = backend.store.audit
        await audit.add([entry(1, id="a"), entry(2), entry(3, id="c")])
        await audit.add([entry(1, id="a"), entry(2), entry(4, id="d"), entry(4, id="d"), entry(3, id="c")])
        shown = await audit.page(AuditQuery(newest=False))
        assert [each.at for each in shown] == [1, 2, 3, 2, 4], "those without an id are not compared"

    async def test_pages_of_the_audit_log_meet_in_both_orders(self, backend: Backend) -> None:
        audit = backend.store.audit
        await audit.add([entry(n) for n in range(7)])
        up: list[int] = []
        down: list[int] = []
        last = first = 0
        while page := await audit.page(AuditQuery(limit=3, after=last, newest=False)):
            up, last = up + [each.at for each in page], page[-1].n
        while page := await audit.page(AuditQuery(limit=3, before=first)):
            down, first = down + [each.at for each in page], page[-1].n
        assert (up, down) == (list(range(7)), list(range(6, -1, -1)))

    async def test_the_audit_log_is_searched_by_owner_key_action_and_object(self, backend: Backend) -> None:
        audit = backend.store.audit
        await audit.add([entry(1), entry(2, owner="bob"), entry(3, key="k2"), entry(4, action="run.approver")])
        await audit.add([entry(5, action="run"), entry(6, action="key.create")])

        async def found(**fields: Any) -> list[int]:
            return sorted(each.at for each in await audit.page(AuditQuery(**fields)))

        assert await found(owner="bob") == [2]
        assert await found(key="k2") == [3]
        assert await found(object="run_4") == [4]
        assert await found(action="run.approve") == [1, 2, 3]
        assert await found(action="run") == [1, 2, 3, 4, 5]
        assert await found(action="r_n") == []

    async def test_old_entries_go_and_numbers_are_never_given_again(self, backend: Backend) -> None:
        audit = backend.store.audit
        await audit.add([entry(n) for n in range(10)])
        last = (await audit.page(AuditQuery(limit=1)))[0].n
        assert await audit.trim(4, 100) == 4
        assert await audit.trim(0, 2) == 4
        assert [each.at for each in await audit.page(AuditQuery())] == [9, 8]
        assert await audit.trim(100, 100) == 2
        await audit.add([entry(50)])
        (only,) = await audit.page(AuditQuery())
        assert only.n > last
