"""The schema on PostgreSQL. Owns: applying the numbered migrations, one process at a time, and refusing a database that
is newer than this program. Refuses to know: what the tables hold."""

from __future__ import annotations

import asyncpg

from holdfast.core.errors import Damaged
from holdfast.journal import queries
from holdfast.journal.postgres_lines import Line, Wiring, options_of, translate

OLDEST = 150_000
"""PostgreSQL 15."""


class NewerSchema(Damaged):
    """The database was migrated by a later version."""


async def migrate(url: str, wiring: Wiring, name: str) -> None:
    """Bring the schema up to date. Raises StoreUnavailable where the database cannot be reached."""
    try:
        line = await asyncpg.connect(wiring.direct_url or url, **options_of(Wiring(), name))
    except Exception as error:
        raise translate(error) from error
    try:
        if int(await line.fetchval("SHOW server_version_num")) < OLDEST:
            raise Damaged("PostgreSQL 15 or newer is needed. Upgrade the database, or use another.")
        async with line.transaction():
            await _apply(line)
    finally:
        await line.close()


async def _apply(line: Line) -> None:
    sql = queries.load("postgres_schema.sql")
    await line.execute(sql["lock"])
    await line.execute(sql["versions"])
    version = await line.fetchval(sql["version"])
    steps = queries.migrations("postgres_migrations")
    if version > steps[-1][0]:
        raise NewerSchema(
            f"the database has schema {version}, this program knows {steps[-1][0]}. Use the newer holdfast that "
            "migrated it, or restore the backup that was made before."
        )
    for number, script in steps:
        if number > version:
            await line.execute(script)
            await line.execute(sql["applied"], number)
