"""The schema on PostgreSQL. Owns: applying the numbered migrations, one process at a time, and refusing a database
whose schema is newer than this program. Refuses to know: what the tables hold."""

from __future__ import annotations

import asyncio

import asyncpg

from ninelives.journal import queries
from ninelives.journal.format import WRITTEN, refuse_newer_format
from ninelives.journal.postgres.connections import CONNECT_S, Connection, Wiring, options_of, translate
from ninelives.journal.values import NewerStore

SQL = queries.load("postgres", "schema")
OLDEST_SERVER = 150_000
"""PostgreSQL 15."""
VERSION_S = 10.0


async def migrate(url: str, wiring: Wiring, name: str) -> None:
    """Bring the schema up to date, on a connection of its own. There is no time limit: one would interrupt the index of
    a big table at every start. Raises StoreUnavailable where the database cannot be reached."""
    try:
        connection = await asyncpg.connect(wiring.direct_url or url, **options_of(wiring, name))
        try:
            async with asyncio.timeout(VERSION_S):
                current = await _is_current(connection)
            if not current:
                await _upgrade(connection)
        finally:
            await connection.close(timeout=CONNECT_S)
    except Exception as error:
        known = translate(error)
        if known is error:
            raise
        raise known from error


async def _is_current(connection: Connection) -> bool:
    """Whether there is nothing to apply. Takes no lock, because most starts find it so."""
    if int(await connection.fetchval(SQL["server"])) < OLDEST_SERVER:
        raise NewerStore("PostgreSQL 15 or newer is needed. Upgrade the database, or use another.")
    if not await connection.fetchval(SQL["has_versions"]) or await _missing(connection):
        return False
    return await _format(connection) == WRITTEN


async def _format(connection: Connection) -> str | None:
    """The format of the events; None where it was never written down. Raises NewerStore."""
    found: str | None = await connection.fetchval(SQL["format"])
    refuse_newer_format(found)
    return found


async def _missing(connection: Connection) -> list[tuple[int, str]]:
    """The migrations that are still to be applied."""
    steps = queries.migrations("postgres")
    version = await connection.fetchval(SQL["version"])
    if version > steps[-1][0]:
        raise NewerStore(
            f"the database has schema {version}, this program knows {steps[-1][0]}. Use the newer ninelives that "
            "migrated it, or restore the backup that was made before."
        )
    return [(number, script) for number, script in steps if number > version]


async def _upgrade(connection: Connection) -> None:
    """Apply the missing migrations in one transaction."""
    async with connection.transaction():
        await connection.execute(SQL["no_timeouts"])
        await connection.execute(SQL["lock"])
        await connection.execute(SQL["create_versions"])
        for number, script in await _missing(connection):
            await connection.execute(script)
            await connection.execute(SQL["applied"], number)
        if await _format(connection) != WRITTEN:
            await connection.execute(SQL["set_format"], WRITTEN)
