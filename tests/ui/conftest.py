"""The web page in a headless Chromium. They run by `make test-ui` only: it installs a browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest

from tests.openwebui.page import chromium
from tests.story.server import Server, Upstream, start_server, start_upstream

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

OUT = Path(__file__).parent / "out"
SETTINGS = {
    "NINELIVES_TOOLS_APPROVAL": "on-write",
    "NINELIVES_TOOLS_MODULES": str(Path(__file__).parent / "paying.py"),
}
PATIENCE_MS = 60_000


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    if not os.environ.get("TEST_UI"):
        pytest.skip("the web page in a browser: run `make test-ui`")
    started = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield started
    started.process.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    started = start_server(tmp_path_factory.mktemp("server"), upstream.url, **SETTINGS)
    yield started
    assert started.stop() == 0


@pytest.fixture(scope="session")
def browser(server: Server) -> Iterator[Browser]:
    rmtree(OUT, ignore_errors=True)  # pictures are of the last run
    OUT.mkdir()
    with chromium() as started:
        yield started


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1180, "height": 820}, base_url=server.url)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


@pytest.fixture
def tab(context: BrowserContext) -> Iterator[Page]:
    """A tab. Whatever it reports as an error or as a breach of its policy fails the test."""
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    assert wrong == []
