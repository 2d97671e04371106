"""One rig and one browser for all tests here; each test has a tab of its own. They run by `make test-openwebui` only:
Open WebUI is 3 GB of packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from shutil import rmtree
from typing import TYPE_CHECKING

import pytest

from tests.openwebui.page import OUT, Page, chromium
from tests.openwebui.rig import Rig, start

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def wanted() -> None:
    if not os.environ.get("TEST_OPENWEBUI"):
        pytest.skip("the real Open WebUI: run `make test-openwebui`")


@pytest.fixture(scope="session")
def rig(wanted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    started = start(tmp_path_factory.mktemp("rig"))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def browser(wanted: None) -> Iterator[Browser]:
    rmtree(OUT, ignore_errors=True)  # pictures are of the last run
    with chromium() as started:
        yield started


@pytest.fixture
def page(rig: Rig, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 760})
    opened = Page(context.new_page(), rig.url, request.node.name.removeprefix("test_"))
    yield opened
    if getattr(request.node, "failed", False):
        opened.picture("failed")
    context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails leaves a picture of what was on the page."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]


_numbers = count()


@pytest.fixture
def mark() -> str:
    """A word that nothing else has: to find a test's own requests upstream."""
    return f"mark{next(_numbers)}x"
