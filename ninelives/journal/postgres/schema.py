"""The schema on PostgreSQL. Owns: applying the numbered migrations, one process at a time, and refusing a database
whose schema is newer than this program. Refuses to know: what the tables hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ninelives.journal import queries
from ninelives.journal.format import WRITTEN, refuse_newer_format
from ninelives.journal.postgres.connections import CONNECT_S, Connection, Wiring, connect_to, options_of, translate
from ninelives.journal.values import NewerStore, StoreUnavailable

SQL = queries.load("postgres", "schema")
OLDEST_SERVER = 150_000
"""PostgreSQL 15."""
VERSION_S = 10.0


async def migrate(url: str, wiring: Wiring, name: str) -> None:
    """Bring the schema up to date, on a connection of its own, before a process uses the database. There is no time
    limit: one would interrupt the index of a big table at every start. Raises StoreUnavailable where the database
    cannot be reached or has too few connections left, NewerStore where it cannot be used."""
    async with _connected(url, wiring, name) as connection:
        async with asyncio.timeout(VERSION_S):
            current = await _is_current(connection)
        if not current:
            await _upgrade(connection)
        await _refuse_unsafe(connection)
        await _refuse_few_connections(connection, wiring)


async def upgrade(url: str, wiring: Wiring) -> tuple[int, int]:
    """Only bring the schema up to date; its number before and after."""
    async with _connected(url, wiring, "upgrade") as connection:
        before = int(await connection.fetchval(SQL["version"])) if await connection.fetchval(SQL["has_versions"]) else 0
        if not await _is_current(connection):
            await _upgrade(connection)
        return before, int(await connection.fetchval(SQL["version"]))


@asynccontextmanager
async def _connected(url: str, wiring: Wiring, name: str) -> AsyncIterator[Connection]:
    try:
        connection = await connect_to(wiring.direct_url or url, options_of(wiring, name))
        try:
            yield connection
        finally:
            await connection.close(timeout=CONNECT_S)
    except Exception as error:
        known = translate(error)
        if known is error:
            raise
        raise known from error


async def _refuse_unsafe(connection: Connection) -> None:
    """What a client was shown must survive a crash of the database's machine."""
    if await connection.fetchval(SQL["synchronous_commit"]) == "off":
        raise NewerStore(
            "synchronous_commit is off for this role, so a crash of the database would lose what clients were shown. "
            "Run: ALTER ROLE ... SET synchronous_commit = on"
        )


async def _refuse_few_connections(connection: Connection, wiring: Wiring) -> None:
    """A process with too few connections would start and then stall. It may also find that others took them meanwhile:
    then Connections.create fails."""
    if wiring.direct_url:  # a pooler stands between, and shares its connections
        return
    free = int(await connection.fetchval(SQL["free"])) + 1  # this one ends before the others are made
    if free < wiring.lanes + wiring.queries + 1:
        raise StoreUnavailable(
            f"too few connections: {wiring.needs}, and {free} are free. Raise max_connections of the database or the "
            "limit of the role, or lower store.pool",
            passing=True,
            away=True,
        )


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
