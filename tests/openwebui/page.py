"""Open WebUI's page in a headless Chromium. Owns: the browser, where things are on the page, and the pictures in `out`.
Refuses to know: what is behind the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.story.server import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

OUT = Path(__file__).parent / "out"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WATCH = """() => {
  window.seenTexts = [];
  setInterval(() => {
    const all = document.querySelectorAll(".chat-assistant #response-content-container");
    const text = all.length ? all[all.length - 1].innerText : "";
    const seen = window.seenTexts;
    if (!seen.length || seen[seen.length - 1][1] !== text) seen.push([performance.now(), text]);
  }, 20);
}"""
SLOW_S = 180.0
"""Nothing here is slow by itself, but a busy machine is."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, that is thrown away."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Page:
    """One tab of one user."""

    def __init__(self, tab: Tab, url: str, name: str) -> None:
        self.tab, self._url, self._name, self._pictures = tab, url, name, 0
        tab.set_default_timeout(SLOW_S * 1000)

    def sign_in(self, email: str, password: str) -> None:
        """Fill in the form."""
        self.tab.goto(f"{self._url}/auth")
        self.tab.locator('input[type="email"]').fill(email)
        self.tab.locator('input[type="password"]').fill(password)
        self.tab.locator('button[type="submit"]').click()
        self.tab.locator("#chat-input").wait_for()
        self.dismiss_news()

    def dismiss_news(self) -> None:
        """Close what Open WebUI tells of its releases."""
        for word in ("Okay, Let's Go!", "Close"):
            news = self.tab.get_by_text(word, exact=True)
            if news.count():
                news.first.click()

    def new_chat(self, model: str) -> None:
        """An empty chat with a model."""
        self.tab.goto(f"{self._url}/?models={model}")
        self.tab.locator("#chat-input").wait_for()

    def say(self, text: str) -> None:
        """Type and send."""
        self.tab.locator("#chat-input").click()
        self.tab.keyboard.insert_text(text)
        self.tab.locator("#send-message-button").click()

    def picture(self, what: str) -> Path:
        """What can be seen now, as a file."""
        OUT.mkdir(exist_ok=True)
        self._pictures += 1
        path = OUT / f"{self._name}-{self._pictures}-{what}.png"
        self.tab.screenshot(path=path, animations="disabled")  # a card that opens is shown open
        return path

    def note(self, text: str) -> None:
        """What was measured, beside the pictures."""
        OUT.mkdir(exist_ok=True)
        with (OUT / "notes.txt").open("a") as notes:
            notes.write(f"{self._name}: {text}\n")

    @property
    def _answer(self) -> Locator:
        return self.tab.locator(".chat-assistant").last

    def text(self) -> str:
        """The text of the last answer, as it is shown: cards and errors with it, status lines without."""
        shown = self._answer.locator("#response-content-container")
        return str(shown.inner_text()) if shown.count() else ""

    def wait_for(self, text: str, seconds: float = SLOW_S) -> None:
        """Until the last answer holds the text."""
        wait_until(lambda: text in self.text(), f"{text!r} in the answer", seconds, every=0.1)

    def watch(self) -> None:
        """Write down the text of the last answer whenever it has changed, and when."""
        self.tab.evaluate(WATCH)

    def watched(self) -> list[tuple[float, str]]:
        """What was written down: seconds and texts."""
        return [(at / 1000, text) for at, text in self.tab.evaluate("window.seenTexts")]

    @property
    def busy(self) -> bool:
        """Does the page offer to stop?"""
        return bool(self.tab.locator('button[aria-label="Stop"]').count())

    def wait_for_the_end(self, answers: int = 1) -> None:
        """Until so many answers are there and the page takes the last one for finished."""
        done = self.tab.locator('button[aria-label="Regenerate"]')
        wait_until(lambda: done.count() >= answers and not self.busy, "the answer ends", SLOW_S, every=0.1)

    def status(self) -> str:
        """The status line of the last answer; empty where it has none."""
        line = self._answer.locator(".status-description").last
        return str(line.inner_text()) if line.count() else ""

    def status_history(self) -> list[str]:
        """All status lines of the last answer, after a click on the one that is shown."""
        self._answer.locator('button[aria-label="Toggle status history"]').click()
        lines = self._answer.locator(".status-description")
        wait_until(lambda: lines.count() > 1, "the history opens", SLOW_S, every=0.1)
        return [str(line) for line in lines.all_inner_texts()]

    @property
    def cards(self) -> Locator:
        """The tool cards of the last answer."""
        return self._answer.locator('[id$="-tool-call"]')

    def open_card(self, n: int) -> str:
        """What the card says once it is open."""
        card = self.cards.nth(n)
        card.locator('[role="button"]').first.click()
        wait_until(lambda: "OUTPUT" in card.inner_text().upper(), "the card opens", SLOW_S, every=0.1)
        return str(card.inner_text())

    def stop(self) -> None:
        """Press Stop."""
        self.tab.locator('button[aria-label="Stop"]').click()

    def try_again(self) -> None:
        """Regenerate the last answer."""
        self.tab.locator('button[aria-label="Regenerate"]').last.click()
        self.tab.get_by_text("Try Again").click()

    def go_on(self) -> None:
        """Continue the last answer."""
        self.tab.locator('button[aria-label="Continue Response"]').last.click()

    def reload(self) -> None:
        """Load the page again, as a user does."""
        self.tab.reload()
        self._answer.wait_for()
