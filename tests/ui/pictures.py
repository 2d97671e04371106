"""The pictures of the documents: `make pictures`. Owns: a history of runs of several people (finished, steered, failed,
waiting, killed, handed over) on a real server, and where pictures of it go. Refuses to know: what the page does."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.openwebui.page import chromium
from tests.story import server as story
from tests.story.server import Server, wait_until
from tests.ui.test_in_browser import sign_in
from tests.ui.test_inspector import TASK, Scene

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CONFIG = """
[prices."scene"]
input = 3.0
output = 15.0

[[approvals]]
tool = "publish_draft"
ask = "always"
match = "2.5"

[profiles.away]
model_url = "http://127.0.0.1:9/v1"
model_name = "away"
"""
HEIGHT = 860


class History(Scene):
    """A server with prices, a rule for approvals, and a profile whose model is away."""

    def _start(self, port: int) -> Server:
        config = self._where / "pictures.toml"
        config.write_text(CONFIG)
        flags = ["--model-url", self.upstream.url, "--model", "scene", "--config", str(config)]
        return story._serve(self._where, flags, self._settings, port)

    def stop_and_start(self) -> None:
        port = self.server.port
        self.server.stop()
        self.server = self._start(port)

    def until_asked(self, run: str) -> None:
        wait_until(lambda: self.told(run)["run"]["approval"], "a person is asked", every=0.1)

    def until_ended(self, run: str) -> None:
        wait_until(lambda: self.told(run)["run"]["ended"], "the run ends", 120, every=0.2)

    def of(self, owner: str, *words: str) -> None:
        """Runs of somebody else."""
        key = {"name": f"laptop of {owner}", "owner": owner, "limits": {"runs": 4}}
        made = self.server.client.post("/api/keys", key)
        theirs = story.Client(self.server.port, {"authorization": f"Bearer {made.json()['key']}"})
        for text in words:
            theirs.post("/v1/runs", {"input": text, "session_id": f"{owner}-notes"})


def live(scene: History) -> dict[str, str]:
    """All the runs, by a word for each."""
    runs = {"hello": scene.begin("Say hello to the reader.", session_id="tour")}
    scene.of("anna", "Where is the hippopotamus?", "Plan the release notes for the zoo")
    runs["failed"] = scene.begin("Summarise the incident of Friday", model="away")
    runs["steered"] = scene.begin("Plan the release notes of version 2.3", session_id="tour")
    scene.until_open(runs["steered"], "read_changelog")
    scene.server.client.post(f"/v1/runs/{runs['steered']}/steer", {"input": "Mention the release notes of 2.2 too"})
    scene.until_open(runs["steered"], "run_tests")
    scene.stop_and_start()
    scene.until_ended(runs["steered"])
    runs["killed"] = scene.begin(TASK, session_id="release")
    for name in ("run_tests", "publish_draft"):
        scene.until_open(runs["killed"], name)
        scene.kill_and_start()
    scene.until_ended(runs["killed"])
    runs["asks"] = scene.begin("Plan the release notes of version 2.5", session_id="release")
    runs["cancelled"] = scene.begin("Count the release notes of all years")
    scene.until_open(runs["cancelled"], "read_changelog")
    scene.server.client.post(f"/v1/runs/{runs['cancelled']}/stop", {})
    return runs


class Camera:
    """Takes pictures into a folder."""

    def __init__(self, browser: Browser, scene: History, out: Path) -> None:
        self._browser, self._scene, self._out = browser, scene, out

    def tab(self, scheme: Any = "light", width: int = 1280) -> Page:
        size: Any = {"width": width, "height": HEIGHT}
        url = self._scene.server.url
        context = self._browser.new_context(viewport=size, color_scheme=scheme, base_url=url, reduced_motion="reduce")
        context.set_default_timeout(60_000)
        opened = context.new_page()
        sign_in(opened, "/#/runs")
        return opened

    def take(self, tab: Page, name: str, address: str, part: str, *, whole: bool = False) -> None:
        tab.goto(f"/#/{address}")
        tab.locator(part).first.wait_for()
        time.sleep(1.2)  # Markdown and tables arrive after the first paint
        tab.screenshot(path=self._out / f"{name}.png", full_page=whole)


def main(out: Path, *, every: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as where, chromium() as browser:
        scene = History(Path(where))
        try:
            runs = live(scene)
            camera = Camera(browser, scene, out)
            tab = camera.tab()
            camera.take(tab, "runs", "runs", ".item")
            camera.take(tab, "run-after-a-crash", f"runs/{runs['killed']}", ".panel .prose")
            scene.until_asked(runs["asks"])
            camera.take(tab, "approvals", "approvals", "article.card")
            camera.take(tab, "status", "status", "table")
            dark, phone = camera.tab("dark"), camera.tab("light", 390)
            camera.take(dark, "run-dark", f"runs/{runs['killed']}", ".panel .prose")
            camera.take(phone, "run-phone", f"runs/{runs['killed']}", ".bar.line")
            if every:
                more(camera, tab, dark, phone, runs)
        finally:
            scene.stop()


def more(camera: Camera, tab: Page, dark: Page, phone: Page, runs: dict[str, str]) -> None:
    """Every view, to look at: not in the documents."""
    for name, place, part in (
        ("steered", f"runs/{runs['steered']}", ".panel .prose"),
        ("asks", f"runs/{runs['asks']}", "article.card"),
        ("failed", f"runs/{runs['failed']}", ".story .failed"),
        ("cancelled", f"runs/{runs['cancelled']}", ".panel"),
        ("search", "runs?q=release", ".item mark"),
        ("owner", "runs?q=owner:anna", ".item"),
        ("nothing", "runs?q=nothingfits", ".empty"),
        ("sessions", "sessions", "a.session"),
        ("sessions-search", "sessions?q=notes", "mark"),
        ("session", "sessions/release", ".talk .said"),
        ("chat", "chat/tour", ".talk .said"),
        ("chat-empty", "chat", ".empty"),
    ):
        for scheme, each in (("", tab), ("dark-", dark), ("phone-", phone)):
            camera.take(each, f"all-{scheme}{name}", place, part)
    for scheme, each in (("dark-", dark), ("phone-", phone)):
        for name, part in (("runs", ".item"), ("approvals", "article.card"), ("status", "table")):
            camera.take(each, f"all-{scheme}{name}", name, part, whole=name == "status")
    camera.take(tab, "all-status", "status", "table", whole=True)
    for name in ("Events", "Receipt", "As each API"):
        tab.goto(f"/#/runs/{runs['killed']}")
        tab.get_by_role("tab", name=name).click()
        time.sleep(1)
        tab.screenshot(path=camera._out / f"all-tab-{name.split()[0].lower()}.png", full_page=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), every="--every" in sys.argv)
