"""Conversations under keys, races and kills (C5, C7, C8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

import openai
import pytest

from tests.story.conversations import BASE, ordered, said, texts, told
from tests.story.responses import PATH, create, finished
from tests.story.server import KEY, Client, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_c5_a_key_makes_a_conversation_and_adds_items_once(sdk: openai.OpenAI, mark: str) -> None:
    headers = {"Idempotency-Key": mark}
    made = [sdk.conversations.create(items=[said("user", "a")], extra_headers=headers) for _ in range(2)]
    assert made[0] == made[1]
    talk = made[0].id
    headers = {"Idempotency-Key": f"{mark}-items"}
    added = [sdk.conversations.items.create(talk, items=[said("user", "b")], extra_headers=headers) for _ in range(2)]
    assert added[0] == added[1] and texts(ordered(sdk, talk)) == ["a", "b"]
    sdk.conversations.delete(talk)
    again = sdk.conversations.create(items=[said("user", "a")], extra_headers={"Idempotency-Key": mark})
    assert again.id != talk, "what is deleted frees its key"


def test_c7_of_two_turns_at_once_exactly_one_is_409(client: Client, mark: str) -> None:
    talk = client.post(BASE, {}).json()["id"]
    body = {"input": f"{mark} [[hang=1]]", "conversation": talk, "background": True}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: client.post(PATH, body), range(2)))
    assert sorted(answer.status for answer in answers) == [200, 409]
    for answer in answers:
        if answer.status == 200:
            client.post(f"{PATH}/{answer.json()['id']}/cancel")
        else:
            assert answer.error()["code"] == "conversation_response_not_completed"


def test_c8_of_many_additions_at_once_none_is_lost(client: Client) -> None:
    talk = client.post(BASE, {}).json()["id"]

    def add(n: int) -> int:
        return client.post(f"{BASE}/{talk}/items", {"items": [said("user", f"{n}")]}).status

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(add, range(24))) == [200] * 24
    items = client.get(f"{BASE}/{talk}/items?limit=100").json()["data"]
    assert sorted(int(item["content"][0]["text"]) for item in items) == list(range(24))


def test_c8_a_kill_between_turns_keeps_items_removals_and_metadata(
    upstream: Upstream, tmp_path: Path, mark: str
) -> None:
    first = start_server(tmp_path, upstream.url)
    client = first.client
    talk = client.post(BASE, {"items": [said("user", "a"), said("user", "b")], "metadata": {"k": "v"}}).json()["id"]
    create(client, "one [[text=uno]]", conversation=talk)
    client.post(f"{BASE}/{talk}/items", {"items": [said("user", "c")]})
    items = client.get(f"{BASE}/{talk}/items?order=asc").json()["data"]
    client.delete(f"{BASE}/{talk}/items/{items[1]['id']}")
    client.delete(f"{BASE}/{talk}/items/{items[3]['id']}")
    gone = client.post(BASE, {"items": [said("user", "x")]}).json()["id"]
    client.delete(f"{BASE}/{gone}")
    before = client.get(f"{BASE}/{talk}/items?order=asc").json()
    first.kill()
    second = start_server(tmp_path, upstream.url)
    try:
        client = second.client
        assert client.get(f"{BASE}/{talk}/items?order=asc").json() == before
        assert client.get(f"{BASE}/{talk}").json()["metadata"] == {"k": "v"}
        assert client.get(f"{BASE}/{gone}").status == 404
        assert second.health()["recovery"]["recovered"] == 0, "added items are no work that could be left over"
        finished(client, create(client, f"two {mark}", conversation=talk)["id"])
        contents = [content for _, content in told(upstream, f"two {mark}")]
        assert contents == ["a", "one [[text=uno]]", "c", f"two {mark}"]
    finally:
        second.stop()


def test_g13_an_addition_whose_answer_was_lost_is_not_made_twice_by_an_sdks_retry(
    upstream: Upstream, tmp_path: Path
) -> None:
    """A kill between the commit and the last byte of the answer leaves the run of the addition waited for."""
    retry = {"x-stainless-retry-count": "1"}
    server = start_server(tmp_path, upstream.url)
    talk = server.client.post(BASE, {"metadata": {"of": "first"}}).json()["id"]
    body = {"items": [said("user", "once")]}
    added = server.client.post(f"{BASE}/{talk}/items", body).json()
    assert server.client.post(f"{BASE}/{talk}/items", body, retry).json() != added, "it was answered: asked for twice"
    server.kill()
    with closing(sqlite3.connect(server.data / "ninelives.db")) as db, db:
        assert db.execute("SELECT COUNT(*) FROM runs WHERE credential != ''").fetchone()[0] == 3
        db.execute("UPDATE runs SET waits = 1")
    server = start_server(tmp_path, upstream.url)
    try:
        assert server.client.post(BASE, {"metadata": {"of": "first"}}, retry).json()["id"] == talk
        again = [server.client.post(f"{BASE}/{talk}/items", body, retry).json() for _ in range(3)]
        assert again[1] == added and again[2] != again[0] != added, "each lost one is found once, the newest first"
        assert len(server.client.get(f"{BASE}/{talk}/items").json()["data"]) == 3
    finally:
        server.stop()


def add(client: Client, talk: str, name: str) -> int:
    body = {"items": [said("user", name)]}
    return client.post(f"{BASE}/{talk}/items", body, {"idempotency-key": name}).status


def add_until_dead(client: Client, talk: str, names: list[str], heard: list[str]) -> int:
    """Add one after the other; how many were sent when the server was gone."""
    for sent, name in enumerate(names):
        try:
            assert add(client, talk, name) == 200
        except (OSError, HTTPException):
            return sent + 1
        heard.append(name)
    raise AssertionError("the server outlived its kill")


def test_c5_items_that_are_added_over_kills_are_there_once_and_in_order(upstream: Upstream, tmp_path: Path) -> None:
    server = start_server(tmp_path, upstream.url)
    talk = server.client.post(BASE, {}, {"idempotency-key": "talk"}).json()["id"]
    expected: list[str] = []
    for life in range(3):
        names, heard = [f"{life}-{n}" for n in range(10_000)], list[str]()
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(add_until_dead, server.client, talk, names, heard)
            wait_until(lambda heard=heard, least=5 + 7 * life: len(heard) > least, "items are added")  # type: ignore[misc]
            server.kill()
            sent = adding.result(30)
        server = start_server(tmp_path, upstream.url)
        assert len(heard) == sent - 1
        for name in names[max(sent - 3, 0) : sent]:
            assert add(server.client, talk, name) == 200, "who heard nothing asks again with the same key"
        expected += names[:sent]
        page = server.client.get(f"{BASE}/{talk}/items?limit=100").json()["data"]
        assert [item["content"][0]["text"] for item in page] == expected[::-1][:100]
    assert server.client.post(BASE, {}, {"idempotency-key": "talk"}).json()["id"] == talk
    server.stop()
