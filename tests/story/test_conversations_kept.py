"""Conversations beside the rest of the house: retention, the list of runs, and the commands that look after a store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.story.conversations import BASE, said, told
from tests.story.responses import PATH, create, started
from tests.story.server import Client, Server, Upstream, start_server, wait_until
from tests.story.test_store import ninelives

pytestmark = pytest.mark.xdist_group("processes")

KEEP = {"NINELIVES_STORE_MAX_RESPONSES": "3", "NINELIVES_STORE_RETENTION_S": "0.1"}


@pytest.fixture
def keeping(tmp_path: Path, upstream: Upstream) -> Iterator[Server]:
    server = start_server(tmp_path / "keeping", upstream.url, **KEEP)
    yield server
    if server.process.child.poll() is None:
        assert server.stop() == 0


def items(client: Client, talk: str) -> list[Any]:
    return list(client.get(f"{BASE}/{talk}/items?order=asc&limit=100").json()["data"])


def count(server: Server, query: str) -> int:
    with closing(sqlite3.connect(f"file:{server.data / 'ninelives.db'}?mode=ro", uri=True)) as db:
        return int(db.execute(f"SELECT COUNT(*) FROM {query}").fetchone()[0])


def test_d1_added_items_are_no_run_that_can_be_watched(client: Client, mark: str) -> None:
    headers = {"Idempotency-Key": mark}
    talk = client.post(BASE, {"items": [said("user", "a")]}, headers).json()["id"]
    added = client.post(f"{BASE}/{talk}/items", {"items": [said("user", "b")]}).json()["data"][0]["id"]
    run = added.removeprefix("item_")[:-6]
    answered = create(client, mark, conversation=talk)
    listed = [one["run_id"] for one in client.get("/v1/runs?limit=3").json()["data"]]
    assert listed[0] == answered["id"].replace("resp_", "run_") and f"run_{run}" not in listed
    assert client.get(f"/v1/runs?idempotency_key={mark}").json()["data"] == []
    for path in ("", "/events", "/receipt"):
        assert client.get(f"/v1/runs/run_{run}{path}").error()["code"] == "run_not_found"
    for path in ("/stop", "/pin"):
        assert client.post(f"/v1/runs/run_{run}{path}").error()["code"] == "run_not_found"
    assert client.get(f"{PATH}/resp_{run}").error()["code"] == "response_not_found"


def test_p20_expired_turns_are_listed_no_more_and_still_told_to_the_next(
    keeping: Server, upstream: Upstream, mark: str
) -> None:
    client = keeping.client
    for n in range(4):
        create(client, f"turn{n}", conversation="talk")
    wait_until(lambda: keeping.health()["expired"] >= 1, "the first goes")
    shown = [item["content"][0]["text"] for item in items(client, "talk") if item["role"] == "user"]
    assert shown[-1] == "turn3" and "turn0" not in shown
    create(client, mark, conversation="talk")
    assert [text for role, text in told(upstream, mark) if role == "user"] == [*(f"turn{n}" for n in range(4)), mark]


def test_p20_a_conversation_that_is_read_is_used(keeping: Server) -> None:
    client = keeping.client
    talk = client.post(BASE, {"items": [said("user", "a")]}).json()["id"]
    for n in range(8):
        assert [item["content"][0]["text"] for item in items(client, talk)] == ["a"], n
        gone = keeping.health()["expired"]
        create(client, f"other {n}")
        if n >= 2:
            wait_until(lambda gone=gone: keeping.health()["expired"] > gone, "another one goes")  # type: ignore[misc]


def test_what_was_taken_out_of_a_deleted_turn_does_not_stay_in_the_store(keeping: Server) -> None:
    client = keeping.client
    made = create(client, "secret words", conversation="talk")
    first = items(client, "talk")[0]["id"]
    assert client.delete(f"{BASE}/talk/items/{first}").status == 200
    assert count(keeping, "conversation_edits") == 1
    assert client.delete(f"{PATH}/{made['id']}").status == 200
    wait_until(lambda: not count(keeping, "conversation_edits"), "the edited turn goes with the turn")


def test_the_store_commands_know_all_that_a_store_can_hold(keeping: Server, tmp_path: Path, upstream: Upstream) -> None:
    """Edits, additions, keys, sessions, pins, evicted, deleted, cancelled and running runs, a lost connection."""
    client = keeping.client
    talk = client.post(BASE, {"items": [said("user", "a"), said("user", "b")]}, {"Idempotency-Key": "k"}).json()["id"]
    pinned = create(client, "pinned", conversation=talk)["id"]
    assert client.post(f"/v1/runs/{pinned}/pin").status == 200
    assert client.delete(f"{BASE}/{talk}/items/{items(client, talk)[1]['id']}").status == 200
    gone = client.post(BASE, {"items": [said("user", "c")]}).json()["id"]
    kept = create(client, "of a deleted conversation", conversation=gone)["id"]
    assert client.delete(f"{BASE}/{gone}").status == 200
    create(client, "in a session", {"X-Hermes-Session-Id": "s"})
    create(client, "child", previous_response_id=kept)
    assert client.delete(f"{PATH}/{kept}").status == 200
    for n in range(5):
        create(client, f"turn {n}", conversation="named")
    wait_until(lambda: keeping.health()["expired"] >= 3, "some expire")
    client.post(f"{PATH}/{started(client, '[[hang=1]]')}/cancel")
    with client.left_waiting(PATH, {"input": "[[hang=1]]", "conversation": "named"}):
        wait_until(lambda: keeping.health()["runs"]["active"] == 1, "one runs")
        assert "no damage" in ninelives("store", "backup", str(tmp_path / "copy"), "--data-dir", str(keeping.data))
        report = json.loads(ninelives("store", "check", "--data-dir", str(keeping.data), "--json"))
        assert report["problems"] == []
    keeping.kill()
    for command in (["check"], ["compact"], ["check"], ["restore", str(tmp_path / "copy"), "--replace"], ["check"]):
        said_so = ninelives("store", *command, "--data-dir", str(keeping.data))
        assert "problem" not in said_so
    again = start_server(keeping.data.parent, upstream.url, NINELIVES_STORE_MAX_RESPONSES="0")
    try:
        assert "pinned" in [item["content"][0]["text"] for item in items(again.client, talk)]
        assert again.client.get(f"{PATH}/{pinned}").status == 200
        (named,) = [row for row in again.client.get(BASE).json()["data"] if row["name"] == "named"]
        active = again.client.get("/v1/runs?status=running").json()["data"]
        for run in active:
            again.client.post(f"/v1/runs/{run['run_id']}/stop")
        assert create(again.client, "goes on", conversation=named["id"])["status"] == "completed"
    finally:
        assert again.stop() == 0
