"""Two people who are signed in to one Open WebUI, behind one connection with a key that acts for them: files, memory,
sessions and approvals of one are not seen by the other (docs/open-webui.md, "Several people")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.openwebui.page import SLOW_S, Page
from tests.openwebui.rig import Rig, sign_in, start
from tests.story.server import Client, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHAT, RESPONSES = "chat.hermes-agent", "responses.hermes-agent"
PEOPLE = ("anna", "bert")


@pytest.fixture(scope="module")
def shared(wanted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """An Open WebUI with accounts, in front of a server that asks before it writes to-be-asked.txt."""
    started = start(tmp_path_factory.mktemp("people"), people=PEOPLE)
    yield started
    started.stop()


@pytest.fixture
def pages(shared: Rig, browser: Browser, request: pytest.FixtureRequest) -> Iterator[dict[str, Page]]:
    contexts = [browser.new_context(viewport={"width": 1100, "height": 760}) for _ in PEOPLE]
    opened = {}
    for name, context in zip(PEOPLE, contexts, strict=True):
        opened[name] = Page(context.new_page(), shared.url, f"two-users-{name}")
        opened[name].sign_in(f"{name}@example.org", sign_in(name))
        opened[name].picture("signed-in")
    yield opened
    for page in opened.values():
        if getattr(request.node, "failed", False):
            page.picture("failed")
    for context in contexts:
        context.close()


def output_of(page: Page, message: str) -> str:
    """What the tool of a new chat says."""
    page.new_chat(RESPONSES)
    page.say(message)
    page.wait_for("done after 1 results")
    page.wait_for_the_end()
    return page.open_card(0)


def test_files_and_memory_of_one_person_are_not_seen_by_the_other(
    shared: Rig, pages: dict[str, Page], mark: str
) -> None:
    anna, bert = pages["anna"], pages["bert"]
    write = f'write_file:{{"path":"{mark}.txt","content":"private-{mark}"}}'
    note = f'memory:{{"action":"add","text":"remember-{mark}"}}'
    anna.new_chat(RESPONSES)
    anna.say(f"{mark} [[tools={write}|{note}]]")
    anna.wait_for("done after 2 results")
    anna.wait_for_the_end()
    anna.picture("wrote")
    read = f'again {mark} [[tools=read_file:{{"path":"{mark}.txt"}}]]'
    recall = f'recall {mark} [[tools=memory:{{"action":"list"}}]]'
    seen = output_of(bert, read)
    bert.picture("reads-nothing")
    assert f"private-{mark}" not in seen
    recalled = output_of(bert, recall)
    bert.picture("remembers-nothing")
    assert f"remember-{mark}" not in recalled
    assert f"private-{mark}" in output_of(anna, read)
    anna.picture("reads-her-file")
    assert f"remember-{mark}" in output_of(anna, recall)
    anna.picture("remembers")


def test_approvals_and_sessions_of_one_person_are_not_those_of_the_other(
    shared: Rig, pages: dict[str, Page], mark: str
) -> None:
    anna, bert = pages["anna"], pages["bert"]
    anna.new_chat(CHAT)
    anna.say(f'{mark} [[tools=write_file:{{"path":"to-be-asked.txt","content":"x"}}]]')
    anna.wait_for("Approval needed")
    anna.wait_for_the_end()
    anna.picture("is-asked")
    code = re.search(r"approve ([A-Z0-9]{6})", anna.text())
    assert code is not None, anna.text()
    bert.new_chat(CHAT)
    bert.say(f"approve {code[1]}")
    bert.wait_for_the_end()
    bert.picture("cannot-approve")
    assert [run["status"] for run in shared.runs_of("anna") if run["status"] == "waiting_for_approval"]
    assert not list((shared.server.data / "workspaces").rglob("to-be-asked.txt"))
    anna.say(f"approve {code[1]}")
    anna.wait_for_the_end(2)
    wait_until(lambda: "done after 1 results" in anna.text(), "the rest of the run", SLOW_S, every=0.1)
    anna.picture("approved")
    assert len(list((shared.server.data / "workspaces").rglob("to-be-asked.txt"))) == 1
    for own, other in (("anna", "bert"), ("bert", "anna")):
        mine, theirs = shared.runs_of(own), shared.runs_of(other)
        assert mine and not {run["run_id"] for run in mine} & {run["run_id"] for run in theirs}
        client = Client(shared.server.port, shared.identity(other))
        assert client.get(f"/v1/runs/{mine[0]['run_id']}").status == 404
    nobody = Client(shared.server.port, {"authorization": shared.identity("anna")["authorization"]})
    assert nobody.get("/v1/runs").error()["code"] == "end_user_missing"
