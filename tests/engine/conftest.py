"""Several engines on one store, in memory and on PostgreSQL, with one thing to do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ninelives.testing.playbook import asked, said
from tests.engine.peers import House, PostgresHouse


@pytest.fixture(params=[House, PostgresHouse])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[House]:
    built: House = request.param()
    await built.begin()
    built.books["hi"] = [asked(("look", '{"n": 1}')), said("done")]
    yield built
    await built.close()
