"""Limits and budgets of owners and profiles, at a real server (A7, A8, C6, C10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.story import chat
from tests.story.responses import HANGS, PATH, started
from tests.story.server import Answer, Client, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

KEYS = {name: f"{name}-key-0123456789abcdef" for name in ("fast", "runs", "loop", "daily", "money", "free", "shared")}
PROFILES = "".join(f'[profiles.{name}]\nowner = "{name}"\nkey = "{key}"\n\n' for name, key in KEYS.items())
CONFIG = f"""
{PROFILES.replace("[profiles.shared]", "[profiles.shared]" + chr(10) + "limits = {requests_per_minute = 1}")}
[prices.m]
input = 1.0
output = 1.0

[owners."*"]
requests_per_minute = 1000

[owners.fast]
requests_per_minute = 3
tokens_per_minute = 100000

[owners.runs]
runs = 2

[owners.loop]
tokens_per_run = 30

[owners.daily]
tokens_per_day = 30

[owners.money]
money_per_month = 0.00003
"""
TOOLS = (
    'do it [[tools=write_file:{"path":"one.txt","content":"1"}]] [[tools=write_file:{"path":"two.txt","content":"2"}]]'
)
RUNS = "/v1/runs"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limited")
    (folder / "ninelives.toml").write_text(CONFIG)
    server = start_server(folder, upstream.url, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    yield server
    assert server.stop() == 0


def of(server: Server, name: str) -> Client:
    return Client(server.port, {"authorization": f"Bearer {KEYS[name]}"})


def refused(answer: Answer, code: str) -> str:
    assert answer.status == 429 and answer.error()["code"] == code, answer.body
    assert int(answer.headers["retry-after"]) >= 1
    return str(answer.error()["message"])


def test_a8_requests_per_minute_are_429_with_the_headers_of_openai(
    limited: Server, upstream: Upstream, mark: str
) -> None:
    fast = of(limited, "fast")
    answers = [fast.post(chat.PATH, chat.ask(f"{mark} {n}")) for n in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert answers[0].headers["x-ratelimit-reset-requests"].endswith("s")
    assert answers[0].headers["x-ratelimit-limit-tokens"] == "100000"
    key = {"idempotency-key": mark}
    for path, body in ((chat.PATH, chat.ask("more")), (PATH, {"input": "more"}), (RUNS, {"input": "more"})):
        for headers in ({}, key):
            answer = fast.post(path, body, headers)
            assert "3 requests per minute" in refused(answer, "rate_limit_exceeded")
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(upstream.asked(mark)) == 3 and fast.get(f"{RUNS}?idempotency_key={mark}").json()["data"] == []
    free = of(limited, "free").post(chat.PATH, chat.ask("hi"))
    assert free.status == 200 and free.headers["x-ratelimit-limit-requests"] == "1000", "the limit of everybody"
    assert "x-ratelimit-limit-tokens" not in free.headers


def test_r16_a_known_key_is_answered_though_the_limit_is_reached(limited: Server, mark: str) -> None:
    shared, key = of(limited, "shared"), {"idempotency-key": mark}
    first = shared.post(PATH, {"input": "hello"}, key)
    assert first.status == 200
    assert "profile shared" in refused(shared.post(PATH, {"input": "other"}), "rate_limit_exceeded")
    again = shared.post(PATH, {"input": "hello"}, key)
    assert again.status == 200 and again.json()["id"] == first.json()["id"]


def test_a8_more_runs_than_an_owner_may_have_are_429_until_one_ends(limited: Server) -> None:
    runs = of(limited, "runs")
    busy = [started(runs, f"{n} {HANGS}") for n in range(2)]
    assert "owner runs" in refused(runs.post(PATH, {"input": "one more"}), "too_many_runs")
    assert of(limited, "free").post(PATH, {"input": "hi"}).status == 200
    runs.post(f"{PATH}/{busy[0]}/cancel")
    wait_until(lambda: runs.post(PATH, {"input": "one more"}).status == 200, "there is room again")
    runs.post(f"{PATH}/{busy[1]}/cancel")


def ended(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(PATH, body)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_c10_a_budget_that_is_met_in_a_tool_loop_keeps_all_finished_work_and_can_be_continued(
    limited: Server, upstream: Upstream, mark: str
) -> None:
    loop = of(limited, "loop")
    said = ended(loop, {"input": f"{mark} {TOOLS}"})
    assert said["status"] == "incomplete" and said["incomplete_details"] == {"reason": "budget"}
    assert len(upstream.asked(mark)) == 1, "the model was not asked again"
    kinds = [item["type"] for item in said["output"]]
    assert kinds[-2:] == ["function_call", "function_call_output"], "what the tool did is kept"
    run_id = f"run_{said['id'].removeprefix('resp_')}"
    run = loop.get(f"{RUNS}/{run_id}").json()
    assert run["status"] == "incomplete" and "30 tokens" in run["error"] and "fork" in run["error"]
    assert run["usage"]["total_tokens"] >= 30
    follows = ended(loop, {"input": "go on", "previous_response_id": said["id"]})
    assert follows["status"] in ("completed", "incomplete")
    (asked,) = upstream.asked(mark)[1:2]
    assert [m["role"] for m in asked["messages"]][-4:] == ["user", "assistant", "tool", "user"]
    forked = loop.post(f"{RUNS}/{run_id}/fork", {"from_seq": 4})
    assert forked.status == 202, forked.body
    copy = forked.json()["run_id"]
    wait_until(lambda: loop.get(f"{RUNS}/{copy}").json()["status"] in ("completed", "incomplete"), "the fork ends")


def test_b2_a_chat_that_meets_its_budget_ends_with_length(limited: Server, mark: str) -> None:
    answer = of(limited, "loop").post(chat.PATH, chat.ask(f"{mark} {TOOLS}"))
    assert answer.status == 200 and answer.json()["choices"][0]["finish_reason"] == "length"
    message = {"model": "loop", "max_tokens": 99, "messages": [{"role": "user", "content": f"{mark} {TOOLS}"}]}
    anthropic = of(limited, "loop").post("/v1/messages", message)
    assert anthropic.json()["stop_reason"] == "max_tokens"


def test_a_budget_of_a_day_is_429_until_the_next_day(limited: Server, upstream: Upstream, mark: str) -> None:
    daily = of(limited, "daily")
    said = ended(daily, {"input": f"{mark} {TOOLS}"})
    assert said["incomplete_details"] == {"reason": "budget"} and len(upstream.asked(mark)) == 1
    message = refused(daily.post(PATH, {"input": "more"}), "budget_exceeded")
    assert "owner daily" in message and "30 tokens" in message and "next day" in message
    assert len(upstream.asked(mark)) == 1


def test_a_budget_of_money_counts_by_the_price_table(limited: Server) -> None:
    money = of(limited, "money")
    run = ended(money, {"input": TOOLS})
    assert run["incomplete_details"] == {"reason": "budget"}
    assert "next month" in refused(money.post(chat.PATH, chat.ask("more")), "budget_exceeded")
