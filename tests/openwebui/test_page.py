"""What a user of Open WebUI sees and can do: status lines and cards, Stop, reload, and one run for one message."""

from __future__ import annotations

import re
from time import monotonic

import pytest

from tests.openwebui.page import SLOW_S, Page
from tests.openwebui.rig import Rig
from tests.story.server import wait_until

CHAT, RESPONSES = "chat.hermes-agent", "responses.hermes-agent"
ALL = pytest.mark.parametrize("model", [CHAT, RESPONSES])
STOP_S = 10.0


def counted(n: int) -> str:
    return "".join(f"tok{place} " for place in range(n))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def idle(rig: Rig) -> bool:
    return bool(rig.server.health()["runs"]["active"] == 0)


def stop(rig: Rig, page: Page) -> None:
    """Press Stop and wait until the run is over."""
    pressed = monotonic()
    page.stop()
    wait_until(lambda: idle(rig), "no run is left", STOP_S)
    page.note(f"stopped after {monotonic() - pressed:.1f} s")


def test_b4_in_chat_mode_each_tool_is_a_live_status_line_and_the_content_is_the_answer_alone(
    rig: Rig, page: Page, mark: str
) -> None:
    tools = 'terminal:{"command":"sleep 8; echo one"}|terminal:{"command":"sleep 8; echo two"}'
    page.new_chat(CHAT)
    page.say(f"{mark} [[tools={tools} tokens=30 pace=0.05]]")
    for n, line in enumerate(("sleep 8; echo one", "sleep 8; echo two")):
        wait_until(lambda line=line: line in page.status(), f"the status line {line}", SLOW_S, every=0.1)  # type: ignore[misc]
        assert page.busy and len(rig.agent_calls(mark)) == n + 1, "shown while the tool runs, not after"
        page.picture(f"tool-{n}-runs")
    page.wait_for_the_end()
    whole = f"Step 0: calling terminal. Step 1: calling terminal. {counted(30)}done after 2 results"
    assert squeezed(page.text()) == whole and page.cards.count() == 0
    page.picture("done")
    said = [re.sub(r"\d+\.\d", "N", line.split(" ", 1)[1]) for line in page.status_history()[1:]]
    # the model writes its call in pieces: "Preparing" is told where they do not come at once
    assert [line for line in said if line != "Preparing terminal"] == [
        "sleep 8; echo one",
        "sleep 8; echo one · N s",
        "sleep 8; echo two",
        "sleep 8; echo two · N s",
    ]
    page.picture("history")
    page.say(f"second {mark} [[text=Fine.]]")
    page.wait_for("Fine.")
    page.wait_for_the_end(2)
    before = rig.agent_calls(f"second {mark}")[0]["messages"][-3:]
    assert [m["role"] for m in before] == ["user", "assistant", "user"]
    assert squeezed(before[1]["content"]) == whole, "nothing of the tools goes back to the model"
    page.reload()
    page.wait_for("Fine.")
    page.picture("reloaded")


def test_c9_in_responses_mode_each_tool_is_a_card_with_input_and_output(rig: Rig, page: Page, mark: str) -> None:
    note = f'write_file:{{"path":"{mark}.txt","content":"a note"}}'
    page.new_chat(RESPONSES)
    page.say(f'{mark} [[tools=terminal:{{"command":"sleep 8; echo first-$((6*7))"}}|{note} tokens=10 pace=0.05]]')
    wait_until(lambda: "Executing terminal" in page.text(), "the card of a tool that runs", SLOW_S, every=0.1)
    page.picture("tool-runs")
    page.wait_for("done after 2 results")
    page.wait_for_the_end()
    assert page.cards.count() == 2 and "Executing" not in page.text()
    page.picture("done")
    first, second = page.open_card(0), page.open_card(1)
    assert "sleep 8; echo first-" in first and "first-42" in first
    assert f"{mark}.txt" in second and "a note" in second
    page.picture("cards")
    page.say(f"second {mark} [[text=Fine.]]")
    page.wait_for("Fine.")
    page.wait_for_the_end(2)
    assert squeezed(page.text()) == "Fine."
    roles = [m["role"] for m in rig.agent_calls(f"second {mark}")[0]["messages"] if m["role"] != "system"]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    page.picture("second-turn")


@ALL
def test_c4_stop_in_mid_answer_ends_the_run(rig: Rig, page: Page, mark: str, model: str) -> None:
    wait_until(lambda: idle(rig), "nothing runs", SLOW_S)
    early, before = rig.upstream.stats()["closed_early"], len(rig.runs())
    page.new_chat(model)
    page.say(f"{mark} [[hang=6]]")
    page.wait_for("tok5")
    stop(rig, page)
    wait_until(lambda: rig.upstream.stats()["closed_early"] == early + 1, "the model call is ended", STOP_S)
    page.wait_for_the_end()
    assert "tok5" in page.text()
    page.picture("stopped")
    if model != CHAT:
        (run,) = rig.runs()[: len(rig.runs()) - before]
        assert run["status"] == "cancelled"
    page.say(f"second {mark} [[text=Fine.]]")
    page.wait_for("Fine.")
    page.wait_for_the_end(2)
    page.picture("second-turn")


@ALL
def test_c4_stop_while_a_tool_runs_ends_the_tool(rig: Rig, page: Page, mark: str, model: str) -> None:
    wait_until(lambda: idle(rig), "nothing runs", SLOW_S)
    page.new_chat(model)
    page.say(f'{mark} [[tools=terminal:{{"command":"sleep 300; echo {mark} > late.txt"}}]]')
    wait_until(lambda: "sleep 300" in page.status() or "Executing" in page.text(), "the tool runs", SLOW_S, every=0.1)
    stop(rig, page)
    assert len(rig.agent_calls(mark)) == 1 and not list(rig.server.data.rglob("late.txt"))
    page.wait_for_the_end()
    page.picture("stopped")
    page.say(f"second {mark} [[text=Fine.]]")
    page.wait_for("Fine.")
    page.wait_for_the_end(2)
    page.picture("second-turn")


@ALL
def test_c3_a_reload_in_mid_stream_goes_on_to_the_whole_answer(rig: Rig, page: Page, mark: str, model: str) -> None:
    """The answer takes 80 s: a busy machine needs half a minute to load the page again."""
    page.new_chat(model)
    page.say(f'{mark} [[tools=terminal:{{"command":"echo one"}} tokens=400 pace=0.2]]')
    page.wait_for("tok9 ")
    page.reload()
    page.wait_for("tok30 ")
    assert page.busy, "live again"
    page.picture("reloaded")
    page.wait_for("done after 1 results")
    page.wait_for_the_end()
    assert squeezed(page.text()).endswith(f"{counted(400)}done after 1 results")
    assert len(rig.agent_calls(mark)) == 2, "one run: a call for the tool, a call for the text"
    page.picture("done")


@pytest.mark.parametrize("model", [CHAT, RESPONSES])
def test_b7_one_message_is_one_run_and_title_tags_and_follow_ups_are_none(
    rig: Rig, page: Page, mark: str, model: str
) -> None:
    before = len(rig.runs())
    page.new_chat(model)
    page.say(f'{mark} [[tools=read_file:{{"path":"none.txt"}}]]')
    page.wait_for("done after 1 results")
    page.wait_for_the_end()
    wait_until(lambda: len(rig.plain_calls(mark)) >= 3, "title, follow-ups and tags", SLOW_S, every=0.1)
    page.tab.get_by_text("And then?").first.wait_for()
    page.tab.get_by_text("A fake title").first.wait_for()
    assert len(rig.plain_calls(mark)) == 3 and len(rig.agent_calls(mark)) == 2
    (run,) = rig.runs()[: len(rig.runs()) - before]
    assert run["status"] == "completed"
    page.picture("done")
