"""The durable stream story on /v1/responses: a client that leaves only detaches, and whatever is asked later tells the
same (C2, C3, C5, C8, G2, G5, G6)."""

from __future__ import annotations

import socket

import pytest

from tests.story.responses import (
    HANGS,
    PATH,
    SLOW,
    check_whole,
    counted,
    create,
    finished,
    get,
    plain,
    started,
    text_of,
)
from tests.story.server import Client, Server, Upstream, wait_until

pytestmark = pytest.mark.xdist_group("processes")

TWO_TOOLS = '[[tools=write_file:{"path":"a.txt","content":"hi"}|read_file:{"path":"a.txt"}]]'


def test_c2_a_stream_that_is_not_stored_ends_with_done_and_is_unknown_afterwards(client: Client) -> None:
    with client.stream(PATH, {"input": "hello", "stream": True, "store": False}) as stream:
        last = check_whole(stream.rest())
        assert stream.done and stream.ended == "whole"
    assert last["status"] == "completed" and last["store"] is False
    answer = client.get(f"{PATH}/{last['id']}")
    assert answer.status == 404
    assert answer.error() == {
        "message": f"Response not found: {last['id']}",
        "type": "invalid_request_error",
        "param": None,
        "code": "response_not_found",
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("store", [True, False])
def test_c2_all_four_combinations_of_stream_and_store_give_the_same_answer(
    client: Client, stream: bool, store: bool
) -> None:
    body = {"input": "hello [[tokens=5]]", "stream": stream, "store": store}
    if stream:
        with client.stream(PATH, body) as reading:
            response = check_whole(reading.rest())
    else:
        response = client.post(PATH, body).json()
    assert text_of(response) == counted(5) and response["status"] == "completed"
    kept = client.get(f"{PATH}/{response['id']}")
    assert kept.status == (200 if store else 404)
    if store:
        assert kept.json() == plain(response)


def test_c2_the_record_is_there_before_created_is_told_and_get_shows_what_there_is_so_far(client: Client) -> None:
    with client.stream(PATH, {"input": f"hi {SLOW}", "stream": True}) as stream:
        first = stream.next()
        assert first is not None and first.name == "response.created"
        shown = first.data["response"]["id"]
        assert get(client, shown)["status"] in ("queued", "in_progress")
        stream.until("response.output_text.delta")
    partial = wait_until(lambda: (r := get(client, shown)) and text_of(r) and r, "partial text")
    assert partial["status"] == "in_progress" and partial["usage"] is None
    assert counted(40).startswith(text_of(partial)) and text_of(partial) != counted(40)
    assert partial["output"][0]["status"] == "in_progress"
    whole = finished(client, shown)
    assert whole["status"] == "completed" and text_of(whole) == counted(40)
    assert whole["usage"]["output_tokens"] == 40


def test_c3_a_stream_cut_after_created_completes_in_the_background(client: Client, upstream: Upstream) -> None:
    early = upstream.stats()["closed_early"]
    with client.stream(PATH, {"input": f"hi {TWO_TOOLS}", "stream": True}) as stream:
        shown = stream.until("response.created")[0].data["response"]["id"]
    whole = finished(client, shown)
    assert whole["status"] == "completed"
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["message", *["function_call", "function_call_output", "message"] * 2]
    assert text_of(whole).endswith("done after 2 results")
    assert upstream.stats()["closed_early"] == early


def test_c2_a_run_that_is_not_stored_ends_when_its_client_leaves(client: Client, upstream: Upstream) -> None:
    early = upstream.stats()["closed_early"]
    started(client, HANGS, store=False)
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")


def test_c2_a_caller_who_waits_for_a_run_that_is_not_stored_owns_it_too(
    client: Client, server: Server, upstream: Upstream, mark: str
) -> None:
    early = upstream.stats()["closed_early"]
    waiting = client.left_waiting(PATH, {"input": f"{mark} {HANGS}", "store": False})
    wait_until(lambda: upstream.asked(mark), "the upstream is asked")
    waiting.close()
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")
    wait_until(lambda: server.health()["runs"]["active"] == 0, "no run is left")


def test_c2_a_caller_who_leaves_while_it_waits_for_a_stored_run_only_detaches(client: Client, mark: str) -> None:
    client.left_waiting(PATH, {"input": f"{mark} {SLOW}"}, {"idempotency-key": mark}).close()
    (run,) = wait_until(lambda: client.get(f"/v1/runs?idempotency_key={mark}").json()["data"], "the run")
    whole = finished(client, run["run_id"].replace("run_", "resp_"))
    assert whole["status"] == "completed" and text_of(whole) == counted(40)


# Resuming (C3, G5, G6)


def test_c3_resume_at_every_k_gives_the_tail_after_the_end(client: Client) -> None:
    with client.stream(PATH, {"input": f"hi {TWO_TOOLS}", "stream": True}) as stream:
        frames = stream.rest()
    shown = check_whole(frames)["id"]
    for k in [-1, *range(len(frames) - 1)]:
        query = f"&starting_after={k}" if k >= 0 else ""
        with client.stream(f"{PATH}/{shown}?stream=true{query}") as again:
            tail = again.rest()
            assert again.done
        assert [f.raw for f in tail] == [f.raw for f in frames[k + 1 :]], k


def test_c3_resume_at_several_k_while_the_run_goes_on_gives_every_frame_once(client: Client) -> None:
    with client.stream(PATH, {"input": f"hi {SLOW}", "stream": True}) as stream:
        seen = stream.take(12)
        shown = seen[0].data["response"]["id"]
        readers = [client.stream(f"{PATH}/{shown}?stream=true&starting_after={k}") for k in (0, 3, 7, 11)]
        tails = [reader.rest() for reader in readers]
        frames = seen + stream.rest()
    for reader in readers:
        reader.leave()
    check_whole(frames)
    for k, tail in zip((0, 3, 7, 11), tails, strict=True):
        assert [f.raw for f in tail] == [f.raw for f in frames[k + 1 :]], k


def test_g6_last_event_id_is_another_name_of_starting_after(client: Client) -> None:
    shown = create(client, "hello")["id"]
    with client.stream(f"{PATH}/{shown}?stream=true&starting_after=4") as by_query:
        expected = [f.raw for f in by_query.rest()]
    with client.stream(f"{PATH}/{shown}?stream=true", headers={"last-event-id": "4"}) as by_header:
        assert [f.raw for f in by_header.rest()] == expected != []


def test_g6_no_frame_is_split_over_two_writes(client: Client) -> None:
    shown = create(client, "[[tokens=1500 pace=0.001]]")["id"]  # paced: a flood would be a few big deltas
    headers = {**client._headers, "host": "127.0.0.1"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", client.port), 10) as sock, sock.makefile("rb") as answer:
        sock.sendall(f"GET {PATH}/{shown}?stream=true HTTP/1.1\r\n{head}\r\n".encode())
        while answer.readline().strip():
            continue
        writes = []
        while size := int(answer.readline(), 16):
            writes.append(answer.read(size))
            assert answer.readline() == b"\r\n"
    assert len(writes) > 3 and sum(map(len, writes)) > 200_000
    assert all(write.endswith(b"\n\n") for write in writes), "each write is a number of whole frames"


@pytest.mark.parametrize("beyond", [0, 1, 1000, 10**14])
def test_g5_resume_at_or_beyond_the_end_gives_the_last_event_and_done(client: Client, beyond: int) -> None:
    with client.stream(PATH, {"input": "hello", "stream": True}) as stream:
        last = stream.rest()[-1]
    shown = last.data["response"]["id"]
    with client.stream(f"{PATH}/{shown}?stream=true&starting_after={last.number + beyond}") as again:
        assert [f.raw for f in again.rest()] == [last.raw]
        assert again.done


# Idempotency keys (C5, G2, G4)


def test_c5_a_key_without_store_is_400(client: Client, mark: str, upstream: Upstream) -> None:
    answer = client.post(PATH, {"input": mark, "store": False}, {"idempotency-key": mark})
    assert (answer.status, answer.error()["code"]) == (400, "idempotency_requires_store")
    assert answer.error()["param"] == "store"
    assert not upstream.asked(mark)


def test_c5_g2_the_same_key_while_the_run_goes_on_gives_a_snapshot_and_then_the_live_rest(
    client: Client, upstream: Upstream, mark: str
) -> None:
    body, headers = {"input": f"{mark} {SLOW}", "stream": True}, {"idempotency-key": mark}
    with client.stream(PATH, body, headers) as first:
        seen = first.take(10)
        with client.stream(PATH, body, headers) as second:
            frames = second.rest()
            assert second.done
        seen += first.rest()
    check_whole(seen)
    snapshot, tail = frames[0], frames[1:]
    assert snapshot.name == snapshot.data["type"] == "response.snapshot"
    assert set(snapshot.data) == {"type", "sequence_number", "response"}
    assert snapshot.data["response"]["id"] == seen[0].data["response"]["id"]
    assert snapshot.data["response"]["status"] == "in_progress"
    assert [f.raw for f in tail] == [f.raw for f in seen[snapshot.number + 1 :]]
    told = "".join(f.data["delta"] for f in tail if f.name == "response.output_text.delta")
    assert text_of(snapshot.data["response"]) + told == counted(40)
    assert len(upstream.asked(mark)) == 1


def test_c5_the_same_key_after_the_end_replays_the_same_frames_and_no_snapshot(client: Client, mark: str) -> None:
    body, headers = {"input": f"hello {mark}", "stream": True}, {"idempotency-key": mark}
    with client.stream(PATH, body, headers) as first:
        frames = first.rest()
    with client.stream(PATH, body, headers) as again:
        assert [f.raw for f in again.rest()] == [f.raw for f in frames]
        assert again.done


def test_c5_the_same_key_not_streamed_waits_for_the_same_result(client: Client, upstream: Upstream, mark: str) -> None:
    headers = {"idempotency-key": mark}
    shown = started(client, f"{mark} {SLOW}", headers)
    first = create(client, f"{mark} {SLOW}", headers)
    assert (first["id"], first["status"], text_of(first)) == (shown, "completed", counted(40))
    assert create(client, f"{mark} {SLOW}", headers) == first
    assert len(upstream.asked(mark)) == 1


def test_c5_the_same_key_with_another_request_is_409_and_no_sdk_may_retry_it(
    client: Client, upstream: Upstream, mark: str
) -> None:
    headers = {"idempotency-key": mark}
    create(client, "hello", headers)
    for path, body in [
        (PATH, {"input": mark}),
        (PATH, {"input": "hello", "temperature": 0.5}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": mark}]}),
        ("/v1/runs", {"input": mark}),
    ]:
        answer = client.post(path, body, headers)
        assert (answer.status, answer.error()["code"]) == (409, "idempotency_key_conflict"), path
        assert answer.headers["x-should-retry"] == "false"
    assert not upstream.asked(mark)


def test_g4_fields_that_say_what_is_the_default_anyway_are_the_same_request(client: Client, mark: str) -> None:
    headers = {"idempotency-key": mark}
    first = create(client, "hello", headers)
    same = create(client, "hello", headers, store=True, background=False, temperature=1, truncation="disabled")
    assert same["id"] == first["id"]


def test_g4_a_failed_run_replays_its_failure_and_a_refused_request_leaves_no_key(client: Client, mark: str) -> None:
    headers = {"idempotency-key": mark}
    refused = client.post(PATH, {"input": "hello", "temperature": 9}, headers)
    assert refused.status == 400
    failed = create(client, "[[status=400]]", headers)
    assert failed["status"] == "failed"
    assert create(client, "[[status=400]]", headers) == failed


# Delete and cancel (C8, C10, G4)


def test_c8_delete_of_an_active_run_ends_it_for_ever_and_frees_its_key(
    client: Client, server: Server, upstream: Upstream, mark: str
) -> None:
    headers = {"idempotency-key": mark}
    early = upstream.stats()["closed_early"]
    with client.stream(PATH, {"input": f"{mark} {HANGS}", "stream": True}, headers) as stream:
        frames = stream.until("response.output_text.delta")
        shown = frames[0].data["response"]["id"]
        deleted = client.delete(f"{PATH}/{shown}")
        assert deleted.json() == {"id": shown, "object": "response.deleted", "deleted": True}
        last = [*frames, *stream.rest()][-1]
        assert last.name == "response.incomplete" and last.data["response"]["status"] == "cancelled"
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")
    core = shown.removeprefix("resp_")
    for path in (shown, f"{shown}?stream=true", f"{shown}/input_items"):
        assert client.get(f"{PATH}/{path}").status == 404, path
    assert client.get(f"/v1/runs/run_{core}").status == 404
    assert client.post(f"{PATH}/{shown}/cancel").status == 404
    assert client.delete(f"{PATH}/{shown}").status == 404
    assert client.get(f"/v1/runs?idempotency_key={mark}").json()["data"] == []
    with client.stream(PATH, {"input": f"{mark} {HANGS}", "stream": True}, headers) as stream:
        fresh = stream.until("response.output_text.delta")[0].data["response"]["id"]
        assert fresh != shown
        client.delete(f"{PATH}/{fresh}")
    assert server.health()["runs"] == {"active": 0, "queued": 0}


def test_c10_cancel_ends_the_stream_as_incomplete_with_status_cancelled_and_is_idempotent(
    client: Client, upstream: Upstream
) -> None:
    early = upstream.stats()["closed_early"]
    with client.stream(PATH, {"input": HANGS, "stream": True}) as stream:
        frames = stream.until("response.output_text.delta")
        shown = frames[0].data["response"]["id"]
        answer = client.post(f"{PATH}/{shown}/cancel")
        assert answer.status == 200 and answer.json()["status"] == "cancelled"
        frames += stream.rest()
        assert stream.done
    last = check_whole(frames)
    assert frames[-1].name == "response.incomplete" and last["status"] == "cancelled"
    assert client.post(f"{PATH}/{shown}/cancel").json() == answer.json() == get(client, shown) == plain(last)
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")


def test_c8_cancel_of_a_finished_run_is_answered_with_its_state(client: Client) -> None:
    done = create(client, "hello")
    answer = client.post(f"{PATH}/{done['id']}/cancel")
    assert answer.status == 200 and answer.json() == done


# Background and input items (C2, C8)


def test_c2_background_answers_at_once_and_completes_by_itself(client: Client) -> None:
    answer = client.post(PATH, {"input": f"hi {SLOW}", "background": True})
    shown = answer.json()
    assert answer.status == 200 and shown["status"] in ("queued", "in_progress") and shown["background"] is True
    assert text_of(finished(client, shown["id"])) == counted(40)


def test_c2_background_can_be_streamed_and_left(client: Client) -> None:
    with client.stream(PATH, {"input": "hi [[tokens=10]]", "background": True, "stream": True}) as stream:
        shown = check_whole(stream.rest())["id"]
    assert get(client, shown)["status"] == "completed"


def test_c2_background_without_store_is_400(client: Client) -> None:
    answer = client.post(PATH, {"input": "hi", "background": True, "store": False})
    assert (answer.status, answer.error()["code"]) == (400, "background_requires_store")


def test_c8_input_items_are_listed_newest_first_and_paged(client: Client) -> None:
    given = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    shown = create(client, given)["id"]
    listed = client.get(f"{PATH}/{shown}/input_items").json()
    assert listed["object"] == "list" and listed["has_more"] is False
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    assert listed["data"][0]["content"] == given[2]["content"]
    assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][-1]["id"])
    page = client.get(f"{PATH}/{shown}/input_items?limit=1&order=asc").json()
    assert page["has_more"] is True and page["data"][0]["content"] == [{"type": "input_text", "text": "one"}]
    rest = client.get(f"{PATH}/{shown}/input_items?order=asc&after={page['last_id']}").json()
    assert [item["role"] for item in rest["data"]] == ["assistant", "user"]
