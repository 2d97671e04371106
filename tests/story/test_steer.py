"""Writing to a run while it works, over HTTP and through the death of its server (D1)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.story.responses import HANGS, counted
from tests.story.server import KEY, ROOT, Client, Server, Upstream, start_server
from tests.story.test_durable_runs import PATH, begin, ended, events, look

pytestmark = pytest.mark.xdist_group("processes")

SLOW = "[[tokens=40 pace=0.1]]"
WISH = "now briefly [[text=As you wish.]]"


def steer(client: Client, shown: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = client.post(f"{PATH}/{shown}/steer", body, headers)
    assert answer.status == 200, answer.body
    told = answer.json()
    assert (told["object"], told["accepted"], told["run_id"]) == ("hermes.run.steer", True, shown)
    return dict(told)


def test_d1_a_steer_is_read_before_the_next_message_and_shown(client: Client, upstream: Upstream, mark: str) -> None:
    shown = begin(client, f"hi {mark} {SLOW}")
    told = steer(client, shown, {"input": f"{mark} {WISH}"})
    waiting = look(client, shown)
    assert waiting["pending_steer_ids"] == [told["steer_id"]] and mark in waiting["pending_steer"]
    done = ended(client, shown)
    assert done["output"] == counted(40) + "As you wish." and "pending_steer" not in done
    seen = [frame.data["event"] for frame in events(client, shown)]
    assert seen.count("run.steered") == 1 and seen[-1] == "run.completed"
    last = upstream.asked(mark)[-1]["messages"]
    assert [message["role"] for message in last if message["role"] != "system"] == ["user", "assistant", "user"]
    receipt = client.get(f"{PATH}/{shown}/receipt").json()
    assert [(each["id"], each["used"]) for each in receipt["steers"]] == [(told["steer_id"], True)]


@pytest.mark.parametrize("field", ["input", "message", "text"])
def test_d1_a_steer_takes_the_field_names_of_hermes_and_counts_once_under_a_key(client: Client, field: str) -> None:
    shown = begin(client, f"hi {SLOW}")
    first = steer(client, shown, {field: WISH}, {"Idempotency-Key": "k"})
    assert steer(client, shown, {field: WISH}, {"Idempotency-Key": "k"}) == first
    other = client.post(f"{PATH}/{shown}/steer", {field: "other"}, {"Idempotency-Key": "k"})
    assert (other.status, other.error()["code"]) == (409, "idempotency_key_conflict")
    assert ended(client, shown)["output"].endswith("As you wish.")


def test_d1_a_run_that_ends_first_names_what_it_did_not_use(client: Client) -> None:
    shown = begin(client, f"hi {HANGS}")
    told = steer(client, shown, {"input": "and more"})
    client.post(f"{PATH}/{shown}/stop")
    done = ended(client, shown)
    assert done["status"] == "cancelled" and done["pending_steer"] == "and more"
    last = events(client, shown)[-1].data
    assert (last["event"], last["pending_steer_ids"]) == ("run.cancelled", [told["steer_id"]])
    late = client.post(f"{PATH}/{shown}/steer", {"input": "late"})
    assert (late.status, late.error()["code"]) == (409, "run_not_accepting_steer")


@pytest.mark.parametrize("body", [{}, {"input": ""}, {"input": []}, {"input": [{"role": "system", "content": "x"}]}])
def test_a7_a_steer_without_a_message_of_the_user_is_400(client: Client, body: dict[str, Any]) -> None:
    shown = begin(client, "hi")
    answer = client.post(f"{PATH}/{shown}/steer", body)
    assert (answer.status, answer.error()["param"]) == (400, "input")


def test_a_streamed_chat_shows_a_steer_as_a_status_line_and_its_answer_as_text(client: Client) -> None:
    message = {"role": "user", "content": f"hi {SLOW}"}
    with client.stream("/v1/chat/completions", {"messages": [message], "stream": True, "store": True}) as stream:
        first = stream.take(3)
        steer(client, "run_" + first[0].data["id"].removeprefix("chatcmpl-"), {"input": WISH})
        frames = first + stream.rest()
        assert stream.done
    (line,) = (frame.data for frame in frames if "steer" in frame.data)
    assert line["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
    assert line["event"]["data"]["description"].endswith(WISH)
    text = "".join(frame.data["choices"][0]["delta"].get("content") or "" for frame in frames)
    assert text == counted(40) + "As you wish."


def test_p3_an_accepted_steer_survives_kill_9_and_is_used_once(upstream: Upstream, tmp_path: Path) -> None:
    server = start_server(tmp_path, upstream.url)
    shown = begin(server.client, f"hi {SLOW}")
    ids = [steer(server.client, shown, {"input": f"{n} {WISH}"})["steer_id"] for n in range(3)]
    server.kill()
    server = start_server(tmp_path, upstream.url)
    done = ended(server.client, shown)
    assert (done["output"], done["attempt"]) == ("As you wish.", 2), "the draft was dropped, the steers were not"
    steered = [frame.data for frame in events(server.client, shown) if frame.data["event"] == "run.steered"]
    assert [each["steer_id"] for each in steered] == ids
    assert server.stop() == 0


def test_the_command_line_steers_a_run(server: Server) -> None:
    shown = begin(server.client, f"hi {HANGS}")
    command = [sys.executable, "-m", "ninelives", "runs", "steer", shown, WISH, "--url", server.url, "--json"]
    env = {"API_SERVER_KEY": KEY, "PYTHONPATH": str(ROOT), "HOME": str(server.data)}
    told = subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=60)
    assert json.loads(told.stdout)["accepted"] is True
    assert look(server.client, shown)["pending_steer"] == WISH
    server.client.post(f"{PATH}/{shown}/stop")
