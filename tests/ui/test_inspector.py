"""The inspector, the chat and the sessions as people use them, with a server that is killed while they look."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.story import server as story
from tests.story.server import KEY, ROOT, Server, Upstream, wait_until
from tests.ui.conftest import OUT, PATIENCE_MS
from tests.ui.test_in_browser import picture, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
PACE = "0.8"
TASK = "Plan the release notes for version 2.4 and publish a draft"
AXE = Path(os.environ.get("AXE", HERE / "node_modules" / "axe-core" / "axe.min.js"))
ATTACKS = [
    '<img src=x onerror="window.pwned=1">',
    "<script>window.pwned=1</script>",
    "<svg/onload=window.pwned=1>",
    "[click](javascript:window.pwned=1)",
    '![i](x" onerror="window.pwned=1)',
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "</pre></textarea><style>@import 'x'</style><a href=javascript:window.pwned=1>a</a>",
    "{{constructor.constructor('window.pwned=1')()}}",
    "\u202e\u2066<b onmouseover=window.pwned=1>",
]


class Scene:
    """A server in front of the upstream of scene.py, which can be killed and started again on its port."""

    def __init__(self, where: Path, **settings: str) -> None:
        self._where = where
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SCENE_PACE": PACE}
        self.upstream = Upstream(story._start(["-m", "tests.ui.scene"], env, where, "scene"))
        self._settings = {
            "NINELIVES_TOOLS_MODULES": str(HERE / "scene_tools.py"),
            "NINELIVES_TOOLS_APPROVAL": "never",
            "SCENE_PACE": PACE,
            **settings,
        }
        self.server = self._start(0)

    def _start(self, port: int) -> Server:
        flags = ["--model-url", self.upstream.url, "--model", "scene"]
        return story._serve(self._where, flags, self._settings, port)

    def kill_and_start(self) -> None:
        port = self.server.port
        self.server.kill()
        self.server = self._start(port)

    def begin(self, text: str = TASK, **more: Any) -> str:
        return str(self.server.client.post("/v1/runs", {"input": text, **more}).json()["run_id"])

    def told(self, run: str) -> Any:
        return self.server.client.get(f"/api/runs/{run}/timeline").json()

    def until_open(self, run: str, name: str) -> None:
        def runs() -> bool:
            return any(step["name"] == name and step["outcome"] == "open" for step in self.told(run)["steps"])

        wait_until(runs, f"{name} runs", every=0.05)

    def until_ended(self, run: str) -> None:
        wait_until(lambda: self.told(run)["run"]["ended"], "the run ends", every=0.1)

    def stop(self) -> None:
        self.server.stop()
        self.upstream.process.stop()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Scene]:
    if not os.environ.get("TEST_UI"):
        pytest.skip("the web page in a browser: run `make test-ui`")
    made = Scene(tmp_path_factory.mktemp("scene"), NINELIVES_SERVER_ELSEWHERE=server.url)
    yield made
    made.stop()


Opener = Callable[..., "Page"]


@pytest.fixture
def look(browser: Browser, scene: Scene) -> Iterator[Opener]:
    """Opens a signed-in tab at an address. Errors of the page and breaches of its policy fail the test."""
    contexts, wrong = [], []

    def opened(address: str, width: int = 1280, scheme: Any = "light", server: Server | None = None) -> Page:
        size: Any = {"width": width, "height": 860}
        url = (server or scene.server).url
        context = browser.new_context(viewport=size, color_scheme=scheme, base_url=url, reduced_motion="reduce")
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        sign_in(tab, address)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def test_a_run_is_watched_live_through_two_kills_and_shows_what_they_did(scene: Scene, look: Opener) -> None:
    tab = look("/#/runs")
    run = scene.begin()
    tab.goto(f"/#/runs/{run}")
    tab.locator(".panel .outcome.open").wait_for()
    scene.until_open(run, "run_tests")
    scene.kill_and_start()
    tab.get_by_text("It came back").first.wait_for()
    scene.until_open(run, "publish_draft")
    scene.kill_and_start()
    tab.locator(".run-head .status.completed").wait_for()
    tab.get_by_text("2 crashes survived").wait_for()
    assert tab.locator(".cut").count() == 2 and tab.locator(".hollow").count() == 5
    assert tab.locator(".bar.unknown").count() == 1 and tab.locator(".bar.again").count() == 1
    tab.get_by_text("We do not know whether publish_draft took effect").wait_for()
    tab.locator(".panel .prose strong", has_text="Runs that survive anything.").wait_for()
    picture(tab, "run-after-two-kills")
    tab.locator(".bar.unknown").click()
    tab.locator(".panel", has_text="Nobody knows whether it took effect").wait_for()
    assert f"/#/runs/{run}/" in tab.url
    tab.go_back()
    tab.locator(".panel h2", has_text="Model").wait_for()
    tab.get_by_text("What did it see?").click()
    tab.locator(".request", has_text="tools offered").wait_for()
    for name, part in (("Events", ".entry"), ("Receipt", ".numbers"), ("As each API", "[role=tabpanel] pre")):
        tab.get_by_role("tab", name=name).click()
        tab.locator(part).first.wait_for()
        picture(tab, f"tab-{name.split()[-1].lower()}")
    tab.get_by_role("button", name="Responses").click()
    tab.locator("[role=tabpanel] pre", has_text="response.created").wait_for()
    line = next(each for each in scene.server.client.get("/api/runs?q=is:crashed").json()["data"])
    assert (line["crashes"], line["unknown"]) == (2, 1)


def test_a_run_is_steered_forked_and_cancelled(scene: Scene, look: Opener) -> None:
    tab = look("/#/runs")
    run = scene.begin()
    tab.goto(f"/#/runs/{run}")
    scene.until_open(run, "read_changelog")
    tab.get_by_label("Write to this run").fill("Mention the release notes of 2.3 too")
    tab.get_by_role("button", name="Steer").click()
    tab.get_by_text("Stored. The model reads it").wait_for()
    tab.get_by_role("button", name="steered").wait_for()
    tab.locator(".bar.tool").first.click()
    tab.locator(".panel", has_text="read_changelog").wait_for()
    tab.get_by_role("button", name="Fork from here").click()
    tab.get_by_label("What the fork is told").fill("Plan other release notes")
    tab.get_by_role("button", name="Fork", exact=True).click()
    tab.wait_for_function("run => !location.hash.includes(run)", arg=run)
    tab.get_by_text("forked from another run").wait_for()
    tab.locator(".bar.copied").first.wait_for()
    tab.get_by_role("button", name="Cancel").click()
    tab.locator(".run-head .status.cancelled").wait_for()
    scene.until_ended(run)


def test_the_divider_moves_by_pointer_and_by_keyboard_and_stays_where_it_is(scene: Scene, look: Opener) -> None:
    run = scene.begin("Say hello to the divider")
    scene.until_ended(run)
    tab = look(f"/#/runs/{run}")
    bar = tab.get_by_role("separator", name="Width of the details")
    bar.wait_for()

    def width() -> float:
        return float(tab.evaluate("() => document.querySelector('.panel').getBoundingClientRect().width"))

    usual = width()
    box = bar.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move(box["x"] - 150, box["y"] + 30, steps=5)
    tab.mouse.up()
    dragged = width()
    assert dragged > usual + 100
    bar.focus()
    tab.keyboard.press("ArrowRight")
    assert width() == dragged - 24 and bar.get_attribute("aria-valuenow") == str(round(dragged - 24))
    assert tab.url.endswith(run), "the arrow moved the divider, and no step"
    tab.reload()
    tab.locator(".panel h2").wait_for()
    kept = "wide => document.querySelector('.panel').getBoundingClientRect().width === wide"
    tab.wait_for_function(kept, arg=dragged - 24)
    bar.focus()
    tab.keyboard.press("Enter")
    assert width() == usual


def test_an_admin_sees_the_runs_of_all_owners_and_others_their_own(scene: Scene, look: Opener) -> None:
    made = scene.server.client.post("/api/keys", {"name": "bert", "owner": "bert"}).json()["key"]
    bert = story.Client(scene.server.port, {"authorization": f"Bearer {made}"})
    run = bert.post("/v1/runs", {"input": "Where does Bert live?"}).json()["run_id"]
    scene.until_ended(run)
    scene.begin("A question of the admin")
    tab = look("/#/runs?q=owner:bert")
    row = tab.locator(".item", has_text="Where does Bert live?")
    row.wait_for()
    assert tab.locator(".item").count() == 1 and row.locator(".c-owner").text_content() == "bert"
    picture(tab, "runs-of-another-owner")
    row.locator(".c-words a").first.click()
    tab.get_by_text("of bert").wait_for()
    tab.get_by_role("tab", name="Receipt").click()
    tab.locator(".numbers").wait_for()
    tab.get_by_role("button", name="Sign out").click()
    tab.get_by_label("API key").fill(made)
    tab.get_by_role("button", name="Sign in").click()
    tab.goto("/#/runs")
    tab.locator(".item", has_text="Where does Bert live?").wait_for()
    assert tab.locator(".item", has_text="A question of the admin").count() == 0
    assert tab.locator(".list.owners").count() == 0


def test_a_chat_goes_on_through_a_kill_in_mid_answer_and_through_a_reload(scene: Scene, look: Opener) -> None:
    tab = look("/#/chat")
    tab.get_by_label("Message").fill("Plan the release notes, please")
    tab.keyboard.press("Enter")
    tab.locator(".happened.tool", has_text="run_tests").wait_for()
    scene.kill_and_start()
    tab.locator(".happened.crash", has_text="It came back and went on").wait_for()
    tab.reload()
    tab.get_by_text("see what happened").or_(tab.get_by_text("The answer goes on where it was.")).first.wait_for()
    tab.locator(".talk", has_text="Runs that survive anything.").wait_for()
    picture(tab, "chat-after-a-kill")


def test_sessions_are_searched_with_their_hits_and_go_when_they_are_deleted(scene: Scene, look: Opener) -> None:
    run = scene.begin("Where is the hippopotamus?", session_id="zoo")
    scene.until_ended(run)
    tab = look("/#/sessions")
    tab.get_by_label("Search sessions").fill("hippo")
    tab.keyboard.press("Enter")
    tab.locator("mark", has_text="hippopotamus").wait_for()
    picture(tab, "sessions-search")
    tab.locator("a.session").first.click()
    tab.locator(".talk mark", has_text="hippopotamus").wait_for()
    tab.get_by_role("button", name="Fork").click()
    tab.wait_for_function("() => location.hash.includes('fork-')")
    tab.get_by_role("button", name="Delete").click()
    tab.get_by_text("Press Delete again").wait_for()
    tab.get_by_role("button", name="Delete").click()
    tab.wait_for_function("() => location.hash === '#/sessions'")
    assert scene.server.client.get("/api/sessions/zoo").status == 200, "the copy went, not the original"


def test_the_status_tells_what_became_of_the_runs_of_a_killed_server(scene: Scene, look: Opener) -> None:
    run = scene.begin()
    scene.until_open(run, "read_changelog")
    scene.kill_and_start()
    scene.until_ended(run)
    tab = look("/#/status")
    tab.get_by_text("Killed at").wait_for()
    assert "1 run went on, 0 lost" in (tab.locator(".killed").text_content() or "")
    for name in ("Store", "Model", "Recovery", "Keys", "Audit"):
        tab.get_by_role("heading", name=name, exact=True).wait_for()
    picture(tab, "status-after-a-kill")


def test_the_status_shows_servers_elsewhere_and_how_one_that_may_not_be_asked_is_named(
    scene: Scene, server: Server, look: Opener
) -> None:
    tab = look("/#/status")
    named = tab.locator(".part", has=tab.get_by_role("heading", name=server.url))
    named.get_by_text("✓ ok").wait_for()
    assert named.get_by_role("link", name="Open its page").get_attribute("href") == f"{server.url}/#/status"
    tab.get_by_label("Address of another server").fill("http://127.0.0.1:9")
    tab.keyboard.press("Enter")
    tab.get_by_text("server.elsewhere = ['http://127.0.0.1:9']").wait_for()
    tab.get_by_role("heading", name="Usage").scroll_into_view_if_needed()
    picture(tab, "status-elsewhere")


def test_everything_is_reached_with_the_keyboard_only(scene: Scene, look: Opener) -> None:
    runs = [scene.begin(f"Count the release notes {n}") for n in range(2)]
    tab = look("/#/runs")
    tab.locator(".item").first.wait_for()
    tab.keyboard.press("/")
    tab.keyboard.type("status:running count")
    tab.keyboard.press("Enter")
    tab.wait_for_function("() => document.querySelectorAll('.item').length === 2")
    assert "status%3Arunning%20count" in tab.url, "kept in the address"
    for key in ("j", "x", "j", "x", "c", "Enter"):
        tab.keyboard.press(key)
    for run in runs:
        wait_until(lambda run=run: scene.told(run)["run"]["status"] == "cancelled", "both are cancelled")
    tab.goto("/#/runs")
    tab.wait_for_function("() => document.querySelector('.search')?.value === '' && document.querySelector('.item')")
    tab.keyboard.press("j")
    tab.keyboard.press("Enter")
    tab.locator(".waterfall").wait_for()
    tab.locator(".panel h2").wait_for()
    tab.keyboard.press("k")
    tab.wait_for_function("() => /runs\\/run_\\w+\\/\\d+$/.test(location.hash)")
    tab.keyboard.press("?")
    tab.get_by_role("heading", name="Keys").wait_for()
    tab.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scene: Scene, look: Opener, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is missing: `make test-ui` installs it with npm")
    run = scene.server.client.get("/api/runs?q=is:crashed").json()["data"][0]["run_id"]
    tab = look("/#/runs", scheme=scheme)
    found = {}
    for place, part in (
        ("runs", ".item"),
        (f"runs/{run}", ".bar"),
        ("approvals", ".empty"),
        ("sessions", "a.session"),
        ("chat", "textarea"),
        ("status", ".part"),
    ):
        tab.goto(f"/#/{place}")
        tab.locator(part).first.wait_for()
        tab.wait_for_timeout(500)  # Markdown and tables arrive after the first paint
        tab.evaluate(AXE.read_text())
        result = tab.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        bad = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
        found |= {f"{place} {each['id']}": [node["html"][:200] for node in each["nodes"][:3]] for each in bad}
    assert found == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_hangs_over_the_edge_of_a_phone(scene: Scene, look: Opener, scheme: str) -> None:
    run = scene.server.client.get("/api/runs?q=is:crashed").json()["data"][0]["run_id"]
    tab = look("/#/runs", width=390, scheme=scheme)
    for place, part in (
        ("runs", ".item"),
        (f"runs/{run}", ".bar.line"),
        ("sessions", "a.session"),
        ("chat", "textarea"),
        ("status", ".part"),
    ):
        tab.goto(f"/#/{place}")
        tab.locator(part).first.wait_for()
        tab.wait_for_timeout(300)
        picture(tab, f"phone-{scheme}-{place.split('/')[0]}{'-one' if run in place else ''}")
        wide = tab.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{place} hangs over the edge"
    assert tab.locator(".waterfall .chart").count() == 0


SCROLLED = """
async () => {
  const list = document.querySelector('.scroller');
  const frames = [], tasks = [];
  const seen = new PerformanceObserver((found) => tasks.push(...found.getEntries().map((each) => each.duration)));
  seen.observe({ type: 'longtask' });
  let last = performance.now(), on = true, nodes = 0;
  const tick = (now) => {
    frames.push(now - last);
    last = now;
    nodes = Math.max(nodes, document.getElementsByTagName('*').length);
    if (on) requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
  for (let n = 0; n < 240; n += 1) {
    list.scrollTop += n % 60 === 59 ? list.scrollHeight / 5 : 90;
    await new Promise((done) => requestAnimationFrame(done));
  }
  on = false;
  await new Promise((done) => setTimeout(done, 300));
  seen.disconnect();
  return { slow: frames.slice(2).filter((each) => each > 50), frames: frames.length, tasks, nodes };
}
"""


STEP = """
async (n) => {
  const list = document.querySelector('.scroller');
  list.scrollTop += n % 60 === 59 ? list.scrollHeight / 5 : 90;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}
"""


def work_of_frames(tab: Page) -> Iterator[float]:
    """The processor time of the page's main thread for each of 240 frames of scrolling, in ms. Other processes do not
    count, so this holds on a busy machine too."""
    browser = tab.context.new_cdp_session(tab)
    browser.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        found = browser.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration")) * 1000

    last = used()
    for n in range(240):
        tab.evaluate(STEP, n)
        now = used()
        yield now - last
        last = now


def test_a_run_with_50000_events_scrolls_without_a_slow_frame(
    look: Opener, scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = tmp_path_factory.mktemp("long")
    server = story._serve(where, [], {"NINELIVES_AGENT_OBJECT": "tests.ui.long_agent:agent"})
    try:
        run = str(server.client.post("/v1/runs", {"input": "Talk."}).json()["run_id"])
        wait_until(lambda: server.client.get(f"/v1/runs/{run}").json()["status"] == "completed", "50,000 words", 120)
        tab = look(f"/#/runs/{run}", server=server)
        tab.get_by_role("tab", name="Events").click()
        tab.get_by_text("50,004 events").wait_for()
        work = sorted(work_of_frames(tab))
        print(f"CPU of a frame: median {work[len(work) // 2]:.1f} ms, most {work[-1]:.1f} ms")
        assert work[-1] < 50, "no frame has more work for the page than 50 ms"
        for _ in range(8):  # a machine that is busy with others drops frames: one of these must be without any
            tab.evaluate("() => { document.querySelector('.scroller').scrollTop = 0 }")
            measured = tab.evaluate(SCROLLED)
            print(measured)
            assert measured["nodes"] < 2_000
            if measured["slow"] == [] and measured["tasks"] == []:
                break
        else:  # how long a frame takes says something only where the browser gets the processor
            busy = os.getloadavg()[0] > (os.cpu_count() or 1)
            assert busy or (measured["slow"], measured["tasks"]) == ([], [])
        tab.evaluate("() => { document.querySelector('.scroller').scrollTop = 1e9 }")
        tab.locator(".entry", has_text="run.completed").wait_for()
        picture(tab, "events-50000")
    finally:
        server.stop()


def test_nothing_that_a_model_a_tool_or_a_caller_says_can_run(scene: Scene, server: Server, look: Opener) -> None:
    """Through the request, the answer, a tool's arguments and output, the title of a session, and metadata."""
    runs = []
    for n, attack in enumerate(ATTACKS):
        inner = attack.replace('"', "'").replace("]", ")").replace("|", "!")
        words = f'{attack} [[tools=read_file:{{"path":"{inner[:60]}"}}]] [[text={inner}]]'
        body = {"input": words, "session_id": f"x{n}", "metadata": {"note": attack[:60]}}
        made = server.client.post("/v1/runs", body)
        runs.append(str(made.json()["run_id"]))
    for n, run in enumerate(runs):
        wait_until(lambda run=run: server.client.get(f"/v1/runs/{run}").json()["status"] == "completed", "it ends")
        server.client.call("PATCH", f"/api/sessions/x{n}", {"title": ATTACKS[n]})
    tab = look("/#/runs", server=server)
    places = ["runs", "sessions", *(f"runs/{run}" for run in runs), *(f"sessions/x{n}" for n in range(len(runs)))]
    for place in [*places, "chat/x0"]:
        tab.goto(f"/#/{place}")
        tab.locator(".item, a.session, .panel h2, .talk .said").first.wait_for()
        tab.wait_for_timeout(150)  # Markdown arrives a moment later
        assert tab.evaluate("() => window.pwned ?? 0") == 0, place
        bad = "main img, main svg, main script, main iframe, main style, main a[href^='javascript' i], main [onerror]"
        assert tab.locator(bad).count() == 0, place
    assert KEY not in tab.url and OUT.exists()
