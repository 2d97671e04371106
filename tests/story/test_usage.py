"""Tokens and cost: in a run, in lists, and by day, model and owner (C11, D1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.story import chat
from tests.story.server import Client, Server, Upstream, start_server

pytestmark = pytest.mark.xdist_group("processes")

ANN, BOB = "ann-key-0123456789abcdef", "bob-key-0123456789abcdef"
CONFIG = f"""
[prices.m]
input = 2.0
output = 10.0

[profiles.ann]
owner = "ann"
key = "{ANN}"

[profiles.bob]
owner = "bob"
key = "{BOB}"

[prices.bob]
input = 1000000
output = 0
"""
RUNS = "/v1/runs"


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("priced")
    (folder / "ninelives.toml").write_text(CONFIG)
    server = start_server(folder, upstream.url, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    yield server, folder
    assert server.stop() == 0


def of(server: Server, key: str) -> Client:
    return Client(server.port, {"authorization": f"Bearer {key}"})


def ran(client: Client, text: str) -> Any:
    """The run of a request that was answered."""
    answer = client.post("/v1/responses", {"input": text})
    assert answer.status == 200, answer.body
    return client.get(f"{RUNS}/run_{answer.json()['id'].removeprefix('resp_')}").json()


def test_c11_a_run_and_lists_show_its_tokens_and_its_cost(priced: tuple[Server, Path]) -> None:
    ann = of(priced[0], ANN)
    run = ran(ann, 'hello [[tools=todo:{"action":"list"}]]')
    used = run["usage"]
    assert used["input_tokens"] > 0 and used["output_tokens"] > 0
    assert run["cost"] == pytest.approx((used["input_tokens"] * 2 + used["output_tokens"] * 10) / 1e6)
    (listed,) = [each for each in ann.get(RUNS).json()["data"] if each["run_id"] == run["run_id"]]
    assert listed["cost"] == run["cost"]


def test_c11_the_upstreams_own_bill_wins_over_the_price_table(priced: tuple[Server, Path]) -> None:
    assert ran(of(priced[0], ANN), "hello [[cost=0.0125]]")["cost"] == 0.0125
    bobs = ran(of(priced[0], BOB), "hello")
    assert bobs["cost"] == bobs["usage"]["input_tokens"], "a profile may have a price of its own"


def test_failed_runs_are_counted_by_day_model_and_owner(priced: tuple[Server, Path]) -> None:
    def failed(name: str) -> int:
        return sum(each["errors"] for each in priced[0].client.get(f"/api/usage?owner={name}").json()["data"])

    before = failed("ann"), failed("bob")
    ann = of(priced[0], ANN)
    ann.post("/v1/responses", {"input": "[[status=400]]"})
    ann.post("/v1/chat/completions", chat.ask("[[status=400]]", store=False))
    ran(ann, "hello")
    assert (failed("ann"), failed("bob")) == (before[0] + 2, before[1])


def test_usage_is_told_by_day_model_and_owner_to_its_owner_and_to_admin_keys(
    priced: tuple[Server, Path], upstream: Upstream
) -> None:
    server, folder = priced
    ann, bob, admin = of(server, ANN), of(server, BOB), server.client
    before = {each["owner"]: each for each in admin.get("/api/usage").json()["data"]}
    run = ran(ann, "hello there")
    ran(bob, "hello")
    chat_run = ann.post("/v1/chat/completions", chat.ask("hello", store=False))
    assert chat_run.status == 200
    (mine,) = ann.get("/api/usage").json()["data"]
    assert mine["owner"] == "ann" and mine["model"] == "ann"
    was = before.get("ann", {"runs": 0, "input_tokens": 0, "cost": 0})
    assert mine["runs"] == was["runs"] + 2, "what is not stored counts too"
    assert mine["input_tokens"] > was["input_tokens"] + run["usage"]["input_tokens"]
    assert mine["cost"] > was["cost"] + run["cost"]
    assert ann.get("/api/usage?owner=bob").json()["data"] == ann.get("/api/usage?owner=nobody").json()["data"] == []
    assert {each["owner"] for each in admin.get("/api/usage").json()["data"]} == {"ann", "bob"}
    assert admin.get("/api/usage?owner=ann&days=1").json()["data"] == [mine]
    assert admin.get("/api/usage?days=0").error()["param"] == "days"
    assert ann.delete(f"{RUNS.replace('runs', 'responses')}/resp_{run['run_id'].removeprefix('run_')}").status == 200
    assert server.stop() == 0
    again = start_server(folder, upstream.url, at=server.port, NINELIVES_CONFIG=str(folder / "ninelives.toml"))
    server.process = again.process
    assert of(again, ANN).get("/api/usage").json()["data"] == [mine], "neither deletion nor a restart changes it"
