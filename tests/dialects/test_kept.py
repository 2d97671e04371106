"""What is kept of a request, what leaving does to it, and which later request asks for its answer: B6, B8, C4, G13.
The rules are the same on every API, so each test goes through the parsers of all that it is true of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.ids import item_id
from ninelives.dialects.asking import CALLER_IDS, Context, Profile
from ninelives.dialects.chat import parse as chat
from ninelives.dialects.clients import TABLE, Client, Policy, Rows
from ninelives.dialects.conversations import parse as conversations
from ninelives.dialects.messages import parse as messages
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import compaction
from ninelives.dialects.responses import parse as responses
from ninelives.dialects.runs import parse as runs

USER, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
Parse = Callable[[bytes, Context, int], ParsedRequest]
APIS: dict[str, tuple[Parse, dict[str, Any]]] = {
    "chat": (chat.parse, {"messages": [USER]}),
    "messages": (messages.parse, {"messages": [USER], "max_tokens": 9}),
    "responses": (responses.parse, {"input": "Hi"}),
}
WEBUI = {"x-openwebui-user-id": "u"}
AIOHTTP = {"user-agent": "Python/3.11 aiohttp/3.9"}
KEY = {"idempotency-key": "k"}
MEMORY = Profile("m", store_false="memory")
OTHERS = {"other": Profile("other")}
every_api = pytest.mark.parametrize("api", APIS)


def caller(headers: dict[str, str] | None = None, profile: Profile | None = None, **more: Any) -> Context:
    return Context("alice", headers or {}, profile or Profile("m"), b"secret", others=OTHERS, credential="k1", **more)


def read(api: str, context: Context | None = None, **fields: Any) -> ParsedRequest:
    parse, body = APIS[api]
    return parse(msgspec.json.encode({**body, **fields}), context or caller(), 10)


def waiting(api: str, headers: dict[str, str] | None = None, profile: Profile | None = None, **fields: Any) -> Asked:
    """The question of a caller who waits for the answer on a connection."""
    context = caller(headers, profile)
    return context.waiting(read(api, context, **fields).asked)


# What is kept (B6)

KEPT = [
    ("chat", {}, {}, "hours"),
    ("chat", {}, {"store": None}, "hours"),
    ("chat", {}, {"store": True}, "stored"),
    ("chat", KEY, {}, "stored"),
    ("chat", KEY, {"store": True}, "stored"),
    ("chat", {}, {"store": False}, "delivery"),
    ("messages", {}, {}, "hours"),
    ("messages", KEY, {}, "stored"),
    ("responses", {}, {}, "stored"),
    ("responses", {}, {"store": True}, "stored"),
    ("responses", KEY, {}, "stored"),
    ("responses", {}, {"store": False}, "delivery"),
]


@pytest.mark.parametrize(("api", "headers", "fields", "kept"), KEPT)
def test_b6_what_is_kept_follows_from_store_and_the_key(
    api: str, headers: dict[str, str], fields: dict[str, Any], kept: str
) -> None:
    made = read(api, caller(headers), **fields)
    assert (made.spec.kept, made.asked.kept, made.spec.store) == (kept, kept, kept == "stored")


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_b6_store_false_stays_off_the_disk_where_profile_key_or_client_say_memory(api: str) -> None:
    robot = Client(name="robot", agent="^robot/", store_false="memory")
    strict = [
        caller(profile=MEMORY),
        caller(settings=Policy(store_false="memory")),
        caller({"user-agent": "robot/1"}, clients=Rows((robot, *TABLE))),
    ]
    for context in strict:
        made = read(api, context, store=False)
        assert (made.spec.kept, made.asked.kept) == ("memory", "memory")
        assert read(api, context).spec.kept != "memory", "store was not false"
        assert read(api, context, store=True).spec.kept == "stored"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_b7_a_chore_is_in_memory(api: str) -> None:
    task = "### Task:\nMake a title"
    made = read(api, caller(WEBUI), **{"messages": [{**USER, "content": task}], "input": task})
    assert made.spec.chore and (made.spec.kept, made.asked.kept) == ("memory", "memory")


def test_c8_a_compaction_is_in_memory() -> None:
    made = compaction.parse(compaction.CompactRequest(model="m", input="Hi"), caller(), 10, {})
    assert (made.spec.kept, made.asked.kept, made.spec.store) == ("memory", "memory", False)


def test_d1_a_run_is_stored_and_goes_on() -> None:
    made = runs.parse(b'{"input":"Hi"}', caller(WEBUI, MEMORY), 10)
    assert (made.spec.kept, made.asked.kept, made.spec.on_disconnect) == ("stored", "stored", "detach")


# What leaving does (B6, C4)

LEAVING = [
    ("chat", {}, {}, "park"),
    ("chat", {}, {"store": False}, "park"),
    ("chat", {}, {"store": True}, "detach"),
    ("chat", KEY, {}, "detach"),
    ("chat", AIOHTTP, {}, "park"),
    ("chat", WEBUI, {}, "cancel"),
    ("chat", WEBUI, {"store": False}, "cancel"),
    ("chat", WEBUI, {"store": True}, "detach"),
    ("chat", {**WEBUI, **KEY}, {}, "cancel"),
    ("messages", {}, {}, "park"),
    ("messages", WEBUI, {}, "cancel"),
    ("messages", {**WEBUI, **KEY}, {}, "cancel"),
    ("responses", {}, {}, "detach"),
    ("responses", {}, {"store": False}, "park"),
    ("responses", AIOHTTP, {}, "detach"),
    ("responses", WEBUI, {}, "cancel"),
    ("responses", WEBUI, {"store": False}, "cancel"),
    ("responses", WEBUI, {"store": True}, "detach"),
    ("responses", WEBUI, {"background": True}, "detach"),
    ("responses", {**WEBUI, **KEY}, {}, "cancel"),
]


@pytest.mark.parametrize(("api", "headers", "fields", "leaving"), LEAVING)
def test_c4_leaving_cancels_where_it_is_the_stop_button_and_store_was_not_asked_for(
    api: str, headers: dict[str, str], fields: dict[str, Any], leaving: str
) -> None:
    """B6: what is not stored is parked otherwise, what is stored goes on. A bare aiohttp user agent is not enough."""
    assert read(api, caller(headers), **fields).spec.on_disconnect == leaving


@every_api
def test_c4_a_profile_or_key_may_say_that_leaving_is_the_stop_button(api: str) -> None:
    profile, key = Profile("m", on_disconnect="cancel"), Policy(on_disconnect="cancel")
    for context in (caller(profile=profile), caller(settings=key)):
        assert read(api, context).spec.on_disconnect == "cancel"


@every_api
@pytest.mark.parametrize("said", ["detach", "cancel"])
@pytest.mark.parametrize("store", [None, True, False])
def test_c4_x_on_disconnect_decides(api: str, said: str, store: bool | None) -> None:
    for known in ({}, WEBUI):
        context = caller({**known, "x-on-disconnect": said})
        assert read(api, context, store=store).spec.on_disconnect == said


@every_api
def test_c4_another_x_on_disconnect_is_400(api: str) -> None:
    for said in ("park", "explode"):
        with pytest.raises(ClientError) as caught:
            read(api, caller({"x-on-disconnect": said}))
        assert (caught.value.status, caught.value.code) == (400, "invalid_on_disconnect")


# Which request asks for the same answer (B8)


@every_api
def test_b8_the_same_request_from_the_same_ids_matches(api: str) -> None:
    ids = {name: "1" for name in CALLER_IDS}
    assert waiting(api, ids).match == waiting(api, ids).match != ""
    assert waiting(api).match == waiting(api, AIOHTTP, stream=True).match != "", "stream and user agent do not count"


@every_api
@pytest.mark.parametrize("name", CALLER_IDS)
def test_b8_a_request_with_another_id_does_not_match(api: str, name: str) -> None:
    found = {waiting(api, ids).match for ids in ({}, {name: "1"}, {name: "2"})}
    assert len(found) == 3


def test_b8_the_ids_are_those_of_the_contract() -> None:
    assert set(CALLER_IDS) == {
        "x-openwebui-user-id",
        "x-openwebui-chat-id",
        "x-hermes-session-id",
        "x-hermes-session-key",
        "x-hermes-user-id",
        "x-end-user-id",
    }


@every_api
def test_b8_ids_do_not_match_when_they_change_their_places(api: str) -> None:
    one, two = {"x-end-user-id": "a", "x-hermes-user-id": "b"}, {"x-end-user-id": "b", "x-hermes-user-id": "a"}
    assert waiting(api, one).match != waiting(api, two).match


ANN, BOB = {"user": "ann"}, {"user": "bob"}
USERS = [("chat", ANN, BOB), ("responses", ANN, BOB)]
USERS += [("messages", {"metadata": {"user_id": "ann"}}, {"metadata": {"user_id": "bob"}})]


@pytest.mark.parametrize(("api", "ann", "bob"), USERS)
def test_b8_another_user_in_the_body_does_not_match(api: str, ann: dict[str, Any], bob: dict[str, Any]) -> None:
    assert len({waiting(api, **fields).match for fields in (ann, bob, {})}) == 3


@every_api
def test_b8_another_model_or_profile_does_not_match(api: str) -> None:
    found = {waiting(api).match, waiting(api, model="other").match, waiting(api, profile=Profile("n")).match}
    assert len(found) == 3


@every_api
def test_b8_another_question_does_not_match(api: str) -> None:
    ask = {"messages": [{**USER, "content": "Ho"}], "input": "Ho"}
    assert waiting(api).match != waiting(api, **ask).match


def test_b8_no_two_apis_match() -> None:
    assert len({waiting(api).match for api in APIS}) == len(APIS)


def test_b6_a_request_with_store_false_does_not_match_a_run_that_stays_for_hours() -> None:
    """On chat both have one fingerprint (G4): false is the documented default of the API."""
    plain, forgotten = waiting("chat"), waiting("chat", store=False)
    assert plain.fingerprint == forgotten.fingerprint and plain.match != forgotten.match


def test_b8_the_same_words_typed_again_after_a_broken_answer_match() -> None:
    """Open WebUI leaves the broken answer out, so what was typed stands twice in a row."""
    first = waiting("chat", messages=[USER, HELLO, USER]).match
    assert waiting("chat", messages=[USER, HELLO, USER, USER]).match == first
    assert waiting("chat", messages=[USER, HELLO, USER, USER, USER]).match == first
    assert waiting("chat", messages=[USER, USER, HELLO, USER]).match != first, "only the last message is repeated so"
    assert waiting("chat", messages=[USER, HELLO, HELLO]).match != waiting("chat", messages=[USER, HELLO]).match


def _shown(run: str, seq: int, text: str = "Let me look.") -> dict[str, object]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "id": item_id("msg", run, seq), "content": [part]}


def test_b8_the_same_request_with_the_beginning_of_its_answer_matches() -> None:
    """Codex sends the items of the broken answer that it got whole along."""
    run, other = "ecba2cdac0e3fa27ba7eb4e2", "0123456789abcdef01234567"
    call = {"type": "mcp_call", "id": item_id("mcp", run, 7), "name": "terminal", "arguments": "{}", "output": ""}
    first = waiting("responses", input=[USER]).match
    assert waiting("responses", input=[USER, _shown(run, 2)]).match == first
    assert waiting("responses", input=[USER, _shown(run, 2), call, _shown(run, 2)]).match == first, "it broke twice"
    assert waiting("responses", input=[USER, _shown(run, 2), USER]).match != first, "the next question"
    assert waiting("responses", input=[USER, _shown(run, 2), _shown(other, 2)]).match != first, "two answers"
    assert waiting("responses", input=[USER, {**_shown(run, 2), "id": "msg_1"}]).match != first, "not an item of ours"
    keyed = {
        read("responses", caller(KEY), input=asked).asked.fingerprint for asked in ([USER], [USER, _shown(run, 2)])
    }
    assert len(keyed) == 2


def test_g4_with_a_key_a_repeated_message_is_another_request() -> None:
    one, two = (read("chat", caller(KEY), messages=[USER] * n).asked.fingerprint for n in (1, 2))
    assert one != two


@every_api
def test_b8_a_key_or_a_run_in_memory_joins_nothing(api: str) -> None:
    """A key names its run. A run in memory ends with its connection."""
    assert replace(waiting(api, KEY), resend_ms=0) == read(api, caller(KEY)).asked
    if api != "messages":  # it has no store
        made = replace(waiting(api, profile=MEMORY, store=False), resend_ms=0)
        assert made == read(api, caller(profile=MEMORY), store=False).asked


@every_api
def test_b8_without_a_connection_that_waits_nothing_is_joined(api: str) -> None:
    asked = read(api).asked
    assert (asked.match, asked.credential, asked.counted) == ("", "", False)


# For how long (B8)


@every_api
def test_b8_the_window_is_15_minutes_with_any_id_and_2_without(api: str) -> None:
    assert waiting(api).resend_ms == 120_000
    assert waiting(api, AIOHTTP).resend_ms == 120_000
    for name in CALLER_IDS:
        assert waiting(api, {name: "1"}).resend_ms == 900_000
    for name in set(CALLER_IDS) - {"x-hermes-session-id"}:  # an empty session is 400
        assert waiting(api, {name: ""}).resend_ms == 120_000


@pytest.mark.parametrize(("api", "ann", "bob"), USERS)
def test_b8_a_user_in_the_body_is_an_id_too(api: str, ann: dict[str, Any], bob: dict[str, Any]) -> None:
    assert waiting(api, **ann).resend_ms == waiting(api, **bob).resend_ms == 900_000
    nobody = {"metadata": {"user_id": ""}} if api == "messages" else {"user": ""}
    assert waiting(api, **nobody).resend_ms == 120_000


@every_api
def test_b8_the_windows_are_settings(api: str) -> None:
    profile = Profile("m", resend_ms=5, resend_anonymous_ms=3)
    assert waiting(api, WEBUI, profile).resend_ms == 5
    assert waiting(api, profile=profile).resend_ms == 3


def test_g13_items_that_are_sent_again_have_a_window_too() -> None:
    """Otherwise the retry of an SDK would add them twice."""
    items = msgspec.json.encode({"items": [USER]})
    for made in (conversations.parse_create(items, caller(), 10), conversations.parse_items(items, caller(), "c", 10)):
        asked = caller().waiting(made.asked)
        assert asked.match and asked.resend_ms == 120_000


# Retries that are counted (G13)

RETRIES = [(None, False), ("0", False), ("00", False), ("x", False), ("-1", False), ("", False), ("²", False)]
RETRIES += [("1", True), ("2", True), ("10", True)]


@every_api
@pytest.mark.parametrize(("count", "counted"), RETRIES)
def test_g13_a_retry_is_known_by_its_count(api: str, count: str | None, counted: bool) -> None:
    headers = {} if count is None else {"x-stainless-retry-count": count}
    asked = waiting(api, headers)
    assert (asked.counted, asked.credential) == (counted, "k1")
    assert asked.match == waiting(api).match, "the count is no part of the request"
