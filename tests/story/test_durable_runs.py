"""The runs API: the same runs, seen by hermes' own eyes (D1, G7, G8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.story import chat, responses
from tests.story.responses import HANGS, SLOW, counted
from tests.story.server import Client, Frame, Json, Upstream, wait_until

pytestmark = pytest.mark.xdist_group("processes")

PATH = "/v1/runs"
TOOL = '[[tools=read_file:{"path":"none.txt"}]]'
FIELDS = {"object", "run_id", "status", "session_id", "model", "created_at", "updated_at", "last_event", "output"}


def begin(client: Client, text: Any, headers: dict[str, str] | None = None, **fields: Any) -> str:
    answer = client.post(PATH, {"input": text, **fields}, headers)
    assert answer.status == 202, answer.body
    assert set(answer.json()) == {"run_id", "status"} and answer.json()["status"] == "started"
    return str(answer.json()["run_id"])


def look(client: Client, shown: str) -> Json:
    answer = client.get(f"{PATH}/{shown}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def ended(client: Client, shown: str) -> Json:
    over = ("completed", "failed", "cancelled", "incomplete")
    return dict(wait_until(lambda: (r := look(client, shown))["status"] in over and r, f"{shown} ends"))


def events(client: Client, shown: str, query: str = "") -> list[Frame]:
    with client.stream(f"{PATH}/{shown}/events{query}") as stream:
        frames = stream.rest()
        assert not stream.done and stream.ended == "whole"
        assert stream.comments[-1] == b": stream closed"
    assert not any(frame.name for frame in frames), "events are data only"
    return frames


def test_d1_a_run_is_accepted_with_202_and_goes_on_by_itself(client: Client, mark: str) -> None:
    shown = begin(client, f"hi {SLOW}", {"x-hermes-session-id": mark})
    now = look(client, shown)
    assert set(now) >= FIELDS | {"usage", "error"}
    assert (now["object"], now["run_id"], now["session_id"]) == ("hermes.run", shown, mark)
    assert now["status"] in ("queued", "running")
    done = ended(client, shown)
    assert (done["status"], done["output"], done["last_event"]) == ("completed", counted(40), "run.completed")
    assert done["usage"]["output_tokens"] == 40 and done["error"] is None


def test_g8_events_have_their_names_and_fields(client: Client) -> None:
    shown = begin(client, f"hi {TOOL} [[reason=2]]")
    told = [frame.data for frame in events(client, shown)]
    assert all({"event", "seq", "run_id", "timestamp"} <= set(event) for event in told)
    assert {event["run_id"] for event in told} == {shown}
    seqs = [event["seq"] for event in told]
    assert seqs == sorted(set(seqs))
    names = list(dict.fromkeys(event["event"] for event in told))
    tools = {f"tool.{kind}" for kind in ("preparing", "started", "completed")}
    assert set(names) == {"message.delta", "reasoning.available", *tools, "run.completed"}
    (begun,) = (event for event in told if event["event"] == "tool.started")
    (over,) = (event for event in told if event["event"] == "tool.completed")
    assert begun["tool"] == over["tool"] == "read_file" and begun["toolCallId"] == over["toolCallId"]
    assert begun["preview"] and over["error"] is True and over["duration"] >= 0
    last = told[-1]
    assert last["event"] == "run.completed" and last["output"].endswith("done after 1 results")
    assert last["usage"] == look(client, shown)["usage"]


def test_d1_events_can_be_read_by_many_from_any_place_while_it_runs_and_after(client: Client) -> None:
    shown = begin(client, f"hi {SLOW}")
    with client.stream(f"{PATH}/{shown}/events") as stream:
        seen = stream.take(5)
        live = events(client, shown, f"?after={seen[-1].data['seq']}")
        whole = seen + stream.rest()
    assert [f.raw for f in live] == [f.raw for f in whole[5:]]
    for k in range(len(whole) - 1):
        again = events(client, shown, f"?after={whole[k].data['seq']}")
        assert [f.raw for f in again] == [f.raw for f in whole[k + 1 :]], k
    assert [f.raw for f in events(client, shown, "?after=100000")] == [whole[-1].raw]


def test_d1_runs_are_listed_by_status_and_by_key(client: Client, mark: str) -> None:
    headers = {"idempotency-key": mark}
    shown = begin(client, f"hi {mark}", headers)
    assert begin(client, f"hi {mark}", headers) == shown, "the same key is the same run"
    conflict = client.post(PATH, {"input": "other"}, headers)
    assert (conflict.status, conflict.error()["code"]) == (409, "idempotency_key_conflict")
    ended(client, shown)
    by_key = client.get(f"{PATH}?idempotency_key={mark}").json()
    assert [run["run_id"] for run in by_key["data"]] == [shown]
    running = begin(client, HANGS)
    failed = ended(client, begin(client, "[[status=400]]"))

    def listed(status: str) -> list[str]:
        runs = client.get(f"{PATH}?status={status}&limit=100").json()["data"]
        assert {run["status"] for run in runs} <= {status}
        return [run["run_id"] for run in runs]

    wait_until(lambda: running in listed("running"), "it is listed as running")
    assert shown in listed("completed") and running not in listed("completed")
    assert listed("failed") == [failed["run_id"]] and "upstream_rejected" in failed["error"]
    assert client.post(f"{PATH}/{running}/stop").json() == {"run_id": running, "status": "stopping"}
    wait_until(lambda: running in listed("cancelled"), "it is listed as cancelled")
    assert running not in listed("running")
    newest = client.get(f"{PATH}?limit=1").json()
    assert newest["data"][0]["run_id"] == failed["run_id"] and newest["has_more"] is True


def test_d1_a_list_cuts_outputs_where_it_is_asked_to(client: Client, mark: str) -> None:
    key = {"idempotency-key": mark}
    whole = ended(client, begin(client, f"First words\n of {mark} {'x' * 200}", key))
    assert whole["title"].startswith(f"First words of {mark} xxx") and len(whole["title"]) == 120
    (cut,) = client.get(f"{PATH}?idempotency_key={mark}&output_chars=3").json()["data"]
    assert len(whole["output"]) > 3 and cut == {**whole, "output": whole["output"][:3]}
    assert client.get(f"{PATH}?output_chars=-1").error()["param"] == "output_chars"


def test_d1_stop_ends_a_run_and_its_upstream_request(client: Client, upstream: Upstream) -> None:
    early = upstream.stats()["closed_early"]
    shown = begin(client, HANGS)
    with client.stream(f"{PATH}/{shown}/events") as stream:
        stream.take(3)
        assert client.post(f"{PATH}/{shown}/stop").json()["status"] == "stopping"
        assert stream.rest()[-1].data["event"] == "run.cancelled"
    wait_until(lambda: upstream.stats()["closed_early"] == early + 1, "the upstream's socket is closed")
    again = client.post(f"{PATH}/{shown}/stop")
    assert again.status == 200 and again.json() == {"run_id": shown, "status": "cancelled"}
    assert look(client, shown)["status"] == "cancelled"


def test_g7_any_stored_run_is_watched_here_under_any_of_its_names(client: Client) -> None:
    made = responses.create(client, f"hi {TOOL}")["id"].removeprefix("resp_")
    talked = chat.create(client, f"hi {TOOL}", store=True)["id"].removeprefix("chatcmpl-")
    ran = begin(client, f"hi {TOOL}").removeprefix("run_")
    ended(client, f"run_{ran}")
    for core in (made, talked, ran):
        seen = [look(client, prefix + core) for prefix in ("run_", "resp_", "chatcmpl-")]
        assert seen[0] == seen[1] == seen[2] and seen[0]["run_id"] == f"run_{core}"
        told = [[f.raw for f in events(client, prefix + core)] for prefix in ("run_", "resp_", "chatcmpl-")]
        assert told[0] == told[1] == told[2] and len(told[0]) >= 5
    assert client.get(f"/v1/responses/resp_{talked}").status == 404, "other routes take their own"
    assert client.get(f"/v1/chat/completions/chatcmpl-{made}").status == 404
    assert client.get(f"/v1/responses/run_{made}").status == 404


def test_d1_a_run_takes_its_history_from_what_it_names(client: Client, upstream: Upstream, mark: str) -> None:
    def contents(marker: str) -> list[str]:
        return [m["content"] for m in upstream.asked(marker)[-1]["messages"] if m["role"] != "system"]

    history = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "answer"}]
    ended(client, begin(client, f"one {mark}", conversation_history=history, instructions="like a pirate"))
    assert contents(f"one {mark}") == ["old", "answer", f"one {mark}"]
    assert "like a pirate" in upstream.asked(f"one {mark}")[-1]["messages"][0]["content"]
    first = responses.create(client, "start [[text=begun]]")["id"]
    ended(client, begin(client, f"two {mark}", previous_response_id=first))
    assert contents(f"two {mark}") == ["start [[text=begun]]", "begun", f"two {mark}"]
    other = {"x-hermes-session-id": "another"}
    run = ended(client, begin(client, f"three {mark} [[text=3]]", other, session_id=mark))
    assert run["session_id"] == mark, "the body's session wins over the header"
    ended(client, begin(client, f"four {mark}", session_id=mark))
    assert contents(f"four {mark}") == [f"three {mark} [[text=3]]", "3", f"four {mark}"]
