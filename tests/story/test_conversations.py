"""The Conversations API (C7, C8): the real openai-python against the real server, and the fake upstream that tells
which history each turn was given. Errors are in test_conversations_errors.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.story.conversations import BASE, MODEL, ask, ordered, said, texts, told
from tests.story.responses import HANGS, PATH, create, started
from tests.story.server import KEY, Client, Server, Upstream

pytestmark = pytest.mark.xdist_group("processes")

WRITE = '[[tools=write_file:{"path":"c.txt","content":"x"}]]'


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


# The conversation


def test_c8_a_conversation_is_made_retrieved_updated_and_deleted(sdk: openai.OpenAI) -> None:
    made = sdk.conversations.create(metadata={"topic": "demo"}, items=[said("user", "Hello!")])
    assert made.id.startswith("conv_") and made.object == "conversation" and made.created_at > 1_700_000_000
    assert made.metadata == {"topic": "demo"}
    assert sdk.conversations.retrieve(made.id) == made
    assert sdk.conversations.update(made.id, metadata={"topic": "other", "n": "1"}).id == made.id
    assert sdk.conversations.retrieve(made.id).metadata == {"topic": "other", "n": "1"}
    gone = sdk.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.conversations.retrieve(made.id)
    assert caught.value.code == "conversation_not_found" and made.id in caught.value.message
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model=MODEL, conversation=made.id, input="hi")


def test_c8_an_empty_conversation_has_no_items_and_takes_turns(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    talk = sdk.conversations.create().id
    page = sdk.conversations.items.list(talk)
    assert (page.data, page.has_more, page.last_id) == ([], False, None) and "first_id" in page.to_dict()
    response = ask(sdk, talk, f"one {mark}", "uno")
    assert response.conversation.id == talk
    assert told(upstream, f"one {mark}") == [("user", f"one {mark} [[text=uno]]")]


def test_c7_a_name_is_an_alias_of_the_same_conversation(sdk: openai.OpenAI, mark: str) -> None:
    talk = ask(sdk, mark, "one", "uno").conversation.id
    assert sdk.conversations.retrieve(mark) == sdk.conversations.retrieve(talk)
    assert sdk.conversations.retrieve(mark).id == talk and sdk.conversations.retrieve(mark).name == mark  # type: ignore[attr-defined]
    assert ordered(sdk, mark) == ordered(sdk, talk)
    sdk.conversations.items.create(mark, items=[said("user", "by name")])
    assert texts(ordered(sdk, talk))[-1] == "by name"
    sdk.conversations.update(mark, metadata={"a": "b"})
    assert sdk.conversations.retrieve(talk).metadata == {"a": "b"}
    assert sdk.conversations.delete(mark).id == talk
    again = ask(sdk, mark, "two", "due")
    assert again.conversation.id != talk, "the name makes a new one"
    assert len(ordered(sdk, mark)) == 2


def test_c7_names_with_slashes_spaces_and_other_letters_are_found(client: Client, mark: str) -> None:
    for name, path in ((f"{mark}/a b", f"{mark}/a%20b"), (f"{mark}-grün", f"{mark}-gr%C3%BCn")):
        talk = create(client, "hi", conversation=name)["conversation"]["id"]
        assert client.get(f"{BASE}/{path}").json()["id"] == talk
        assert len(client.get(f"{BASE}/{path}/items").json()["data"]) == 2


def test_c8_conversations_are_listed_by_age(sdk: openai.OpenAI, client: Client) -> None:
    made = [sdk.conversations.create().id for _ in range(5)]
    seen: list[str] = []
    page: Any = {"has_more": True}
    while len(seen) < 5:
        after = f"&after={seen[-1]}" if seen else ""
        page = client.get(f"{BASE}?limit=2{after}").json()
        assert page["object"] == "list" and page["first_id"] == page["data"][0]["id"]
        seen += [row["id"] for row in page["data"]]
    newest = set(seen[:5])
    assert newest == set(made)
    assert client.get(f"{BASE}?order=asc&limit=1").json()["data"][0]["id"] not in made[1:]


def test_c8_deleting_a_conversation_keeps_its_responses(sdk: openai.OpenAI, upstream: Upstream, mark: str) -> None:
    talk = sdk.conversations.create(items=[said("user", "my item")]).id
    response = ask(sdk, talk, "one", "uno")
    sdk.conversations.delete(talk)
    assert sdk.responses.retrieve(response.id).output_text == "uno"
    sdk.responses.create(model=MODEL, previous_response_id=response.id, input=f"two {mark}")
    assert [content for _, content in told(upstream, f"two {mark}")] == [
        "my item",
        "one [[text=uno]]",
        "uno",
        f"two {mark}",
    ]


# Items


def test_c8_items_of_turns_and_of_the_client_stand_in_one_line(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    talk = sdk.conversations.create(items=[said("user", "first"), said("system", "Be a pirate.")]).id
    response = ask(sdk, talk, "one", "uno")
    added = sdk.conversations.items.create(talk, items=[said("user", "aside"), said("assistant", "noted")])
    assert texts(added.data) == ["aside", "noted"] and added.has_more is False
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)
    assert [item.status for item in added.data] == ["completed"] * 2  # type: ignore[union-attr]
    expected = ["first", "Be a pirate.", "one [[text=uno]]", "uno", "aside", "noted"]
    items = ordered(sdk, talk)
    assert texts(items) == expected
    assert [item.role for item in items] == ["user", "system", "user", "assistant", "user", "assistant"]
    assert texts(list(sdk.conversations.items.list(talk))) == expected[::-1], "newest first, as the API says"
    assert items[3].id == response.output[0].id
    inputs = sdk.responses.input_items.list(response.id).data
    assert [item.id for item in inputs] == [items[2].id]
    ask(sdk, talk, f"two {mark}", "due")
    assert told(upstream, f"two {mark}") == [
        ("user", "first"),
        ("system", "Be a pirate."),
        ("user", "one [[text=uno]]"),
        ("assistant", "uno"),
        ("user", "aside"),
        ("assistant", "noted"),
        ("user", f"two {mark} [[text=due]]"),
    ]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_c8_pages_meet_without_gap_or_overlap(sdk: openai.OpenAI, order: Any, limit: int) -> None:
    talk = sdk.conversations.create(items=[said("user", f"c{n}") for n in range(5)]).id
    for n in range(3):
        ask(sdk, talk, f"t{n}", f"a{n}")
    sdk.conversations.items.create(talk, items=[said("user", "last")])
    expected = [f"c{n}" for n in range(5)]
    for n in range(3):
        expected += [f"t{n} [[text=a{n}]]", f"a{n}"]
    expected.append("last")
    first = sdk.conversations.items.list(talk, order=order, limit=limit)
    assert len(first.data) == min(limit, 12) and first.has_more is (limit < 12)
    found = list(sdk.conversations.items.list(talk, order=order, limit=limit))
    assert texts(found) == (expected if order == "asc" else expected[::-1])
    assert len({item.id for item in found}) == 12


def test_c8_an_item_is_retrieved_by_its_id_whoever_made_it(sdk: openai.OpenAI) -> None:
    talk = sdk.conversations.create(items=[said("user", "first")]).id
    ask(sdk, talk, f"call {WRITE}", "done")
    items = ordered(sdk, talk)
    assert [item.type for item in items] == ["message", "message", "message", "mcp_call", "message"]
    for item in items:
        assert sdk.conversations.items.retrieve(item.id, conversation_id=talk) == item


def test_c8_a_clients_own_ids_do_not_count(sdk: openai.OpenAI) -> None:
    same: Any = {**said("user", "twice"), "id": "msg_mine"}
    talk = sdk.conversations.create(items=[same, same]).id
    ids = [item.id for item in ordered(sdk, talk)]
    assert len(set(ids)) == 2 and "msg_mine" not in ids


def test_c8_a_deleted_item_is_gone_from_the_list_and_from_the_history(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    talk = sdk.conversations.create(items=[said("user", "keep"), said("user", "secret")]).id
    ask(sdk, talk, "one", "uno")
    ask(sdk, talk, "two", "due")
    items = ordered(sdk, talk)
    gone = [items[1], items[3], items[4]]
    for item in gone:
        assert sdk.conversations.items.delete(item.id, conversation_id=talk).id == talk
    assert texts(ordered(sdk, talk)) == ["keep", "one [[text=uno]]", "due"]
    for item in gone:
        for call in (sdk.conversations.items.retrieve, sdk.conversations.items.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                call(item.id, conversation_id=talk)
            assert caught.value.code == "item_not_found"
    ask(sdk, talk, f"three {mark}", "tre")
    contents = [content for _, content in told(upstream, f"three {mark}")]
    assert contents == ["keep", "one [[text=uno]]", "due", f"three {mark} [[text=tre]]"]


def test_c8_paging_goes_on_after_an_item_that_was_deleted_meanwhile(sdk: openai.OpenAI) -> None:
    talk = sdk.conversations.create(items=[said("user", f"c{n}") for n in range(6)]).id
    first = sdk.conversations.items.list(talk, order="asc", limit=2)
    sdk.conversations.items.delete(first.data[1].id, conversation_id=talk)
    rest = list(sdk.conversations.items.list(talk, order="asc", limit=2, after=first.data[1].id))
    assert texts(rest) == ["c2", "c3", "c4", "c5"]


@pytest.mark.parametrize("style", ["mcp_call", "function_call"])
def test_c8_a_deleted_call_takes_its_result_out_of_the_history_with_it(
    sdk: openai.OpenAI, upstream: Upstream, mark: str, style: str
) -> None:
    for place in range(1 if style == "mcp_call" else 2):
        talk = sdk.conversations.create().id
        ask(sdk, talk, f"call {WRITE}", "done", extra_headers={"X-Tool-Items": style})
        calls = [item for item in ordered(sdk, talk) if item.type != "message"]
        sdk.conversations.items.delete(calls[place].id, conversation_id=talk)
        assert len(ordered(sdk, talk)) == 3 + len(calls) - 1
        ask(sdk, talk, f"next {mark}{place}", "ok")
        messages = upstream.asked(f"next {mark}{place}")[-1]["messages"]
        assert not any("tool_calls" in message or message["role"] == "tool" for message in messages)


def test_c8_a_clients_tool_result_that_is_deleted_takes_the_call_out_of_the_history(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    items: Any = [said("user", "look"), call, output, said("assistant", "I saw.")]
    talk = sdk.conversations.create(items=items).id
    ask(sdk, talk, f"one {mark}", "uno")
    kinds = [(m["role"], bool(m.get("tool_calls"))) for m in upstream.asked(f"one {mark}")[-1]["messages"][1:]]
    assert kinds == [("user", False), ("assistant", True), ("tool", False), ("assistant", False), ("user", False)]
    shown = ordered(sdk, talk)
    assert (shown[2].type, shown[2].output, shown[2].status) == ("function_call_output", "seen", "completed")
    sdk.conversations.items.delete(shown[2].id, conversation_id=talk)
    ask(sdk, talk, f"two {mark}", "due")
    contents = [content for _, content in told(upstream, f"two {mark}")]
    assert contents[:2] == ["look", "I saw."] and len(contents) == 5


def test_c8_a_failed_or_cancelled_turn_gives_no_items(client: Client, mark: str) -> None:
    create(client, "one", conversation=mark)
    before = client.get(f"{BASE}/{mark}/items").json()
    create(client, "fails [[status=400]]", conversation=mark)
    cancelled = started(client, HANGS, conversation=mark)
    client.post(f"{PATH}/{cancelled}/cancel")
    create(client, "ghost", conversation=mark, store=False)
    assert client.get(f"{BASE}/{mark}/items").json() == before


def test_c7_a_turn_that_is_not_stored_sees_the_items_and_adds_none(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    talk = sdk.conversations.create(items=[said("user", "first"), said("user", "second")]).id
    sdk.conversations.items.delete(ordered(sdk, talk)[0].id, conversation_id=talk)
    ask(sdk, talk, f"ghost {mark}", "boo", store=False)
    assert told(upstream, f"ghost {mark}")[0] == ("user", "second")
    assert texts(ordered(sdk, talk)) == ["second"]


def test_c6_a_chain_by_previous_response_keeps_what_a_conversation_removed(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    talk = sdk.conversations.create().id
    response = ask(sdk, talk, "one", "uno")
    sdk.conversations.items.delete(response.output[0].id, conversation_id=talk)
    sdk.responses.create(model=MODEL, previous_response_id=response.id, input=f"chain {mark}")
    assert [content for _, content in told(upstream, f"chain {mark}")][1] == "uno"
    assert sdk.responses.retrieve(response.id).output_text == "uno"


def test_c6_a_deleted_response_is_listed_no_more_but_later_turns_keep_it(
    sdk: openai.OpenAI, upstream: Upstream, mark: str
) -> None:
    talk = sdk.conversations.create().id
    first = ask(sdk, talk, "one", "uno")
    ask(sdk, talk, "two", "due")
    sdk.responses.delete(first.id)
    assert texts(ordered(sdk, talk)) == ["two [[text=due]]", "due"]
    ask(sdk, talk, f"three {mark}", "tre")
    assert [content for _, content in told(upstream, f"three {mark}")][1] == "uno"
