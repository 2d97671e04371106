"""The schema on PostgreSQL. Owns: applying the numbered migrations, one process at a time, and refusing a database that
is newer than this program. Refuses to know: what the tables hold."""

from __future__ import annotations

import asyncio

import asyncpg

from holdfast.journal import queries
from holdfast.journal.base import NewerStore
from holdfast.journal.postgres_lines import CONNECT_S, Line, Wiring, options_of, translate

SQL = queries.load("postgres_schema.sql")
OLDEST = 150_000
"""PostgreSQL 15."""
LOOK_S = 10.0


async def migrate(url: str, wiring: Wiring, name: str) -> None:
    """Bring the schema of a database up to date, on a connection of its own and without a limit: an index over a big
    table must not be begun anew at every start. Raises StoreUnavailable where the database cannot be reached."""
    try:
        line = await asyncpg.connect(wiring.direct_url or url, **options_of(wiring, name))
        try:
            async with asyncio.timeout(LOOK_S):
                current = await _current(line)
            if not current:
                await upgrade(line)
        finally:
            await line.close(timeout=CONNECT_S)
    except Exception as error:
        told = translate(error)
        if told is error:
            raise
        raise told from error


async def _current(line: Line) -> bool:
    """Is there nothing to be done? Asked without a lock: most starts find it so."""
    if int(await line.fetchval(SQL["server"])) < OLDEST:
        raise NewerStore("PostgreSQL 15 or newer is needed. Upgrade the database, or use another.")
    return bool(await line.fetchval(SQL["begun"])) and not await _missing(line)


async def _missing(line: Line) -> list[tuple[int, str]]:
    """The migrations that are still to be applied."""
    steps = queries.migrations("postgres_migrations")
    version = await line.fetchval(SQL["version"])
    if version > steps[-1][0]:
        raise NewerStore(
            f"the database has schema {version}, this program knows {steps[-1][0]}. Use the newer holdfast that "
            "migrated it, or restore the backup that was made before."
        )
    return [(number, script) for number, script in steps if number > version]


async def upgrade(line: Line) -> None:
    """Bring the schema up to date, in one transaction."""
    async with line.transaction():
        await line.execute(SQL["patient"])
        await line.execute(SQL["lock"])
        await line.execute(SQL["versions"])
        for number, script in await _missing(line):
            await line.execute(script)
            await line.execute(SQL["applied"], number)
