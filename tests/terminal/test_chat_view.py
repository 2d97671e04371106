"""What a chat leaves on the screen, event by event."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from prompt_toolkit.application import create_app_session
from prompt_toolkit.output import DummyOutput
from rich.markdown import Markdown
from rich.text import Text

from ninelives.cli.chat.memory import ChatPlace
from ninelives.cli.chat.screen import ChatScreen
from ninelives.cli.chat.view import LiveView, split_paragraphs


def delta(text: str) -> dict[str, Any]:
    return {"event": "message.delta", "delta": text}


def markdown(view: LiveView, *events: dict[str, Any]) -> list[str]:
    return [made.markup for event in events for made in view.handle(event) if isinstance(made, Markdown)]


def test_a_paragraph_stays_once_it_is_complete_and_a_fenced_block_is_one_paragraph() -> None:
    assert split_paragraphs("one\n\n```\na\n\nb\n```\n\ntwo") == (["one", "```\na\n\nb\n```"], "two")
    assert split_paragraphs("half ") == ([], "half ")
    view = LiveView()
    assert markdown(view, delta("one\n"), delta("\ntw")) == ["one"]
    assert view.live(80, 10) == ["tw"]
    assert markdown(view, {"event": "run.completed"}) == ["tw"]


def test_paragraphs_that_come_again_after_a_crash_are_not_shown_twice() -> None:
    view = LiveView()
    assert markdown(view, delta("one\n\ntwo\n\nthr")) == ["one", "two"]
    (note,) = view.handle({"event": "message.dropped", "from_seq": 1})
    assert isinstance(note, Text) and "begins again" in note.plain
    assert markdown(view, delta("one\n\nTWO\n\n"), delta("three\n\n")) == ["TWO", "three"]


def test_what_was_said_before_a_question_stands_above_it() -> None:
    view = LiveView()
    asked = {"event": "approval.request"}
    assert markdown(view, delta("I will write a file."), asked) == ["I will write a file."]
    assert view.live(80, 10) == []


def test_text_of_a_model_cannot_control_the_terminal() -> None:
    view = LiveView()
    assert markdown(view, delta("a\x1b[2Jb\n\n")) == ["a\\x1b[2Jb"]


def test_a_server_that_hangs_does_not_stop_the_prompt_and_requests_keep_their_order(tmp_path: Path) -> None:
    answers, sent = threading.Event(), SimpleQueue[str]()

    class Hanging:
        def get(self, path: str, method: str = "GET", body: Any = None, **more: Any) -> dict[str, Any]:
            answers.wait()
            sent.put(path.rsplit("/", 1)[-1] + str((body or {}).get("input", "")))
            return {}

    place = ChatPlace(tmp_path / "place", "server", "s1", "", resumed=False)
    with create_app_session(output=DummyOutput()):
        screen = ChatScreen(Hanging, place, "")  # type: ignore[arg-type]
    printed: list[object] = []
    screen._print = lambda *things: printed.extend(things)  # type: ignore[method-assign]
    screen._worker = threading.Thread(target=answers.wait, daemon=True)
    screen._worker.start()
    screen._run_id = "run_1"
    for line in ("first", "second", "/cancel"):
        assert screen._dispatch(line), "it comes back though the server hangs"
    assert sent.empty()
    answers.set()
    assert [sent.get(timeout=30) for _ in range(3)] == ["steerfirst", "steersecond", "stop"]


def test_a_server_and_a_help_text_do_not_load_the_parts_of_a_chat() -> None:
    program = (
        "import sys, ninelives.cli, ninelives.app.serve; print(sorted({'rich', 'prompt_toolkit'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == "[]\n"
