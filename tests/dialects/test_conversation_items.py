"""The Conversations dialect: items of a run, and its turn without some of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from ninelives.core import events as e
from ninelives.core.errors import ClientError
from ninelives.core.history import turn_messages
from ninelives.core.state import RunState, chainable, fold
from ninelives.dialects.asking import Context, Profile
from ninelives.dialects.conversations.items import belongs_to, items_of, turn_without
from ninelives.dialects.conversations.parse import parse_create, parse_items
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import body
from ninelives.dialects.responses.parse import parse
from tests.journals import RUN, Pen, journals, quick, spec_of


def context(**headers: str) -> Context:
    return Context("alice", headers, Profile("hermes-agent"), b"secret")


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def created(**fields: Any) -> ParsedRequest:
    return parse_create(msgspec.json.encode(fields), context(), 100)


def asked(*items: dict[str, Any], **headers: str) -> RunState:
    """A response to these items."""
    parsed = parse(msgspec.json.encode({"input": list(items)}), context(**headers), 100)
    return Pen(parsed.spec).attempt().text("Hi").settle().complete().state


def contents(messages: list[dict[str, object]]) -> list[object]:
    return [message["content"] for message in messages]


@quick
@given(journals())
def test_a_turn_without_nothing_is_the_turn(entries: list[e.Entry]) -> None:
    state = fold(entries)
    assert turn_without(state, frozenset()) == turn_messages(state)


@quick
@given(journals())
def test_without_all_items_nothing_is_left_but_hidden_tools(entries: list[e.Entry]) -> None:
    state = fold(entries)
    if not chainable(state):
        return
    everything = frozenset(str(item["id"]) for item in items_of(state))
    left = [m for m in turn_without(state, everything) if m["role"] != "user"]
    names = {call["function"]["name"] for m in left for call in m.get("tool_calls", ())}  # type: ignore[attr-defined]
    assert all(message.get("content") is None or message["role"] == "tool" for message in left)
    assert all(name.startswith("_") for name in names)


@quick
@given(journals())
def test_items_have_ids_of_their_own_that_name_the_run_and_are_those_of_the_response(entries: list[e.Entry]) -> None:
    state = fold(entries)
    ids = [str(item["id"]) for item in items_of(state)]
    assert len(ids) == len(set(ids)) and all(belongs_to(shown, RUN) for shown in ids)
    shown = body.body(state).output
    assert set(ids) - {str(item["id"]) for item in body.input_items(state)} <= {item.id for item in shown}


def test_a_draft_that_a_crash_cut_off_is_no_item() -> None:
    """G3."""
    state = Pen().attempt().text("Hel").crash().think("hm").crash().text("Hello").settle().complete().state
    assert [item["type"] for item in items_of(state)] == ["message"]
    (item,) = items_of(state)
    assert turn_without(state, frozenset({str(item["id"])}))[1:] == []


def test_of_two_texts_the_one_is_left_out_whose_item_was_removed() -> None:
    pen = Pen().attempt().text("one")
    call = pen.call("terminal")
    state = pen.settle(call).start(call).finish(call, "42").text("two").settle().complete().state
    first, called, result, second = (str(item["id"]) for item in items_of(state))
    assert contents(turn_without(state, frozenset({first})))[1:] == [None, "42", "two"]
    assert contents(turn_without(state, frozenset({second})))[1:] == ["one", "42"]
    for gone in (called, result):
        turn = turn_without(state, frozenset({gone}))
        assert contents(turn)[1:] == ["one", "two"] and "tool_calls" not in turn[1]


def test_an_input_item_is_left_out() -> None:
    state = asked(said("user", "a"), said("assistant", "b"), said("user", "c"))
    ids = [str(item["id"]) for item in items_of(state)]
    assert contents(turn_without(state, frozenset())) == ["a", "b", "c", "Hi"]
    assert contents(turn_without(state, frozenset({ids[0]}))) == ["b", "c", "Hi"]
    assert contents(turn_without(state, frozenset({ids[2]}))) == ["a", "b", "Hi"]
    assert contents(turn_without(state, frozenset(ids))) == []


def test_system_items_that_were_prompts_of_the_run_do_not_come_into_its_turn() -> None:
    """C6: instructions are not inherited; what was no message of the input is none without some of it either."""
    items = (said("system", "S"), said("user", "a"), said("user", "b"))
    for kept in ((), ("S",)):
        texts = [{"role": item["role"], "content": item["content"]} for item in items if item["content"] in ("a", "b")]
        prompt = [{"role": "system", "content": text} for text in kept]
        state = Pen(spec_of(items=items, input=(*prompt, *texts))).attempt().complete().state
        gone = str(items_of(state)[1]["id"])
        assert contents(turn_without(state, frozenset({gone}))) == [*kept, "b"]


def test_a_run_in_a_named_session_gave_only_its_new_turn() -> None:
    """D2: what the front end sent again is in the session already."""
    items = (said("user", "a"), said("assistant", "b"), said("user", "c"), said("user", "d"))
    state = asked(*items, **{"x-hermes-session-id": "s"})
    ids = [str(item["id"]) for item in items_of(state)]
    assert contents(turn_without(state, frozenset({ids[0]}))) == ["c", "d", "Hi"]
    assert contents(turn_without(state, frozenset({ids[2]}))) == ["d", "Hi"]


def test_added_items_keep_their_place_and_their_roles() -> None:
    addition = created(items=[said("system", "D"), said("user", "a"), said("assistant", "b")])
    assert [message["role"] for message in addition.spec.input] == ["system", "user", "assistant"]
    assert (addition.spec.dialect, addition.asked.conversation_use, addition.asked.conversation) == (
        "conversations",
        "make",
        None,
    )
    state = Pen(addition.spec).attempt().complete().state
    assert contents(turn_messages(state)) == ["D", "a", "b"]
    gone = str(items_of(state)[0]["id"])
    assert contents(turn_without(state, frozenset({gone}))) == ["a", "b"]


def test_the_same_request_has_the_same_fingerprint_and_others_have_others() -> None:
    """C5, G4."""
    item = [said("user", "a")]

    def added(named: str, items: Any) -> str:
        return parse_items(msgspec.json.encode({"items": items}), context(), named, 100).asked.fingerprint

    assert created(items=item).asked.fingerprint == created(items=item, metadata={}, other=1).asked.fingerprint
    others = {
        created().asked.fingerprint,
        created(items=item).asked.fingerprint,
        created(items=item, metadata={"a": "b"}).asked.fingerprint,
        added("talk", item),
        added("other", item),
        added("talk", item * 2),
    }
    assert len(others) == 6


def test_no_items_at_all_make_an_empty_conversation() -> None:
    for fields in ({}, {"items": None}, {"items": []}, {"items": None, "metadata": None}):
        assert created(**fields).spec == spec_of("conversations", model="", input=())


def test_one_item_too_many_is_refused() -> None:
    with pytest.raises(ClientError) as caught:
        created(items=[said("user", "a")] * 21)
    assert caught.value.code == "too_many_items"
