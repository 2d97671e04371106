"""An upstream failure ends as failed and is never an answer; limits end as incomplete; a tool's failure is something
the model can read (B2, C10, E1, P16)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product

import pytest

from tests.story import chat, responses
from tests.story.server import Answer, Client, Frame, Json, Server, Stream, Upstream

pytestmark = pytest.mark.xdist_group("processes")

RETRIES = 1
UPSTREAM_KEY = "sk-upstream-secret-0123456789"
SETTINGS = {
    "NINELIVES_AGENT_MAX_ROUNDS": "3",
    "NINELIVES_MODEL_RETRIES": str(RETRIES),
    "NINELIVES_MODEL_STALL_S": "0.6",
    "NINELIVES_MODEL_FIRST_BYTE_S": "1",
    "NINELIVES_MODEL_API_KEY": UPSTREAM_KEY,
}
SDK_CODES = {"server_error", "rate_limit_exceeded"}
READ = 'read_file:{"path":"none.txt"}'

BEFORE = {  # fault before the first visible token: the status that a chat gets
    "status=500": 502,
    "status=503": 502,
    "status=429": 429,
    "status=400": 502,
    "status=401 leak": 502,
    "status=404": 502,
    "cut=0": 502,
    "hang=0": 504,
    "garbage=0": 502,
    "errorframe=0": 502,
    "html": 502,
    "longline": 502,
    "slowstart=5": 504,
}
AFTER = {  # fault after visible tokens: the text that came before it
    "cut=5": responses.counted(5),
    "hang=3": responses.counted(3),
    "garbage=2": responses.counted(2),
    "errorframe=2": responses.counted(2),
    "noeof tokens=4": responses.counted(4),
}
REPEATED = {"status=500", "status=503", "status=429", "cut=0", "garbage=0", "errorframe=0", "html", "longline"}
"""Faults after which asking again may help, and does no harm."""
WAYS = ("chat stream", "chat", "responses stream", "responses", "runs")


@dataclass
class Seen:
    """What one request with one fault came to."""

    status: int
    frames: list[Frame] = field(default_factory=list)
    done: bool = False
    answer: Answer | None = None
    later: Json | None = None
    """The run as GET shows it afterwards."""
    tries: int = 0


def meet(client: Client, upstream: Upstream, fault: str, way: str) -> Seen:
    mark = f"fault {fault} {way}."
    text = f"{mark} [[{fault}]]"
    if way == "chat stream":
        seen = _streamed(client, chat.PATH, chat.ask(text, stream=True))
    elif way == "chat":
        answer = client.post(chat.PATH, chat.ask(text))
        seen = Seen(answer.status, answer=answer)
    elif way == "responses stream":
        seen = _streamed(client, responses.PATH, {"input": text, "stream": True})
        seen.later = responses.get(client, seen.frames[0].data["response"]["id"])
    elif way == "responses":
        answer = client.post(responses.PATH, {"input": text})
        seen = Seen(answer.status, answer=answer, later=responses.get(client, answer.json()["id"]))
    else:
        shown = client.post("/v1/runs", {"input": text}).json()["run_id"]
        seen = _streamed(client, f"/v1/runs/{shown}/events", None)
        seen.later = client.get(f"/v1/runs/{shown}").json()
    seen.tries = len(upstream.asked(mark))
    return seen


def _streamed(client: Client, path: str, body: Json | None) -> Seen:
    connection, response = client._send("POST" if body else "GET", path, body, None)
    with Stream(connection, response) as stream:
        if stream.status != 200:
            answer = Answer(stream.status, stream.headers, response.read())
            return Seen(stream.status, answer=answer)
        frames = stream.rest()
        assert stream.ended == "whole"
        return Seen(200, frames, stream.done)


@pytest.fixture(scope="module")
def met(server: Server, upstream: Upstream) -> dict[tuple[str, str], Seen]:
    """All faults in all ways, side by side: most of them are waits."""
    pairs = list(product([*BEFORE, *AFTER], WAYS))
    with ThreadPoolExecutor(12) as pool:
        results = pool.map(lambda pair: meet(server.client, upstream, *pair), pairs)
        return dict(zip(pairs, results, strict=True))


Met = dict[tuple[str, str], Seen]


@pytest.mark.parametrize("fault", BEFORE)
@pytest.mark.parametrize("way", ["chat", "chat stream"])
def test_b2_a_chat_that_fails_before_its_first_byte_gets_the_right_status(met: Met, fault: str, way: str) -> None:
    seen = met[fault, way]
    assert seen.status == BEFORE[fault], seen
    assert seen.answer is not None
    error = seen.answer.error()
    assert error["code"] and error["message"] and "Traceback" not in error["message"]
    if seen.status == 429:
        assert seen.answer.headers["retry-after"]


@pytest.mark.parametrize("fault", AFTER)
def test_b2_a_chat_that_fails_in_the_middle_ends_with_an_error_frame_and_no_done(met: Met, fault: str) -> None:
    seen = met[fault, "chat stream"]
    assert seen.status == 200 and not seen.done
    *before, last = seen.frames
    assert chat.told(before) == AFTER[fault]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chat.chunks(before))
    assert set(last.data) == {"error"} and set(last.data["error"]) == {"message", "type", "param", "code"}
    assert last.data["error"]["code"] and last.data["error"]["message"]
    whole = met[fault, "chat"]
    assert whole.status in (502, 504) and whole.answer and whole.answer.error()["code"] == last.data["error"]["code"]


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
@pytest.mark.parametrize("way", ["responses stream", "responses"])
def test_c10_a_response_fails_with_a_code_of_the_sdks_list_and_get_agrees(met: Met, fault: str, way: str) -> None:
    seen = met[fault, way]
    assert seen.status == 200 and seen.later is not None
    if way == "responses stream":
        assert seen.frames[-1].name == "response.failed" and seen.done
        shown = responses.check_whole(seen.frames)
    else:
        assert seen.answer is not None
        shown = seen.answer.json()
    assert shown == seen.later
    assert shown["status"] == "failed" and shown["completed_at"] is None
    assert shown["error"]["code"] == ("rate_limit_exceeded" if "429" in fault else "server_error")
    assert shown["error"]["code"] in SDK_CODES and shown["error"]["message"]
    assert responses.text_of(shown) == AFTER.get(fault, "")
    assert all(item["status"] == "incomplete" for item in shown["output"])


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
def test_g8_a_run_fails_and_says_why(met: Met, fault: str) -> None:
    seen = met[fault, "runs"]
    assert seen.frames[-1].data["event"] == "run.failed" and seen.frames[-1].data["error"]
    assert seen.later is not None and seen.later["status"] == "failed"
    assert seen.later["error"] == seen.frames[-1].data["error"]


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
def test_e1_retries_are_bounded_and_come_before_the_first_visible_token_only(met: Met, fault: str) -> None:
    tries = {way: met[fault, way].tries for way in WAYS}
    expected = 1 + RETRIES if fault in REPEATED else 1
    assert set(tries.values()) == {expected}, tries


def test_p16_no_credential_of_the_upstream_is_told_to_anybody(met: Met, server: Server) -> None:
    told = [seen.answer.body.decode() for seen in met.values() if seen.answer]
    told += [frame.raw.decode() for seen in met.values() for frame in seen.frames]
    told.append(server.log())
    for mark in (UPSTREAM_KEY, UPSTREAM_KEY[-8:], "sk-upstream"):
        assert not any(mark in text for text in told)


def test_p16_a_failure_is_logged_without_a_trace(met: Met, server: Server) -> None:
    assert "Traceback" not in server.log() and "request_failed" not in server.log()
    assert "agent_crashed" not in server.log()


@pytest.mark.parametrize("fault", ["status=500", "status=429 retry_after=1", "cut=0", "garbage=0"])
def test_e1_a_failure_that_passes_is_asked_again_and_nobody_notices(
    client: Client, upstream: Upstream, mark: str, fault: str
) -> None:
    began = time.monotonic()
    made = responses.create(client, f"{mark} [[{fault} times=1]] [[text=fine]]")
    assert (made["status"], responses.text_of(made)) == ("completed", "fine")
    assert len(upstream.asked(mark)) == 2
    assert "retry_after" not in fault or time.monotonic() - began >= 1.0, "Retry-After is honoured"


def test_e1_nothing_is_asked_again_once_text_was_seen(client: Client, upstream: Upstream, mark: str) -> None:
    made = responses.create(client, f"{mark} [[cut=3 times=1]]")
    assert made["status"] == "failed" and len(upstream.asked(mark)) == 1


def test_b2_a_failure_after_a_tool_is_told_in_the_stream_and_keeps_what_was_done(
    client: Client, upstream: Upstream, mark: str
) -> None:
    text = f"{mark} [[tools={READ}]] [[status=400 at=1]]"
    with client.stream(chat.PATH, chat.ask(text, stream=True, store=True)) as stream:
        frames = stream.rest()
        assert not stream.done
    assert [frame.data["status"] for frame in frames if frame.name] == ["running", "completed"]
    assert frames[-1].data["error"]["code"] == "upstream_rejected"
    kept = client.get(f"{chat.PATH}/{frames[0].data['id']}").json()
    assert kept["status"] == "failed" and kept["choices"][0]["finish_reason"] is None
    with client.stream(f"{chat.PATH}/{frames[0].data['id']}?stream=true") as again:
        assert [frame.raw for frame in again.rest()] == [frame.raw for frame in frames] and not again.done


# Limits (C10)


def test_c10_a_message_cut_by_length_is_incomplete_and_length(client: Client) -> None:
    made = responses.create(client, "[[length=5]]")
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert responses.text_of(made) == responses.counted(5) and made["output"][0]["status"] == "incomplete"
    with client.stream(responses.PATH, {"input": "[[length=5]]", "stream": True}) as stream:
        frames = stream.rest()
        assert frames[-1].name == "response.incomplete" and stream.done
        assert responses.check_whole(frames)["incomplete_details"] == {"reason": "max_output_tokens"}
    with client.stream(chat.PATH, chat.ask("[[length=5]]", stream=True)) as stream:
        chat.check_whole(stream.rest(), finish="length")
        assert stream.done
    assert chat.create(client, "[[length=5]]")["choices"][0]["finish_reason"] == "length"


def test_c10_the_token_budget_is_one_over_the_whole_run(client: Client, upstream: Upstream, mark: str) -> None:
    text = f"{mark} [[pre=20 tools={READ}|{READ}]]"
    made = responses.create(client, text, max_output_tokens=30)
    asked = [request["max_tokens"] for request in upstream.asked(mark)]
    assert asked[0] == 30 and 0 < asked[1] <= 10 and len(asked) == 2
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_c10_the_limit_of_rounds_ends_a_run_as_incomplete(client: Client, upstream: Upstream, mark: str) -> None:
    text = f"{mark} [[tools={'|'.join([READ] * 5)}]]"
    made = responses.create(client, text)
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_messages"})
    assert len(upstream.asked(mark)) == 3
    calls = [item for item in made["output"] if item["type"] == "function_call"]
    results = [item for item in made["output"] if item["type"] == "function_call_output"]
    assert [item["call_id"] for item in calls] == [item["call_id"] for item in results], "no call is left open"
    with client.stream(chat.PATH, chat.ask(text, stream=True)) as stream:
        chat.check_whole(stream.rest(), finish="length")
    shown = client.post("/v1/runs", {"input": text}).json()["run_id"]
    with client.stream(f"/v1/runs/{shown}/events") as stream:
        last = stream.rest()[-1].data
    assert (last["event"], last["reason"]) == ("run.incomplete", "max_messages") and last["output"] and last["usage"]


# Tools that fail (E1)


@pytest.mark.parametrize(
    ("directive", "words"),
    [
        ("[[unknowntool]]", "no_such_tool"),
        ("[[badargs]]", ""),
        ('[[tools=read_file:{"wrong":"name"}]]', "path"),
        ('[[tools=read_file:{"path":"../../etc/passwd"}]]', ""),
        ('[[tools=terminal:{"command":"echo oops >&2; exit 3"}]]', "oops"),
    ],
)
def test_e1_a_call_that_cannot_be_done_becomes_an_error_that_the_model_reads(
    client: Client, upstream: Upstream, mark: str, directive: str, words: str
) -> None:
    with client.stream(chat.PATH, chat.ask(f"{mark} {directive}", stream=True)) as stream:
        frames = stream.rest()
    chat.check_whole(frames)
    begun, over = (frame.data for frame in frames if frame.name)
    assert over["isError"] is True and over["toolCallId"] == begun["toolCallId"] and words in over["output"]
    asked = upstream.asked(mark)
    assert len(asked) == 2
    result = asked[-1]["messages"][-1]
    assert result["role"] == "tool" and result["content"] and words in result["content"]
    assert chat.told(frames).endswith("done after 1 results")
