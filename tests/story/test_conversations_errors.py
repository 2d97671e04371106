"""What the Conversations API refuses, each code by its name (A7, C7, C8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.story.responses import HANGS, PATH, create, started
from tests.story.server import Answer, Client

pytestmark = pytest.mark.xdist_group("processes")

BASE = "/v1/conversations"
ITEM = {"type": "message", "role": "user", "content": "hi"}


def refused(answer: Answer, status: int, code: str, param: str | None = None) -> str:
    assert (answer.status, answer.error()["code"], answer.error()["param"]) == (status, code, param), answer.body
    return str(answer.error()["message"])


@pytest.fixture
def talk(client: Client) -> str:
    return str(client.post(BASE, {"items": [ITEM]}).json()["id"])


@pytest.mark.parametrize("named", ["conv_nosuchthing", "a-name-that-nobody-used", "x/y"])
def test_404_conversation_not_found(client: Client, named: str) -> None:
    for method, path, body in [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [ITEM]}),
        ("GET", "/items/item_x", None),
        ("DELETE", "/items/item_x", None),
    ]:
        message = refused(client.call(method, f"{BASE}/{named}{path}", body), 404, "conversation_not_found")
        assert named in message
    assert client.get(f"{BASE}/{named}").status == 404, "nothing was made by it"


def test_404_item_not_found(client: Client, talk: str) -> None:
    other = client.post(BASE, {"items": [ITEM]}).json()["id"]
    theirs = client.get(f"{BASE}/{other}/items").json()["data"][0]["id"]
    mine = client.get(f"{BASE}/{talk}/items").json()["data"][0]["id"]
    for item in ("item_nosuchthing", "nonsense", theirs, mine[:-1] + "9"):
        for method in ("GET", "DELETE"):
            assert item in refused(client.call(method, f"{BASE}/{talk}/items/{item}"), 404, "item_not_found")
    assert len(client.get(f"{BASE}/{other}/items").json()["data"]) == 1


def test_409_conversation_response_not_completed(client: Client, mark: str) -> None:
    create(client, "one", conversation=mark)
    item = client.get(f"{BASE}/{mark}/items").json()["data"][0]["id"]
    active = started(client, HANGS, conversation=mark)
    for method, path, body in [
        ("POST", f"{BASE}/{mark}/items", {"items": [ITEM]}),
        ("DELETE", f"{BASE}/{mark}/items/{item}", None),
        ("DELETE", f"{BASE}/{mark}", None),
    ]:
        answer = client.call(method, path, body)
        message = refused(answer, 409, "conversation_response_not_completed", "conversation")
        assert active in message and answer.headers["x-should-retry"] == "false"
    assert client.get(f"{BASE}/{mark}/items/{item}").status == 200, "reading goes on"
    assert client.post(f"{BASE}/{mark}", {"metadata": {"a": "b"}}).status == 200, "and so does noting"
    client.post(f"{PATH}/{active}/cancel")
    assert client.delete(f"{BASE}/{mark}").json()["deleted"] is True


def test_409_idempotency_key_conflict(client: Client, talk: str, mark: str) -> None:
    headers = {"idempotency-key": mark}
    assert client.post(f"{BASE}/{talk}/items", {"items": [ITEM]}, headers).status == 200
    for path, body in [
        (f"{BASE}/{talk}/items", {"items": [{**ITEM, "content": "other"}]}),
        (BASE, {"items": [ITEM]}),
        (PATH, {"input": "hi"}),
    ]:
        refused(client.post(path, body, headers), 409, "idempotency_key_conflict")
    assert len(client.get(f"{BASE}/{talk}/items").json()["data"]) == 2


def test_400_invalid_idempotency_key(client: Client) -> None:
    refused(client.post(BASE, {}, {"idempotency-key": "a b"}), 400, "invalid_idempotency_key")


def test_400_too_many_items(client: Client, talk: str) -> None:
    for path in (BASE, f"{BASE}/{talk}/items"):
        assert "20" in refused(client.post(path, {"items": [ITEM] * 21}), 400, "too_many_items", "items")
        assert client.post(path, {"items": [ITEM] * 20}).status == 200


def test_400_too_many_parts(client: Client, talk: str) -> None:
    parts = [{"type": "input_text", "text": "x"}] * 5000
    body = {"items": [{**ITEM, "content": parts}]}
    refused(client.post(f"{BASE}/{talk}/items", body), 400, "too_many_parts", "items")


def test_400_missing_required_parameter(client: Client, talk: str) -> None:
    for body in ({}, {"items": None}):
        refused(client.post(f"{BASE}/{talk}/items", body), 400, "missing_required_parameter", "items")
    refused(client.post(f"{BASE}/{talk}", {}), 400, "missing_required_parameter", "metadata")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "nobody", "content": "x"},
        {"type": "message", "role": "user", "content": 7},
        {"type": "message", "role": "user"},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c"},
        {"type": "item_reference", "id": "item_x"},
        {"type": 7},
    ],
)
def test_400_invalid_value_in_an_item(client: Client, talk: str, item: Any) -> None:
    before = client.get(f"{BASE}/{talk}/items").json()
    for path in (BASE, f"{BASE}/{talk}/items"):
        assert "items[1]" in refused(client.post(path, {"items": [ITEM, item]}), 400, "invalid_value", "items")
    assert client.get(f"{BASE}/{talk}/items").json() == before, "all of them or none"


def test_400_invalid_value_in_other_fields(client: Client, talk: str) -> None:
    refused(client.post(f"{BASE}/{talk}/items", {"items": []}), 400, "invalid_value", "items")
    refused(client.post(f"{BASE}/{talk}/items", {"items": "hi"}), 400, "invalid_value", "items")
    for metadata in ({"a": 1}, {"k" * 65: "v"}, {"k": "v" * 513}, {f"k{n}": "v" for n in range(17)}, "x"):
        for path in (BASE, f"{BASE}/{talk}"):
            refused(client.post(path, {"metadata": metadata}), 400, "invalid_value", "metadata")
    assert client.post(f"{BASE}/{talk}", {"metadata": None}).json()["metadata"] == {}


def test_400_invalid_value_in_a_query(client: Client, talk: str) -> None:
    for path in (BASE, f"{BASE}/{talk}/items"):
        for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order")):
            refused(client.get(f"{path}?{query}"), 400, "invalid_value", param)
    refused(client.get(f"{BASE}/{talk}/items?after=item_x"), 400, "invalid_value", "after")
    assert client.get(f"{BASE}?after=conv_nosuchthing").json()["data"] == []
    assert client.get(f"{BASE}/{talk}/items?include[]=message.input_image.image_url").status == 200


def test_405_method_not_allowed(client: Client, talk: str) -> None:
    for method, path in (("PATCH", f"{BASE}/{talk}"), ("DELETE", BASE), ("PUT", f"{BASE}/{talk}/items")):
        refused(client.call(method, path, {}), 405, "method_not_allowed")


def test_added_items_are_no_response(client: Client, talk: str) -> None:
    item = client.get(f"{BASE}/{talk}/items").json()["data"][0]["id"]
    shown = "resp_" + item.removeprefix("item_")[:-6]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        refused(client.call(method, f"{PATH}/{shown}{path}"), 404, "response_not_found")
