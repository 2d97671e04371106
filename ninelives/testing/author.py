"""A writer for contract tests. Owns: short methods for what an engine does to a store (open, write, end, park, claim),
with the sequence numbers and attempts that a holder would use. Refuses to know: any one backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from unittest import SkipTest

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.journal.base import Store
from ninelives.journal.values import Attached, Claim, Mark, Opened, Opening, Record, Signal, Slice, Verdict
from ninelives.testing.clock import VirtualClock


class Backend(NamedTuple):
    """What the fixture of a contract suite gives: a fresh store that takes its time from `clock`."""

    store: Store
    clock: VirtualClock
    lease_s: float = 15.0
    leases: bool = True
    """False: a claim lasts until it is given back or the process ends."""
    other: Store | None = None
    """The store as another process sees it. None if only one process can use it."""
    restart: Callable[[], Awaitable[Backend]] | None = None
    """Ends the process without notice. The next one, with another name, opens the store; claims of the old one are
    free."""

    async def reborn(self) -> Backend:
        """The store as the next process sees it."""
        if self.restart is None:
            raise SkipTest("the fixture cannot restart the store")
        return await self.restart()


def need_leases(backend: Backend) -> None:
    """Skip the test if the claims of this store have no leases."""
    if not backend.leases:
        raise SkipTest("a claim lasts as long as its process")


def need_processes(backend: Backend) -> Backend:
    """The backend of another process. Skips the test if only one process can use the store."""
    if backend.other is None:
        raise SkipTest("one process has the store to itself")
    return backend._replace(store=backend.other, other=backend.store)


def started(attempt: int, clean: bool, lost: int = 0) -> bytes:
    """What the claims of an Author write."""
    return b"started %d %s" % (attempt, b"clean" if clean else b"unclean")


class Author:
    """One owner's runs on one store, written by one holder."""

    def __init__(self, backend: Backend, owner: str = "ann", holder: str = "h1") -> None:
        self.store = backend.store
        self.clock = backend.clock
        self.owner = owner
        self.holder = holder
        self.seqs: dict[str, int] = {}
        self.attempts: dict[str, int] = {}

    def asked(self, **fields: Any) -> Asked:
        """A question of this owner."""
        return Asked(**{"owner": self.owner, "fingerprint": "f1", **fields})

    def opening(self, run: str, *, held: bool = True, dialect: str = "responses", **fields: Any) -> Opening:
        """A run that wants to begin; `fields` are those of Asked."""
        asked = self.asked(**{"fresh_conversation": f"conv_{run}", **fields})
        first = [b"accepted " + run.encode()] + ([started(1, True)] if held else [])
        return Opening(
            run=run,
            at=self.clock.now_ms(),
            dialect=dialect,
            model="m",
            asked=asked,
            accept=lambda resolved: first,
            holder=self.holder if held else None,
        )

    async def open(self, run: str, *, held: bool = True, **fields: Any) -> Opened:
        """Open a run that must be accepted."""
        opened = await self.store.open(self.opening(run, held=held, **fields))
        assert isinstance(opened, Opened), opened
        self.seqs[run], self.attempts[run] = len(opened.records) - 1, int(held)
        return opened

    async def attach(self, run: str, **fields: Any) -> str:
        """Open a run whose key must be known; the run behind it."""
        attached = await self.store.open(self.opening(run, **fields))
        assert isinstance(attached, Attached), attached
        return attached.run

    def records(self, run: str, *data: bytes) -> list[Record]:
        """The next records of a run."""
        first, attempt, at = self.seqs[run] + 1, self.attempts[run], self.clock.now_ms()
        return [Record(first + n, attempt, at, item) for n, item in enumerate(data)]

    def slice(self, run: str, *data: bytes, mark: Mark | None = None) -> Slice:
        """The next slice of a run."""
        return Slice(run, self.attempts[run], self.records(run, *data), mark)

    async def write(self, run: str, *data: bytes, mark: Mark | None = None) -> Verdict:
        """Append to a run."""
        (verdict,) = await self.store.append([self.slice(run, *data, mark=mark)])
        if verdict is Verdict.WRITTEN:
            self.seqs[run] += len(data)
        return verdict

    async def end(
        self, run: str, *, chains: bool = True, turn: bytes = b"", session: str = "", said: bytes = b""
    ) -> Verdict:
        """End a run: completed where it chains, failed else."""
        status = "completed" if chains else "failed"
        turn = (turn or b'["%s"]' % run.encode()) if chains else b""
        mark = Mark(
            status=status,
            at=self.clock.now_ms(),
            ended=True,
            chains=chains,
            turn=turn,
            session=session,
            said=said,
            void=not chains,
        )
        return await self.write(run, b"ended", mark=mark)

    async def finished(self, run: str, **fields: Any) -> Opened:
        """Open a run and complete it."""
        opened = await self.open(run, **fields)
        remembered = (opened.resolved.session or "") if opened.resolved.remember else ""
        assert await self.end(run, session=remembered) is Verdict.WRITTEN
        return opened

    async def park(self, run: str, *data: bytes, **fields: Any) -> Verdict:
        """Give the claim back cleanly; `fields` are those of Mark."""
        return await self.write(run, *data, mark=Mark(status="queued", at=self.clock.now_ms(), parked=True, **fields))

    async def ask(self, run: str, code: str, wake_at: int) -> Verdict:
        """Ask a person, and keep the claim."""
        mark = Mark(status="waiting", at=self.clock.now_ms(), asks=code, wake_at=wake_at)
        return await self.write(run, b"asked", mark=mark)

    async def lose(self, run: str) -> None:
        """The connection of the waiting caller is lost now."""
        await self.store.deliveries.lost(self.owner, run, self.clock.now_ms())

    async def answer(self, *runs: str) -> None:
        """All that there is of these runs was delivered."""
        await self.store.deliveries.answered([(self.owner, run) for run in runs])

    async def approve(self, run: str, code: str) -> bool:
        """A person answers a question."""
        return await self.store.signal(self.owner, Signal(run, "approval", code, b"yes"))

    async def claim(self, run: str) -> Claim | None:
        """Try to take a run."""
        claim = await self.store.claim(run, self.holder, started, self.clock.now_ms())
        if claim is not None:
            self.seqs[run], self.attempts[run] = claim.record.seq, claim.attempt
        return claim

    async def read(self, run: str, after: int = -1) -> list[Record]:
        """All records after a place, page by page."""
        records: list[Record] = []
        while page := await self.store.read(self.owner, run, after):
            records += page
            after = page[-1].seq
        return records

    async def data(self, run: str, after: int = -1) -> list[bytes]:
        """The data of all records after a place; fails where their numbers have a gap."""
        records = await self.read(run, after)
        assert [record.seq for record in records] == list(range(after + 1, after + 1 + len(records)))
        return [record.data for record in records]

    async def cancel(self, run: str, key: str = "cancel") -> bool:
        """Leave a wish for the holder."""
        return await self.store.signal(self.owner, Signal(run, "cancel", key))

    async def status(self, run: str) -> str | None:
        """The status in the catalog, None where there is no such run."""
        row = await self.store.find(self.owner, run)
        return row.status if row else None

    async def claimable(self) -> list[str]:
        """The runs that wait to be claimed."""
        return [run for _, run in await self.store.claimable(1_000, self.clock.now_ms())]


async def refusal(work: Awaitable[object]) -> ClientError:
    """The error with which a call was refused; fails where it was not."""
    try:
        answer = await work
    except ClientError as error:
        return error
    raise AssertionError(f"not refused: {answer!r}")
