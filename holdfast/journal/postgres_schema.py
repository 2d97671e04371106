"""The schema on PostgreSQL. Owns: applying the numbered migrations, one process at a time, and refusing a database that
is newer than this program. Refuses to know: what the tables hold."""

from __future__ import annotations

import asyncpg

from holdfast.journal import queries
from holdfast.journal.base import NewerStore
from holdfast.journal.postgres_lines import CONNECT_S, Line, Wiring, options_of, translate

SQL = queries.load("postgres_schema.sql")
OLDEST = 150_000
"""PostgreSQL 15."""


async def migrate(url: str, wiring: Wiring, name: str) -> None:
    """Bring the schema of a database up to date, on a connection of its own and without a limit: an index over a big
    table must not be begun anew at every start. Raises StoreUnavailable where the database cannot be reached."""
    try:
        line = await asyncpg.connect(wiring.direct_url or url, **options_of(wiring, name))
        try:
            await upgrade(line)
        finally:
            await line.close(timeout=CONNECT_S)
    except Exception as error:
        told = translate(error)
        if told is error:
            raise
        raise told from error


async def upgrade(line: Line) -> None:
    """Bring the schema up to date, in one transaction."""
    if int(await line.fetchval(SQL["server"])) < OLDEST:
        raise NewerStore("PostgreSQL 15 or newer is needed. Upgrade the database, or use another.")
    steps = queries.migrations("postgres_migrations")
    async with line.transaction():
        await line.execute(SQL["patient"])
        await line.execute(SQL["lock"])
        await line.execute(SQL["versions"])
        version = await line.fetchval(SQL["version"])
        if version > steps[-1][0]:
            raise NewerStore(
                f"the database has schema {version}, this program knows {steps[-1][0]}. Use the newer holdfast that "
                "migrated it, or restore the backup that was made before."
            )
        for number, script in steps:
            if number > version:
                await line.execute(script)
                await line.execute(SQL["applied"], number)
