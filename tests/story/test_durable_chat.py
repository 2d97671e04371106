"""Chat completions: owned by their connection unless they are stored, and then as durable as any run (B2, B6, C4)."""

from __future__ import annotations

import pytest

from tests.story.chat import PATH, ask, check_whole, create, text_of, told
from tests.story.responses import HANGS, SLOW, counted
from tests.story.server import Client, Frame, Server, Upstream, wait_until

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {"NINELIVES_LIMITS_LEAVE_GRACE_S": "0.3", "NINELIVES_LIMITS_KEEPALIVE_S": "0.2"}
TOOL = '[[tools=read_file:{"path":"none.txt"}]]'
WEBUI = {"x-openwebui-chat-id": "chat-1"}


def numbers(frames: list[Frame]) -> list[int]:
    return [frame.number for frame in frames if "sequence_number" in frame.data]


def test_b2_chunks_come_in_legal_order_and_usage_only_where_it_is_asked_for(client: Client) -> None:
    with client.stream(PATH, ask("hi [[tokens=5]]", stream=True)) as stream:
        frames = stream.rest()
        assert stream.done
    check_whole(frames)
    assert told(frames) == counted(5)
    with client.stream(PATH, ask("hi", stream=True, stream_options={"include_usage": True})) as stream:
        check_whole(stream.rest(), usage=True)


def test_b2_reasoning_comes_as_reasoning_content(client: Client) -> None:
    with client.stream(PATH, ask("hi [[reason=3]]", stream=True)) as stream:
        frames = stream.rest()
    check_whole(frames)
    thoughts = [frame.data["choices"][0]["delta"].get("reasoning_content", "") for frame in frames]
    assert "".join(thoughts) == "think0 think1 think2 " and "think" not in told(frames)
    message = create(client, "hi [[reason=3]]")["choices"][0]["message"]
    assert message["reasoning_content"] == "think0 think1 think2 "


@pytest.mark.parametrize("stream", [True, False])
def test_b6_what_is_not_stored_ends_with_its_connection_and_is_unknown(
    client: Client, upstream: Upstream, mark: str, stream: bool
) -> None:
    early = upstream.stats()["closed_early"]
    sock = client.left_waiting(PATH, ask(f"{mark} {HANGS}", stream=stream))
    wait_until(lambda: upstream.asked(mark), "the upstream is asked")
    sock.close()
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")
    shown = create(client, "hello")["id"]
    assert client.get(f"{PATH}/{shown}").error() == {
        "message": f"Completion not found: {shown}",
        "type": "invalid_request_error",
        "param": None,
        "code": "completion_not_found",
    }


def test_b6_a_key_makes_a_chat_durable_but_not_against_an_explicit_store_false(client: Client, mark: str) -> None:
    refused = client.post(PATH, ask("hi", store=False), {"idempotency-key": mark})
    assert (refused.status, refused.error()["code"]) == (400, "idempotency_requires_store")
    first = create(client, "hi", {"idempotency-key": mark})
    assert client.get(f"{PATH}/{first['id']}").json() == first
    assert create(client, "hi", {"idempotency-key": mark})["id"] == first["id"]


def test_b6_leaving_a_stored_chat_detaches_and_the_key_replays_the_whole_stream(
    client: Client, upstream: Upstream, mark: str
) -> None:
    body, headers = ask(f"{mark} {TOOL} {SLOW}", stream=True), {"idempotency-key": mark}
    with client.stream(PATH, body, headers) as stream:
        seen = stream.take(8)
        with client.stream(PATH, body, headers) as second:
            again = second.rest()
            assert second.done
    shown = check_whole(again)
    assert [f.raw for f in again[:8]] == [f.raw for f in seen], "no snapshot: the whole stream again"
    assert told(again) == f"Step 0: calling read_file. {counted(40)}done after 1 results"
    with client.stream(PATH, body, headers) as third:
        assert [f.raw for f in third.rest()] == [f.raw for f in again]
    waited = create(client, f"{mark} {TOOL} {SLOW}", headers)
    assert waited["id"] == shown and text_of(waited) == told(again)
    assert len(upstream.asked(mark)) == 2, "one run: a round with the call, a round with the text"


def test_b6_each_chunk_of_a_stored_chat_has_its_place_and_starting_after_counts_it(client: Client) -> None:
    body = ask(f"hi {TOOL}", stream=True, store=True, stream_options={"include_usage": True})
    with client.stream(PATH, body) as stream:
        frames = stream.rest()
    shown = check_whole(frames, usage=True)
    places = numbers(frames)
    assert places == sorted(set(places)) and len(places) >= len(frames) - 2
    for k in places:
        tail = [f.raw for f in frames[[f.data.get("sequence_number") for f in frames].index(k) + 1 :]]
        with client.stream(f"{PATH}/{shown}?stream=true&starting_after={k}") as again:
            rest = [f.raw for f in again.rest()]
            assert again.done
        assert rest == tail or k == places[-1], k
    with client.stream(f"{PATH}/{shown}?stream=true&starting_after={places[-1] + 100}") as beyond:
        assert any(f.data["choices"] and f.data["choices"][0]["finish_reason"] == "stop" for f in beyond.rest())
        assert beyond.done
    with client.stream(f"{PATH}/{shown}?stream=true") as whole:
        assert [f.raw for f in whole.rest()] == [f.raw for f in frames]


def test_b6_of_several_chunks_of_one_entry_only_the_last_carries_the_number(client: Client) -> None:
    body = ask("hi", stream=True, store=True, stream_options={"include_usage": True})
    with client.stream(PATH, body) as stream:
        frames = stream.rest()
    role, finish, usage = frames[0].data, frames[-2].data, frames[-1].data
    assert "sequence_number" not in role
    assert "sequence_number" not in finish and "sequence_number" in usage, "finish and usage render one entry"


def test_b6_a_live_stored_chat_can_be_resumed_in_the_middle(client: Client) -> None:
    with client.stream(PATH, ask(f"hi {SLOW}", stream=True, store=True)) as stream:
        seen = stream.take(10)
        shown = seen[0].data["id"]
        with client.stream(f"{PATH}/{shown}?stream=true&starting_after={seen[-1].number}") as second:
            rest = second.rest()
    assert told(seen + rest) == counted(40)
    assert numbers(seen + rest) == sorted(set(numbers(seen + rest)))


def test_b6_stored_chats_are_read_listed_annotated_and_deleted(client: Client, mark: str) -> None:
    made = [create(client, f"hi {n}", store=True, metadata={"of": mark})["id"] for n in range(3)]
    first = client.get(f"{PATH}/{made[0]}").json()
    assert first["metadata"] == {"of": mark} and first["object"] == "chat.completion"
    listed = client.get(f"{PATH}?limit=100&order=desc").json()
    assert listed["object"] == "list" and [c["id"] for c in listed["data"]][:3] == made[::-1]
    oldest = client.get(f"{PATH}?limit=100").json()["data"]
    assert [c["id"] for c in oldest][-3:] == made, "oldest first where no order is given, as the API says"
    page = client.get(f"{PATH}?order=asc&limit=1&after={made[0]}").json()
    assert (page["data"][0]["id"], page["first_id"], page["last_id"]) == (made[1], made[1], made[1])
    assert page["has_more"] is True
    changed = client.post(f"{PATH}/{made[0]}", {"metadata": {"a": "b"}})
    assert changed.json() == {**first, "metadata": {"a": "b"}} == client.get(f"{PATH}/{made[0]}").json()
    deleted = client.delete(f"{PATH}/{made[0]}")
    assert deleted.json() == {"id": made[0], "object": "chat.completion.deleted", "deleted": True}
    assert client.get(f"{PATH}/{made[0]}").status == 404
    assert made[0] not in [c["id"] for c in client.get(f"{PATH}?limit=100").json()["data"]]


def test_b6_the_messages_of_a_stored_chat_are_listed_in_their_order(client: Client) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    shown = client.post(PATH, {"messages": messages, "store": True}).json()["id"]
    listed = client.get(f"{PATH}/{shown}/messages").json()
    assert [m["content"] for m in listed["data"]] == ["be brief", "one", "two", "three"]
    assert len({m["id"] for m in listed["data"]}) == 4
    page = client.get(f"{PATH}/{shown}/messages?order=desc&limit=1").json()
    assert page["data"][0]["content"] == "three" and page["has_more"] is True


def test_b6_delete_of_an_active_stored_chat_ends_it(client: Client, upstream: Upstream, server: Server) -> None:
    early = upstream.stats()["closed_early"]
    with client.stream(PATH, ask(HANGS, stream=True, store=True)) as stream:
        shown = stream.take(3)[0].data["id"]
        assert client.delete(f"{PATH}/{shown}").status == 200
        last = stream.rest()[-1]
        assert last.data["error"]["code"] == "run_cancelled" and not stream.done
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")
    assert client.get(f"{PATH}/{shown}").status == 404
    wait_until(lambda: server.health()["runs"]["active"] == 0, "no run is left")


# Leaving as a stop button (C4)


@pytest.mark.parametrize("path", [PATH, "/v1/responses"])
@pytest.mark.parametrize("stream", [True, False])
def test_c4_a_front_end_that_stops_by_leaving_ends_a_stored_run_after_the_grace(
    client: Client, upstream: Upstream, mark: str, path: str, stream: bool
) -> None:
    early = upstream.stats()["closed_early"]
    text = f"{mark} {HANGS}"
    body = ask(text, stream=stream) if path == PATH else {"input": text, "stream": stream}
    headers = {**WEBUI, "idempotency-key": mark}
    sock = client.left_waiting(path, body, headers)
    wait_until(lambda: upstream.asked(mark), "the upstream is asked")
    sock.close()
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "cancelled after the grace")
    (run,) = client.get(f"/v1/runs?idempotency_key={mark}").json()["data"]
    wait_until(lambda: client.get(f"/v1/runs/{run['run_id']}").json()["status"] == "cancelled", "it says so")


def test_c4_a_reader_who_comes_back_within_the_grace_keeps_the_run(client: Client, mark: str) -> None:
    headers = {**WEBUI, "idempotency-key": mark}
    body = {"input": f"{mark} {SLOW}", "stream": True}
    with client.stream("/v1/responses", body, headers) as stream:
        shown = stream.take(6)[0].data["response"]["id"]
    with client.stream(f"/v1/responses/{shown}?stream=true") as again:
        assert again.rest()[-1].name == "response.completed"


def test_c4_a_watcher_who_leaves_does_not_end_a_run_for_which_its_caller_waits(client: Client, mark: str) -> None:
    body, headers = {"input": f"{mark} [[tokens=60 pace=0.02]]"}, {**WEBUI, "idempotency-key": mark}
    with client.left_waiting("/v1/responses", body, headers):
        (run,) = wait_until(lambda: client.get(f"/v1/runs?idempotency_key={mark}").json()["data"], "the run")
        with client.stream(f"/v1/runs/{run['run_id']}/events") as stream:
            stream.take(2)
        with client.stream(f"/v1/runs/{run['run_id']}/events?after=0") as stream:
            stream.take(2)
        over = ("completed", "cancelled", "failed")
        done = wait_until(
            lambda: (r := client.get(f"/v1/runs/{run['run_id']}").json())["status"] in over and r, "the run ends"
        )
    assert done["status"] == "completed"


@pytest.mark.parametrize("path", [PATH, "/v1/responses"])
def test_c4_with_an_explicit_store_true_the_run_goes_on(client: Client, mark: str, path: str) -> None:
    text = f"{mark} {SLOW}"
    body = ask(text, stream=True, store=True) if path == PATH else {"input": text, "stream": True, "store": True}
    with client.stream(path, body, {**WEBUI, "idempotency-key": mark}) as stream:
        stream.take(5)
    (run,) = client.get(f"/v1/runs?idempotency_key={mark}").json()["data"]
    done = wait_until(
        lambda: (r := client.get(f"/v1/runs/{run['run_id']}").json())["status"] not in ("queued", "running") and r,
        "the run ends",
    )
    assert (done["status"], done["output"]) == ("completed", counted(40))


def test_g6_silence_is_filled_with_the_keepalive_comment_only(client: Client) -> None:
    body = {"input": "hi [[slowstart=0.7]]", "stream": True}
    with client.stream("/v1/responses", body) as stream:
        stream.rest()
        assert stream.comments and set(stream.comments) == {b": keepalive"}
    with client.stream(PATH, ask("hi [[slowstart=0.7]]", stream=True)) as stream:
        check_whole(stream.rest())
        assert stream.comments and set(stream.comments) == {b": keepalive"}


# What reaches the upstream, and what it cost (B1, C11)


def test_b1_fields_and_images_reach_the_upstream_and_the_systems_are_layered(
    client: Client, upstream: Upstream, mark: str
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    sent = {
        "temperature": 0.3,
        "top_p": 0.9,
        "frequency_penalty": 0.1,
        "presence_penalty": -0.1,
        "stop": ["END"],
        "seed": 7,
        "max_tokens": 99,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
    }
    messages = [
        {"role": "system", "content": "be a pirate"},
        {"role": "developer", "content": "and brief"},
        {"role": "user", "content": [{"type": "text", "text": mark}, image]},
    ]
    assert client.post(PATH, {"messages": messages, **sent}).status == 200
    (asked,) = upstream.asked(mark)
    assert {name: asked.get(name) for name in sent} == sent
    system, user = asked["messages"]
    assert system["role"] == "system" and "be a pirate" in system["content"] and "and brief" in system["content"]
    assert len(system["content"]) > len("be a pirate and brief") + 20, "the profile's own prompt is there too"
    assert user["content"] == messages[2]["content"]


def test_c11_usage_is_the_sum_of_all_calls_of_the_run(client: Client, upstream: Upstream, mark: str) -> None:
    text = f"{mark} {TOOL} [[reason=2 cached=7]]"
    usage = create(client, text)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 14}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    made = client.post("/v1/responses", {"input": text}).json()["usage"]
    assert made["input_tokens"] == usage["prompt_tokens"] and made["output_tokens"] == usage["completion_tokens"]
    assert made["input_tokens_details"]["cached_tokens"] == 14
    assert made["output_tokens_details"] == {"reasoning_tokens": 4}
