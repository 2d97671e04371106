"""One server and one fake upstream per module. A module's SETTINGS are environment variables for its server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.story.server import Client, Server, Upstream, start_server, start_upstream


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    started = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield started
    started.process.stop()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, upstream: Upstream
) -> Iterator[Server]:
    settings: dict[str, str] = getattr(request.module, "SETTINGS", {})
    started = start_server(tmp_path_factory.mktemp("server"), upstream.url, **settings)
    yield started
    assert started.stop() == 0, "a server that is told to stop ends with 0 (A9)"


@pytest.fixture
def client(server: Server) -> Client:
    return server.client


_numbers = count()


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """A word that nothing else has: to find a test's own requests upstream, and as a key or a name."""
    return f"mark{next(_numbers)}-{abs(hash(request.node.name)) % 10**6}"
