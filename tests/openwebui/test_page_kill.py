"""kill -9 of the server in the middle of an answer, seen from Open WebUI (B8, E3).

What Open WebUI sends after a stream broke: it keeps the partial text on the page beside the error, and leaves it out of
every later request. Regenerate sends the same messages once more; the same words typed again make the user's message
stand twice in a row."""

from __future__ import annotations

import pytest

from tests.openwebui.page import SLOW_S, Page
from tests.openwebui.rig import Rig
from tests.openwebui.test_page import CHAT, RESPONSES, counted, squeezed
from tests.story.server import wait_until

WHOLE = f"Step 0: calling terminal. {counted(60)}done after 1 results"


def ask_and_kill(rig: Rig, page: Page, model: str, text: str) -> None:
    """A first turn; then the server dies in the text after a tool, and comes back."""
    page.new_chat(model)
    page.say("Good morning. [[text=Good morning!]]")
    page.wait_for("Good morning!")
    page.wait_for_the_end()
    page.say(text)
    page.wait_for("tok9 ")
    rig.kill()
    wait_until(lambda: "not completed" in page.text(), "the page says that the stream broke", SLOW_S, every=0.1)
    page.picture("killed")
    rig.restart()


@pytest.mark.parametrize("again", ["regenerate", "same-words"])
def test_b8_after_a_kill_asking_again_gives_the_whole_answer_of_the_one_run(
    rig: Rig, page: Page, mark: str, again: str
) -> None:
    before = len(rig.runs())
    text = f'{mark} [[tools=terminal:{{"command":"echo ran >> {mark}.txt"}} tokens=60 pace=0.2]]'
    ask_and_kill(rig, page, CHAT, text)
    if again == "regenerate":
        page.try_again()
    else:
        page.say(text)
    wait_until(lambda: "not completed" not in page.text(), "a new answer begins", SLOW_S, every=0.1)
    page.picture("again")
    page.wait_for("done after 1 results")
    page.wait_for_the_end()
    page.picture("whole")
    assert squeezed(page.text()) == WHOLE
    (made,) = rig.server.data.rglob(f"{mark}.txt")
    assert made.read_text() == "ran\n", "the finished tool did not run twice"
    assert len(rig.runs()) - before == 2, "the greeting and ONE run for the question"
    assert [run["status"] for run in rig.runs()[:2]] == ["completed", "completed"]


def test_b8_continue_after_a_kill_ends_the_broken_answer_itself(rig: Rig, page: Page, mark: str) -> None:
    """Continue sends the same messages too, and writes into the answer that broke; its error stays beside it."""
    before = len(rig.runs())
    ask_and_kill(rig, page, CHAT, f'{mark} [[tools=terminal:{{"command":"echo one"}} tokens=60 pace=0.2]]')
    page.go_on()
    page.wait_for("done after 1 results")
    page.wait_for_the_end()
    page.picture("whole")
    assert squeezed(page.text()).startswith(f"{WHOLE} Response payload is not completed")
    assert len(rig.runs()) - before == 2, "the greeting and ONE run for the question"
    page.say(f"second {mark} [[text=Fine.]]")
    page.wait_for("Fine.")
    page.wait_for_the_end(3)
    sent = rig.agent_calls(f"second {mark}")[0]["messages"][-3:]
    assert [m["role"] for m in sent] == ["user", "assistant", "user"]
    assert squeezed(sent[1]["content"]) == WHOLE, "the model is told the whole answer, once, and no error"


def test_b8_a_regenerated_whole_answer_is_a_new_run(rig: Rig, page: Page, mark: str) -> None:
    before = len(rig.runs())
    page.new_chat(CHAT)
    page.say(f"{mark} [[tokens=5]]")
    page.wait_for("tok4")
    page.wait_for_the_end()
    page.try_again()
    wait_until(lambda: len(rig.runs()) - before == 2, "a second run", SLOW_S)
    page.wait_for_the_end()
    assert squeezed(page.text()) == counted(5).strip()
    page.picture("regenerated")


def test_b8_in_responses_mode_try_again_after_a_kill_gives_the_answer_of_the_one_run(
    rig: Rig, page: Page, mark: str
) -> None:
    before = len(rig.runs())
    text = f'{mark} [[tools=terminal:{{"command":"echo ran >> {mark}.txt"}} tokens=60 pace=0.2]]'
    ask_and_kill(rig, page, RESPONSES, text)
    page.try_again()
    page.wait_for("done after 1 results")
    page.wait_for_the_end()
    assert squeezed(page.text()).endswith(f"{counted(60)}done after 1 results") and page.cards.count() == 1
    page.picture("whole")
    (made,) = rig.server.data.rglob(f"{mark}.txt")
    assert made.read_text() == "ran\n", "the finished tool did not run twice"
    assert len(rig.runs()) - before == 2, "the greeting and ONE run for the question"
    assert [run["status"] for run in rig.runs()[:2]] == ["completed", "completed"]
