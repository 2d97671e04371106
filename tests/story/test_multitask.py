"""X-Multitask-Strategy over HTTP: what happens to a request while another run of its conversation is active (C7)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.story.server import Answer, Client, wait_until

pytestmark = pytest.mark.xdist_group("processes")

PATH = "/v1/responses"
SLOW = "[[tokens=30 pace=0.1]]"


def create(client: Client, text: str, talk: str, strategy: str | None = None, **fields: Any) -> Answer:
    headers = {"X-Multitask-Strategy": strategy} if strategy else None
    return client.post(PATH, {"input": text, "conversation": talk, **fields}, headers)


def begin(client: Client, talk: str) -> str:
    answer = create(client, f"hi {SLOW}", talk, background=True)
    assert answer.status == 200, answer.body
    shown = str(answer.json()["id"])
    wait_until(lambda: client.get(f"{PATH}/{shown}").json()["status"] == "in_progress", "it works")
    return shown


def test_c7_reject_enqueue_and_an_unknown_strategy(client: Client, mark: str) -> None:
    shown = begin(client, mark)
    for strategy in (None, "reject"):
        answer = create(client, "next", mark, strategy)
        assert (answer.status, answer.error()["code"]) == (409, "conversation_response_not_completed")
    assert create(client, "next", mark, "later").error()["code"] == "invalid_multitask_strategy"
    answer = create(client, "next [[text=Second.]]", mark, "enqueue")
    assert answer.status == 200 and answer.json()["status"] == "completed"
    assert client.get(f"{PATH}/{shown}").json()["status"] == "completed"


def test_c7_interrupt_cuts_the_run_at_its_next_safe_point(client: Client, mark: str) -> None:
    shown = begin(client, mark)
    answer = create(client, "next [[text=Second.]]", mark, "interrupt")
    assert answer.status == 200 and answer.json()["status"] == "completed"
    before = client.get(f"{PATH}/{shown}").json()
    assert before["status"] in ("completed", "incomplete")


def test_c7_steer_answers_with_the_active_run(client: Client, mark: str) -> None:
    shown = begin(client, mark)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(create, client, "next [[text=As you wish.]]", mark, "steer").result(60)
    assert answer.status == 200 and (answer.json()["id"], answer.json()["status"]) == (shown, "completed")
    texts = [part["text"] for item in answer.json()["output"] for part in item.get("content", [])]
    assert texts[-1] == "As you wish."


def test_c7_a_session_is_taken_alone_only_where_a_strategy_asks_for_it(client: Client, mark: str) -> None:
    session = {"X-Hermes-Session-Id": mark}
    first = client.post("/v1/runs", {"input": f"hi {SLOW}"}, session)
    assert first.status == 202
    assert client.post("/v1/runs", {"input": "beside"}, session).status == 202
    answer = client.post("/v1/runs", {"input": "next"}, {**session, "X-Multitask-Strategy": "reject"})
    assert (answer.status, answer.error()["code"]) == (409, "session_response_not_completed")
    after = client.post("/v1/runs", {"input": "next"}, {**session, "X-Multitask-Strategy": "enqueue"})
    assert after.status == 202
    assert client.get(f"/v1/runs/{first.json()['run_id']}").json()["status"] == "completed"
