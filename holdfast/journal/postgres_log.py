"""The log in PostgreSQL. Owns: the form of a row (the records of one slice and a chained checksum), the lanes on which
slices are written, and the batches in which they are read. Refuses to know: what a record means.

Theory of operation. A row of run_log is one slice. The end of each run that this process holds is known in memory
(attempt, number, checksum), because only the holder writes: a slice that does not follow it is fenced without a
question. The database decides the rest in one statement: the attempt must still hold the run, and the place must be
free. The statement is a transaction of its own, so a process that is stopped at any moment holds no lock. Each run
goes over one lane: two slices of a run never overtake each other. An append whose answer was lost is remembered; when
the same slice comes again and its place is taken, the row there is compared with it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct

from holdfast.core.errors import Damaged
from holdfast.journal import queries
from holdfast.journal.base import PAGE_BYTES, Mark, Record, Slice, StoreUnavailable, Verdict
from holdfast.journal.postgres_lines import Line, Lines, collided, settled, within
from holdfast.journal.segments import origin

SQL = queries.load("postgres_log.sql")
NOTE_BYTES = 7_000
"""A NOTIFY carries less than 8,000 bytes."""
READ_MS = 300_000
"""So long after a page of it was read a run that goes on is not taken by retention."""
TOGETHER = 32
"""How many pages are read by one statement."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]]).decode


class Row(Struct, frozen=True, gc=False):
    """A slice as it is stored."""

    first: int
    last: int
    at: int
    before: int
    after: int
    data: bytes


class End(Struct, frozen=True):
    """How far a run is written, by the attempt that holds it."""

    attempt: int
    seq: int
    crc: int
    size: int


def link(crc: int, first: int, last: int, data: bytes) -> int:
    """The checksum after a row, given the one before it: nothing can be changed, lost or swapped unnoticed."""
    return zlib.crc32(data, (crc + first * 31 + last * 1_000_003) & 0xFFFFFFFF)


def packed(records: Sequence[Record], crc: int) -> Row:
    """Records as a row; `crc` is the checksum before them."""
    data = _encode([(record.attempt, record.at, record.data) for record in records])
    first, last = records[0].seq, records[-1].seq
    return Row(first, last, records[-1].at, crc, link(crc, first, last, data), data)


def unpacked(run: str, row: Any) -> list[Record]:
    """The records of a row; Damaged where its checksum does not hold."""
    first, last, data = row["first_seq"], row["last_seq"], row["data"]
    if link(row["crc_before"], first, last, data) != row["crc_after"]:
        raise Damaged(f"run {run}: the checksum of entries {first} to {last} does not hold")
    try:
        records = [Record(first + n, *parts) for n, parts in enumerate(_decode(data))]
    except msgspec.DecodeError as error:
        raise Damaged(f"run {run}: entries {first} to {last} cannot be unpacked ({error})") from error
    if not records or records[-1].seq != last:
        raise Damaged(f"run {run}: entries {first} to {last} are not whole")
    return records


def notes(holder: str, topics: Iterable[str]) -> list[str]:
    """The payloads that tell other processes of these topics."""
    payloads, line = [], holder
    for topic in topics:
        if len(line) + len(topic) + 1 > NOTE_BYTES:
            payloads.append(line)
            line = holder
        line += " " + topic
    return [*payloads, line] if line != holder else payloads


class Log:
    """Writes and reads the log of a process. `ends` knows the runs that it holds."""

    def __init__(self, lines: Lines, holder: str) -> None:
        self._lines = lines
        self._holder = holder
        self.ends: dict[str, End] = {}
        self._doubts: set[tuple[str, int, int]] = set()
        """(run, attempt, first number) of slices whose writing was never answered."""
        self._wanted: dict[tuple[str, str, int], asyncio.Future[list[Record]]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def append(self, slices: Sequence[Slice]) -> list[Verdict]:
        """See Journal.append. Slices of one run that come together are written one after the other. Where one lane
        fails, all slices will come again: those that another lane has written are in doubt then as well."""
        try:
            return await self._append(slices)
        except StoreUnavailable:
            self._doubts.update(_place(part) for part in slices)
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
                verdicts[n] = Verdict.WRITTEN if run in written else Verdict.FENCED
            left = [n for n in left if now[slices[n].run] != n]
        return verdicts

    async def _on_lanes(self, parts: list[Slice]) -> set[str]:
        """The runs whose slice was written; at most one slice of each run."""
        lanes: dict[int, list[Slice]] = {}
        for part in parts:
            lanes.setdefault(self._lines.lane_of(part.run), []).append(part)
        if len(lanes) == 1:
            return await self._on_lane(*lanes.popitem())
        work = (self._on_lane(lane, mine) for lane, mine in lanes.items())
        done = await asyncio.gather(*work, return_exceptions=True)
        for outcome in done:  # only when all are over: a lane that goes on alone would be overtaken by the next try
            if isinstance(outcome, BaseException):
                raise outcome
        return set().union(*(outcome for outcome in done if not isinstance(outcome, BaseException)))

    async def _on_lane(self, lane: int, parts: list[Slice]) -> set[str]:
        """The runs whose slice was written."""

        async def work(line: Line) -> tuple[dict[str, Row], set[str]]:
            await self._know(line, parts)
            fit = [part for part in parts if self._follows(part)]
            ends = {part.run: self.ends[part.run] for part in fit}
            rows = {part.run: packed(part.records, ends[part.run].crc) for part in fit if part.records}
            written = await self._compared(line, parts, set())
            plain = [part for part in fit if part.mark is None and part.run not in written]
            marked = [part for part in fit if part.mark is not None and part.run not in written]
            if plain:
                written |= await self._plain(line, plain, rows)
            if marked:
                written |= await self._marked(line, marked, rows, ends)
            return rows, await self._compared(line, parts, written)

        rows, written = await self._lines.on_lane(lane, work)
        self._learn(parts, rows, written)  # committed only now; no other slice of the lane has begun yet
        return written

    def _follows(self, part: Slice) -> bool:
        end = self.ends.get(part.run)
        if end is None or end.attempt != part.attempt:
            return False
        records = part.records
        return not records or (records[0].seq == end.seq + 1 and records[-1].seq == end.seq + len(records))

    async def _know(self, line: Line, parts: list[Slice]) -> None:
        """Look up the ends that are not known here."""
        unknown = {p.run: p.attempt for p in parts if p.run not in self.ends or self.ends[p.run].attempt != p.attempt}
        for row in await line.fetch(SQL["ends"], list(unknown)) if unknown else ():
            if row["attempt"] == unknown[row["id"]]:
                self.ends[row["id"]] = End(row["attempt"], row["last_seq"], row["crc_after"], row["bytes"])

    async def _plain(self, line: Line, parts: list[Slice], rows: dict[str, Row]) -> set[str]:
        full = [part for part in parts if part.records]
        empty = [part.run for part in parts if not part.records]
        written: set[str] = set()
        if full:
            values = (*_columns(full, rows), notes(self._holder, (part.run for part in full)))
            try:
                written = await _written(line, "append", values)
            except asyncpg.UniqueViolationError:
                written = await _written(line, "append_contested", values)
        if empty:
            written |= {row["id"] for row in await line.fetch(SQL["ends"], empty)}
        return written

    async def _marked(self, line: Line, parts: list[Slice], rows: dict[str, Row], ends: dict[str, End]) -> set[str]:
        async def work() -> set[str] | None:
            marks = [_marks(part, part.mark, rows.get(part.run), ends[part.run]) for part in parts if part.mark]
            columns = _columns([part for part in parts if part.records], rows)
            told = notes(self._holder, _topics(parts))
            try:
                return await _written(line, "append_marked", (*map(list, zip(*marks, strict=True)), *columns, told))
            except asyncpg.UniqueViolationError as error:
                if error.table_name == "run_log":
                    return None  # a place in the log is taken, and stays so
                raise

        written = await collided(work)
        if written is not None:
            return written
        if len(parts) == 1:  # somebody else holds the run, or it was written by a try whose answer was lost
            return set()
        return {run for part in parts for run in await self._marked(line, [part], rows, ends)}

    async def _compared(self, line: Line, parts: list[Slice], written: set[str]) -> set[str]:
        """What is written, with the slices that are in doubt and were written by the try whose answer was lost. Asked
        before they are written again, and after: that try may come to its end only then."""
        unsure = [part for part in parts if part.run not in written and _place(part) in self._doubts]
        return written | await self._compare(line, unsure) if unsure else written

    async def _compare(self, line: Line, parts: list[Slice]) -> set[str]:
        full = [part for part in parts if part.records]
        places = [part.run for part in full], [part.records[0].seq for part in full]
        there = {row["run"]: row for row in await line.fetch(SQL["written"], *places)} if full else {}
        same = {part.run for part in full if part.run in there and _same(part, there[part.run])}
        bare = {part.run: part for part in parts if not part.records and part.mark is not None}
        for row in await line.fetch(SQL["marked"], list(bare)) if bare else ():
            part = bare[row["id"]]
            if part.mark and (row["attempt"], row["status"], row["updated_at"]) == (
                part.attempt,
                part.mark.status,
                part.mark.at,
            ):
                same.add(part.run)
        return same

    def _learn(self, parts: list[Slice], rows: dict[str, Row], written: set[str]) -> None:
        for part in parts:
            self._doubts.discard(_place(part))
            end, row = self.ends.get(part.run), rows.get(part.run)
            if part.run not in written:
                if end is not None and row is not None:
                    del self.ends[part.run]  # somebody else has the run, or it is over
            elif part.mark is not None and (part.mark.ended or part.mark.parked):
                self.ends.pop(part.run, None)
            elif end is not None and row is not None:
                self.ends[part.run] = End(part.attempt, row.last, row.after, end.size + len(row.data))

    def hold(self, run: str, end: End) -> None:
        """The run is this process's now; what was in doubt of an earlier attempt is over."""
        self.ends[run] = end
        self._doubts = {doubt for doubt in self._doubts if doubt[0] != run}

    def let_go(self) -> None:
        """The lease was over: none of the runs is known to be this process's. Where one still is, it is looked up."""
        self.ends.clear()
        self._doubts.clear()

    # Reading

    async def read(self, owner: str, run: str, after: int) -> list[Record]:
        """See Journal.read. What is asked for while a statement is under way goes together with the next."""
        asked = (owner, run, after)
        answer = self._wanted.get(asked)
        if answer is None:
            answer = self._wanted[asked] = asyncio.get_running_loop().create_future()
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read_all(), name="journal pages")
        return list(await asyncio.shield(answer))

    async def _read_all(self) -> None:
        while self._wanted:
            batch = dict(list(self._wanted.items())[:TOGETHER])
            for asked in batch:
                del self._wanted[asked]
            try:
                pages = await settled(lambda batch=batch: collided(lambda: self._pages(list(batch))))  # type: ignore[misc]
            except Exception as error:  # told to everybody who waits for it, never swallowed
                pages = [error] * len(batch)
            for answer, page in zip(batch.values(), pages, strict=True):
                if answer.done():
                    continue
                if isinstance(page, BaseException):
                    answer.set_exception(page)
                    answer.exception()  # a reader that left must leave no warning behind
                else:
                    answer.set_result(page)

    async def _pages(self, batch: list[tuple[str, str, int]]) -> list[list[Record] | Exception]:
        columns = [list(column) for column in zip(*batch, strict=True)]

        async def work(line: Line) -> list[list[Record] | Exception]:
            rows = await line.fetch(SQL["pages"], *columns, PAGE_BYTES)
            found: dict[int, list[Any]] = {i: list(some) for i, some in groupby(rows, key=lambda row: row["i"])}
            pages = [_page_or_error(run, after, found.get(n, [])) for n, (_, run, after) in enumerate(batch, 1)]
            cut = [run for n, (_, run, _) in enumerate(batch, 1) if n in found and _goes_on(pages[n - 1], found[n][0])]
            if cut:  # whoever reads them comes again: another process must not let them go meanwhile
                await line.execute(SQL["being_read"], sorted(set(cut)), READ_MS)
            return pages

        return await self._lines.once(work)


def _page_or_error(run: str, after: int, rows: list[Any]) -> list[Record] | Exception:
    try:
        return _page(run, after, rows)
    except Damaged as error:
        return error


def _goes_on(page: list[Record] | Exception, row: Any) -> bool:
    """Has a run ended, and is there more of it than this page?"""
    return bool(row["ended"] and isinstance(page, list) and page and page[-1].seq < row["least"])


def _page(run: str, after: int, rows: list[Any]) -> list[Record]:
    """The records after a place, in about a page; Damaged where there must be some and are not."""
    if not rows:
        return []
    page: list[Record] = []
    size, crc = 0, None
    for row in rows if rows[0]["first_seq"] is not None else []:
        expected = crc if row["first_seq"] else origin(run)
        if expected is not None and expected != row["crc_before"]:
            raise Damaged(f"run {run}: the checksum before entry {row['first_seq']} does not hold")
        crc = row["crc_after"]
        for record in unpacked(run, row):
            if record.seq > after and size <= PAGE_BYTES:
                page.append(record)
                size += len(record.data)
    if page and page[0].seq != after + 1:
        raise Damaged(f"run {run}: entry {after + 1} is gone")
    if not page and after < rows[0]["least"]:
        raise Damaged(f"run {run}: entry {after + 1} is gone, up to {rows[0]['least']} were written")
    return page


async def _written(line: Line, name: str, values: Sequence[Any]) -> set[str]:
    """The runs that a statement says it wrote."""
    if line.is_in_transaction():  # behind a pooler: a collision must not spoil what goes with it
        found = await within(line, lambda line: line.fetch(SQL[name], *values))
    else:
        found = await line.fetch(SQL[name], *values)
    return {run for (run,) in found if run}


def _place(part: Slice) -> tuple[str, int, int]:
    return part.run, part.attempt, part.records[0].seq if part.records else -1


def _same(part: Slice, row: Any) -> bool:
    data = _encode([(record.attempt, record.at, record.data) for record in part.records])
    return bool(row["attempt"] == part.attempt and row["data"] == data)


def _topics(parts: list[Slice]) -> list[str]:
    topics = [part.run for part in parts]
    free = any(part.mark and part.mark.parked for part in parts)
    return [*topics, "work"] if free else topics


def _marks(part: Slice, mark: Mark, row: Row | None, end: End) -> tuple[Any, ...]:
    """What the statement takes of a mark."""
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
    )


def _columns(parts: list[Slice], rows: dict[str, Row]) -> list[list[Any]]:
    """What the statements take of each slice, column by column."""
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
