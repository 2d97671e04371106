"""The log in PostgreSQL. Owns: the form of a row (the records of one slice and a chained checksum), the lanes on which
slices are written, and the batches in which pages are read. Refuses to know: what a record means.

Theory of operation. A row of run_log is one slice. This process knows the end (attempt, number, checksum) of each run
that it holds, because only the holder writes (R3). A slice that does not follow the end is fenced without a query. One
statement decides the rest: the attempt must still hold the run, and the log must end where this process believes (R5).
The statement is its own transaction, so a process that stops at any moment keeps no lock. A batch that is not small is
divided between the lanes. The next batch comes when all have answered, so two slices of a run never overtake each
other. An append whose answer was lost is remembered. When the same slice comes again, it is compared with the row at
its place.

A database that failed over to a standby which was behind has lost rows. A run whose log ends too early is released, so
that it is claimed again from what is left. `told_seq` says how far its readers were shown; a reader that was shown more
than there is gets WentBack."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ninelives.core.errors import Damaged, WentBack
from ninelives.journal import queries
from ninelives.journal.postgres.connections import (
    Connection,
    Connections,
    in_transaction,
    retry_collisions,
    retry_while_away,
)
from ninelives.journal.postgres.listener import FOLLOWS, Followed, notify_payloads
from ninelives.journal.segments import origin
from ninelives.journal.values import PAGE_BYTES, Mark, Record, Slice, StoreUnavailable, Verdict

FEW_SLICES = 12
"""So few slices are parameters one by one. A list per column costs an append of four slices 25 µs of PostgreSQL's 240,
and this process 25 µs more."""
SLICE = ("text", "int", "bigint", "bigint", "bigint", "bigint", "bigint", "bytea", "bigint")
"""The types of the parameters of one slice, see _columns and LogRow."""


def append_statements(append: str) -> dict[int, str]:
    """The statement `append` for 1 to FEW_SLICES slices, and at 0 for a list per parameter."""
    lists = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(SLICE, 1))
    made = {0: append.replace("{slices}", f"unnest({lists})")}
    for count in range(1, FEW_SLICES + 1):
        each = [
            ", ".join(f"${row * len(SLICE) + n}::{kind}" for n, kind in enumerate(SLICE, 1)) for row in range(count)
        ]
        made[count] = append.replace("{slices}", f"(VALUES ({'), ('.join(each)}))")
    return made


SQL = queries.load("postgres", "log")
APPEND = append_statements(SQL.pop("append"))
_AUDIT = SQL.pop("audit")
AUDITED = {
    "append_contested": SQL["append_contested"] % _AUDIT.format(entries="$11", written="SELECT run FROM written"),
    "append_marked": SQL["append_marked"] % _AUDIT.format(entries="$28", written="SELECT id FROM m"),
}
"""Statements for slices that bring entries of the audit log."""
SQL |= {name: SQL[name] % "" for name in AUDITED}
READ_MS = 300_000
"""How long retention spares a run after a page of it was read that is not its last."""
TOLD = 4096
"""Of how many ended runs a process remembers the end."""
ONE_LANE = 64
"""A batch of so few records is not divided, because two commits cost nearly twice as much as one. Only slices with a
mark go on a lane of their own: their statement takes longer, and deltas need not wait for it."""
PAGES_AT_ONCE = 32
"""How many pages one statement reads."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]]).decode


class LogRow(Struct, frozen=True, gc=False):
    """A slice as the database stores it."""

    first: int
    last: int
    at: int
    before: int
    after: int
    data: bytes


class RunEnd(Struct, frozen=True):
    """The end of a run's log, and the attempt that holds the run."""

    attempt: int
    first: int
    """The first number of the last row. That row is looked up by its whole key: a search for the end of the log would
    compare all rows of the run on a page of the index."""
    seq: int
    crc: int
    size: int


def link(crc: int, first: int, last: int, data: bytes) -> int:
    """The checksum after a row, given the one before it. The chain shows rows that were changed, lost or swapped."""
    return zlib.crc32(data, (crc + first * 31 + last * 1_000_003) & 0xFFFFFFFF)


def _pack(records: Sequence[Record]) -> bytes:
    return _encode([(record.attempt, record.at, record.data) for record in records])


def packed(records: Sequence[Record], crc: int) -> LogRow:
    """Pack records into a row; `crc` is the checksum before them."""
    data = _pack(records)
    first, last = records[0].seq, records[-1].seq
    return LogRow(first, last, records[-1].at, crc, link(crc, first, last, data), data)


def unpacked(run: str, row: Any) -> list[Record]:
    """The records of a row. Raises Damaged where its checksum does not match."""
    first, last, data = row["first_seq"], row["last_seq"], row["data"]
    if link(row["crc_before"], first, last, data) != row["crc_after"]:
        raise Damaged(f"run {run}: the checksum of entries {first} to {last} does not match")
    try:
        records = [Record(first + n, *parts) for n, parts in enumerate(_decode(data))]
    except msgspec.DecodeError as error:
        raise Damaged(f"run {run}: entries {first} to {last} cannot be unpacked ({error})") from error
    if not records or records[-1].seq != last:
        raise Damaged(f"run {run}: entries {first} to {last} are incomplete")
    return records


class PostgresLog:
    """Writes and reads the log for one process. `ends` has the runs that it holds."""

    def __init__(self, connections: Connections, holder: str, followed: Followed) -> None:
        self._connections = connections
        self._holder = holder
        self._followed = followed
        self.ends: dict[str, RunEnd] = {}
        self._unconfirmed: set[tuple[str, int, int]] = set()
        """(run, attempt, first number) of slices whose answer was lost."""
        self._behind: set[str] = set()
        """Runs whose log was just found to have lost its end."""
        self._told: dict[str, tuple[int, int]] = {}
        """(attempt, last number) of runs that have ended here, or whose lease has. The database may lose their end."""
        self._wanted: dict[tuple[str, str, int, int], asyncio.Future[list[Record]]] = {}
        self._reading: asyncio.Task[None] | None = None

    def hold_run(self, run: str, end: RunEnd) -> None:
        """This process holds the run now. Lost answers of an earlier attempt do not matter any more."""
        self.ends[run] = end
        self._unconfirmed = {place for place in self._unconfirmed if place[0] != run}

    def forget_run(self, run: str) -> None:
        """The run was deleted."""
        self.ends.pop(run, None)

    def forget_runs(self) -> None:
        """The lease expired, and others may hold the runs now. A run that is still held here is looked up again."""
        self._told.update({run: (end.attempt, end.seq) for run, end in self.ends.items()})
        self.ends.clear()
        self._unconfirmed.clear()

    # Writing

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append. Several slices of one run are written one after the other. Where one lane fails, the
        caller retries all slices, so those that another lane has written are unconfirmed too."""
        try:
            return await self._append(slices)
        except StoreUnavailable:
            self._unconfirmed.update(_place(part) for part in slices)
            raise

    async def _append(self, slices: Sequence[Slice]) -> list[Verdict]:
        verdicts = [Verdict.FENCED] * len(slices)
        left = list(range(len(slices)))
        while left:
            now: dict[str, int] = {}
            for n in left:
                now.setdefault(slices[n].run, n)
            written = await self._on_lanes([slices[n] for n in now.values()])
            for run, n in now.items():
                if run in written:
                    verdicts[n] = Verdict.WRITTEN
                elif run in self._behind:
                    verdicts[n] = Verdict.BEHIND
                self._behind.discard(run)
            left = [n for n in left if now[slices[n].run] != n]
        return verdicts

    async def _on_lanes(self, parts: list[Slice]) -> set[str]:
        """The runs whose slice was written; `parts` has at most one slice of each run."""
        lanes: dict[int, list[Slice]] = {}
        few = sum(len(part.records) for part in parts) <= ONE_LANE
        for part in parts:
            lane = int(part.mark is not None) if few else hash(part.run)
            lanes.setdefault(lane % self._connections.lanes, []).append(part)
        if len(lanes) == 1:
            return await self._on_lane(*lanes.popitem())
        work = (self._on_lane(lane, mine) for lane, mine in lanes.items())
        done = await asyncio.gather(*work, return_exceptions=True)
        for outcome in done:  # only after all have ended: the retry would overtake a lane that is still writing
            if isinstance(outcome, BaseException):
                raise outcome
        return set().union(*(outcome for outcome in done if not isinstance(outcome, BaseException)))

    async def _on_lane(self, lane: int, parts: list[Slice]) -> set[str]:
        """The runs whose slice was written."""

        async def work(connection: Connection) -> tuple[dict[str, LogRow], set[str]]:
            await self._load_ends(connection, parts)
            fit = [part for part in parts if self._follows(part)]
            ends = {part.run: self.ends[part.run] for part in fit}
            rows = {part.run: packed(part.records, ends[part.run].crc) for part in fit if part.records}
            back = await self._return_ended(connection, parts)
            written = await self._add_confirmed(connection, parts, back)
            plain = [part for part in fit if part.mark is None and part.run not in written]
            marked = [part for part in fit if part.mark is not None and part.run not in written]
            if plain:
                written |= await self._append_plain(connection, plain, rows, ends)
            if marked:
                written |= await self._append_marked(connection, marked, rows, ends)
            written = await self._add_confirmed(connection, parts, written)
            behind = {part.run: (part.attempt, ends[part.run].seq) for part in fit if part.run not in written}
            await self._release_behind(connection, behind)
            return rows, written

        rows, written = await self._connections.on_lane(lane, work)
        self._update_ends(parts, rows, written)  # not before the commit; the next slice of the lane has not started yet
        return written

    async def _release_behind(self, connection: Connection, ends: dict[str, tuple[int, int]]) -> set[str]:
        """Release the runs of these (attempt, last number) whose log has lost its end. Others were fenced."""
        if not ends:
            return set()
        attempts, places = [list(column) for column in zip(*ends.values(), strict=True)]
        (payload, *_) = notify_payloads(self._holder, ["work", *ends])  # of very many, readers of the rest look again
        values = (list(ends), attempts, places, self._holder, payload)
        lost = {row["id"] for row in await connection.fetch(SQL["went_back"], *values)}
        self._behind |= lost
        return lost

    async def _return_ended(self, connection: Connection, parts: list[Slice]) -> set[str]:
        """The runs that are given back because nobody drives them, though this process has told of their end."""
        idle = [part for part in parts if not part.records and part.mark is not None and part.mark.parked]
        return await self._release_behind(
            connection,
            {p.run: self._told[p.run] for p in idle if p.run in self._told and self._told[p.run][0] >= p.attempt},
        )

    def _follows(self, part: Slice) -> bool:
        end = self.ends.get(part.run)
        if end is None or end.attempt != part.attempt:
            return False
        records = part.records
        return not records or (records[0].seq == end.seq + 1 and records[-1].seq == end.seq + len(records))

    async def _load_ends(self, connection: Connection, parts: list[Slice]) -> None:
        """Look up the ends that this process does not know."""
        unknown = {p.run: p.attempt for p in parts if p.run not in self.ends or self.ends[p.run].attempt != p.attempt}
        for row in await connection.fetch(SQL["ends"], list(unknown)) if unknown else ():
            if row["attempt"] == unknown[row["id"]]:
                self.ends[row["id"]] = RunEnd(*row[1:])

    async def _append_plain(
        self, connection: Connection, parts: list[Slice], rows: dict[str, LogRow], ends: dict[str, RunEnd]
    ) -> set[str]:
        full = [part for part in parts if part.records]
        empty = [part.run for part in parts if not part.records]
        written = await self._append_rows(connection, full, rows, ends) if full else set()
        if empty:
            written |= {row["id"] for row in await connection.fetch(SQL["ends"], empty)}
        return written

    async def _append_rows(
        self, connection: Connection, parts: list[Slice], rows: dict[str, LogRow], ends: dict[str, RunEnd]
    ) -> set[str]:
        columns = [*_columns(parts, rows), [ends[part.run].first for part in parts]]
        told = notify_payloads(self._holder, (part.run for part in parts if part.run in self._followed))
        if not told and not any([part.audit for part in parts]):
            with suppress(asyncpg.UniqueViolationError):  # a place is taken: see append_contested
                if len(parts) > FEW_SLICES:
                    return await _fetch_written(connection, APPEND[0], columns)
                return await _fetch_written(connection, APPEND[len(parts)], [*chain(*zip(*columns, strict=True))])
        return await _fetch_written(connection, *_with_audit("append_contested", [*columns, told], parts))

    async def _append_marked(
        self, connection: Connection, parts: list[Slice], rows: dict[str, LogRow], ends: dict[str, RunEnd]
    ) -> set[str]:
        filled = await _filled(parts)

        async def work() -> set[str] | None:
            marks = [_mark_values(part, part.mark, rows.get(part.run), ends[part.run]) for part in filled if part.mark]
            columns = _columns([part for part in parts if part.records], rows)
            known = [ends[part.run] for part in parts]
            values = [*map(list, zip(*marks, strict=True)), *columns, notify_payloads(self._holder, _topics(parts))]
            values += [[end.seq for end in known], [end.crc for end in known]]
            try:
                return await _fetch_written(connection, *_with_audit("append_marked", values, parts))
            except asyncpg.UniqueViolationError as error:
                if error.table_name == "run_log":
                    return None  # a place in the log is taken; a retry would not change that
                raise

        written = await retry_collisions(work)
        if written is not None:
            return written
        if len(parts) == 1:  # somebody else holds the run, or an earlier try wrote the slice
            return set()
        return {run for part in parts for run in await self._append_marked(connection, [part], rows, ends)}

    async def _add_confirmed(self, connection: Connection, parts: list[Slice], written: set[str]) -> set[str]:
        """`written`, and the runs whose unconfirmed slice was written by an earlier try. Called before the slices are
        written again and after: the earlier try may be committed in between."""
        unsure = [part for part in parts if part.run not in written and _place(part) in self._unconfirmed]
        full = [part for part in unsure if part.records]
        bare = [part for part in unsure if not part.records and part.mark is not None]
        if full:
            written = written | await _same_records(connection, full)
        if bare:
            written = written | await _same_marks(connection, bare)
        return written

    def _update_ends(self, parts: list[Slice], rows: dict[str, LogRow], written: set[str]) -> None:
        for part in parts:
            self._unconfirmed.discard(_place(part))
            end, row = self.ends.get(part.run), rows.get(part.run)
            if part.run not in written:
                if end is not None and row is not None:
                    del self.ends[part.run]  # somebody else holds the run, or it has ended
            elif part.mark is not None and (part.mark.ended or part.mark.parked):
                self._remember_end(part, self.ends.pop(part.run, None), row)
            elif end is not None and row is not None:
                self.ends[part.run] = RunEnd(part.attempt, row.first, row.last, row.after, end.size + len(row.data))

    def _remember_end(self, part: Slice, end: RunEnd | None, row: LogRow | None) -> None:
        if part.mark is None or not part.mark.ended or end is None:
            return
        self._told[part.run] = part.attempt, end.seq if row is None else row.last
        if len(self._told) > TOLD:
            del self._told[next(iter(self._told))]

    # Reading

    async def read(self, owner: str, run: str, after: int, seen: int = -1) -> list[Record]:
        """See Journal.read. Reads that arrive while a statement runs share the next one."""
        asked = (owner, run, after, seen)
        answer = self._wanted.get(asked)
        if answer is None:
            answer = self._wanted[asked] = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_all(), name="journal pages")
        return list(await asyncio.shield(answer))

    async def _read_all(self) -> None:
        while self._wanted:
            batch = dict(list(self._wanted.items())[:PAGES_AT_ONCE])
            for asked in batch:
                del self._wanted[asked]
            try:
                pages = await retry_while_away(lambda batch=batch: retry_collisions(lambda: self._pages(list(batch))))  # type: ignore[misc]
            except Exception as error:  # raised in every reader that waits for one of these pages
                pages = [error] * len(batch)
            for answer, page in zip(batch.values(), pages, strict=True):
                if answer.done():
                    continue
                if isinstance(page, BaseException):
                    answer.set_exception(page)
                    answer.exception()  # marks it as retrieved: a reader that left must cause no warning
                else:
                    answer.set_result(page)

    async def _pages(self, batch: list[tuple[str, str, int, int]]) -> list[list[Record] | Exception]:
        *columns, seen = [list(column) for column in zip(*batch, strict=True)]

        async def work(connection: Connection) -> list[list[Record] | Exception]:
            rows = await connection.fetch(SQL["pages"], *columns, PAGE_BYTES, seen)
            found: dict[int, list[Any]] = {i: list(some) for i, some in groupby(rows, key=lambda row: row["i"])}
            pages = [_page_or_error(asked, found.get(n, [])) for n, asked in enumerate(batch, 1)]
            unfinished = [
                asked[1] for n, asked in enumerate(batch, 1) if n in found and _goes_on(pages[n - 1], found[n][0])
            ]
            if unfinished:  # their readers come again, and retention of another process must spare them until then
                await connection.execute(SQL["being_read"], sorted(set(unfinished)), READ_MS)
            elsewhere = (batch[n - 1][1] for n, some in found.items() if not some[0]["ended"])
            follows = self._followed.to_tell(run for run in elsewhere if run not in self.ends)
            for payload in notify_payloads(self._holder, (FOLLOWS + run for run in follows)):
                await connection.execute(SQL["notify_all"], payload)
            return pages

        return await self._connections.once(work)


def _page_or_error(asked: tuple[str, str, int, int], rows: list[Any]) -> list[Record] | Exception:
    _, run, after, seen = asked
    if rows and seen >= 0 and not rows[0]["at_place"]:
        return WentBack(run, after)
    try:
        return _page(run, after, rows)
    except Damaged as error:
        return error


def _goes_on(page: list[Record] | Exception, row: Any) -> bool:
    """Whether a run has ended and has more than this page."""
    return bool(row["ended"] and isinstance(page, list) and page and page[-1].seq < row["least"])


def _page(run: str, after: int, rows: list[Any]) -> list[Record]:
    """The records after a place, about a page of them. Raises Damaged where there must be some and are none."""
    if not rows:
        return []
    page: list[Record] = []
    size = 0
    for record in _verified(run, rows if rows[0]["first_seq"] is not None else []):
        if record.seq > after and size <= PAGE_BYTES:
            page.append(record)
            size += len(record.data)
    if page and page[0].seq != after + 1:
        raise Damaged(f"run {run}: entry {after + 1} is missing")
    if not page and after < rows[0]["least"]:
        raise Damaged(f"run {run}: entry {after + 1} is missing, up to {rows[0]['least']} were written")
    return page


def _verified(run: str, rows: list[Any]) -> Iterator[Record]:
    """The records of rows that follow each other. Raises Damaged where the chain of checksums breaks."""
    crc = None
    for row in rows:
        expected = crc if row["first_seq"] else origin(run)
        if expected is not None and expected != row["crc_before"]:
            raise Damaged(f"run {run}: the checksum before entry {row['first_seq']} does not match")
        crc = row["crc_after"]
        yield from unpacked(run, row)


async def _fetch_written(connection: Connection, sql: str, values: Sequence[Any]) -> set[str]:
    """The runs that a statement has written."""
    if connection.is_in_transaction():  # behind a pooler: a collision must not abort the whole transaction
        found = await in_transaction(connection, lambda inner: inner.fetch(sql, *values))
    else:
        found = await connection.fetch(sql, *values)
    return {run for (run,) in found if run}


async def _same_records(connection: Connection, parts: list[Slice]) -> set[str]:
    """The runs whose log has the records of these slices at their place."""
    runs, places = [part.run for part in parts], [part.records[0].seq for part in parts]
    rows = {tuple(row) for row in await connection.fetch(SQL["written"], runs, places)}
    return {p.run for p in parts if (p.run, p.records[0].seq, p.attempt, _pack(p.records)) in rows}


async def _same_marks(connection: Connection, parts: list[Slice]) -> set[str]:
    """The runs whose row has the marks of these slices."""
    rows = {tuple(row) for row in await connection.fetch(SQL["marked"], [part.run for part in parts])}
    return {p.run for p in parts if p.mark and (p.run, p.attempt, p.mark.status, p.mark.at) in rows}


def _with_audit(name: str, values: list[Any], parts: list[Slice]) -> tuple[str, list[Any]]:
    """A statement and its parameters, with the entries of the audit log that the slices bring."""
    entries = [(part.run, entry) for part in parts for entry in part.audit]
    if not entries:
        return SQL[name], values
    rows = [{"run": run, "place": place, **asdict(entry)} for place, (run, entry) in enumerate(entries)]
    return AUDITED[name], [*values, msgspec.json.encode(rows).decode()]


def _place(part: Slice) -> tuple[str, int, int]:
    return part.run, part.attempt, part.records[0].seq if part.records else -1


def _topics(parts: list[Slice]) -> list[str]:
    work = ["work"] if any(part.mark and part.mark.parked for part in parts) else []
    return [part.run for part in parts] + work


async def _filled(parts: list[Slice]) -> list[Slice]:
    """The slices with their turns, which are encoded in a thread."""
    if not any(part.mark and part.mark.turns for part in parts):
        return parts
    marks = await asyncio.to_thread(lambda: [part.mark.filled() if part.mark else None for part in parts])
    return [replace(part, mark=mark) for part, mark in zip(parts, marks, strict=True)]


def _mark_values(part: Slice, mark: Mark, row: LogRow | None, end: RunEnd) -> tuple[Any, ...]:
    """The parameters of append_marked for one slice."""
    last, size = (row.last, end.size + len(row.data)) if row else (end.seq, end.size)
    return (
        part.run,
        part.attempt,
        mark.status,
        mark.at,
        mark.parked,
        mark.ended,
        mark.chains,
        mark.wake_at,
        last,
        size + len(mark.turn),
        mark.turn or None,
        mark.session,
        mark.void,
        mark.asks,
        mark.left,
        mark.said or None,
    )


def _columns(parts: list[Slice], rows: dict[str, LogRow]) -> list[list[Any]]:
    """The parameters of the append statements, one list per column."""
    chosen = [rows[part.run] for part in parts]
    return [
        [part.run for part in parts],
        [part.attempt for part in parts],
        [row.first for row in chosen],
        [row.last for row in chosen],
        [row.at for row in chosen],
        [row.before for row in chosen],
        [row.after for row in chosen],
        [row.data for row in chosen],
    ]
