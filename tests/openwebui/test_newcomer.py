"""A newcomer's way to the first streamed word in Open WebUI, timed: a clone, `make serve`, and the environment of
docs/open-webui.md, "Start". The installation of Open WebUI itself is not in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lab.newcomer import first_server
from tests.openwebui.page import SLOW_S, Page
from tests.openwebui.rig import ready, start_open_webui
from tests.story.server import ROOT, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def documented(url: str, key: str) -> dict[str, str]:
    """The settings of the page, with this server and this key in place of those there."""
    page = (ROOT / "docs/open-webui.md").read_text()
    command = re.search(r"^((?:[A-Z_]+=\S+ )+\\\n) +open-webui serve", page, re.MULTILINE)
    assert command is not None
    words = command[1].replace("http://127.0.0.1:8642", url).replace("$KEY", key)
    return dict(word.split("=", 1) for word in words.strip(" \\\n").split())


def test_from_a_clone_to_the_first_streamed_word(
    wanted: None, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with first_server(str(ROOT)) as newcomer:
        served = newcomer.passed("the server listens")
        url = newcomer.found(r"listening on (http://[0-9.:]+)")
        key = (newcomer.home / ".local/share/ninelives/key").read_text().strip()
        webui = start_open_webui(tmp_path_factory.mktemp("webui"), documented(url, key))
        try:
            ready(webui)
            listens = newcomer.passed("Open WebUI listens")
            context = browser.new_context(viewport={"width": 1100, "height": 760})
            page = Page(context.new_page(), webui.url, "newcomer")
            page.new_chat("hermes-agent")
            page.dismiss_news()
            page.say("hello")
            wait_until(lambda: page.text().strip(), "the first word", SLOW_S, every=0.02)
            took = newcomer.passed("the first word")
            page.picture("first-word")
            page.wait_for_the_end()
            page.picture("answer")
            page.note(f"server {served:.1f} s, Open WebUI listens {listens:.1f} s, the first word {took:.1f} s")
            context.close()
        finally:
            webui.stop()
