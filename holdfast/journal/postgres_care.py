"""Care for a PostgreSQL store from outside. Owns: looking through all of it while replicas use it. The rest (backup,
restore, giving room back) PostgreSQL does itself. Refuses to know: what an event means (a judge comes along)."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.errors import Damaged
from holdfast.journal import queries
from holdfast.journal.base import StoreUnavailable
from holdfast.journal.base_care import Judge, Report
from holdfast.journal.postgres_carry import SQL, connect, in_our_words, logs_of, records_of
from holdfast.journal.postgres_lines import Line


async def check(url: str, judge: Judge, told: Callable[[int, int], None]) -> Report:
    """Look through the whole store, in one snapshot: the checksums, each run by `judge`, the references. Raises
    StoreUnavailable."""
    line = await connect(url)
    try:
        with in_our_words():
            if not await line.fetchval(SQL["has_meta"]):
                raise StoreUnavailable("there is no store in this database", passing=False)
            async with line.transaction(isolation="repeatable_read", readonly=True):
                return await _check(line, judge, told)
    finally:
        await line.close()


async def _check(line: Line, judge: Judge, told: Callable[[int, int], None]) -> Report:
    report = Report(schema=await line.fetchval(queries.load("postgres_schema.sql")["version"]))
    report.bytes, count = await line.fetchval(SQL["size"]), await line.fetchval(SQL["count"])
    async for run, log in logs_of(line):
        if run.hidden:
            continue
        told(report.runs, count)
        report.runs += 1
        try:
            records = records_of(run, log)
            if run.ended and records[-1].seq != run.last_seq:
                raise Damaged(f"run {run.id}: entries follow its end")
            judge(run.id, records)
            report.entries += len(records)
        except Damaged as error:
            report.problems.append(str(error))
    report.problems += [str(text) for (text,) in await line.fetch(SQL["loose_ends"])]
    return report
