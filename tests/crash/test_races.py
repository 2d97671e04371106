"""Races that a client can start (P3, P6, P7), against a real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ninelives.drill.checks import frames_of, judge, payload
from ninelives.drill.loads import Load, stream
from ninelives.drill.rig import Rig
from ninelives.drill.wire import Exchange, all_done, get, post, until, until_shown

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path, 5) as rig:
        yield rig


def shown_id(exchange: Exchange) -> str:
    """The id that a stream, its snapshot or a body tells."""
    if "event-stream" in exchange.headers.get("content-type", ""):
        first = payload(frames_of(exchange.data)[0])
        return str(first.get("response", first)["id"])
    body = exchange.json()
    return str(body.get("id") or body["run_id"])


async def rows(rig: Rig, query: str = "") -> list[dict[str, Any]]:
    """The stored runs, newest first."""
    found: list[dict[str, Any]] = (await get(rig.server.port, f"/v1/runs?limit=100{query}")).json()["data"]
    return found


def asked(rig: Rig, tag: str) -> int:
    """How often the model was asked about a tag."""
    rig.take_asks()
    return len(rig.asks.get(tag, []))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/runs"])
async def test_P7_twenty_parallel_posts_with_one_key_start_one_run(rig: Rig, path: str) -> None:
    for streams in (True, False):
        tag = f"load-key-{streams}".lower()
        text = f"{tag} [[tokens=20 pace=0.005]]"
        given = {"input": text, "messages": [{"role": "user", "content": text}], "stream": streams}
        answers = await all_done(post(rig.server.port, path, given, Idempotency_Key=tag) for _ in range(20))
        assert {answer.status for answer in answers} == {202 if path == "/v1/runs" else 200}
        assert len({shown_id(answer) for answer in answers}) == 1
        (run,) = await rows(rig, f"&idempotency_key={tag}")
        await until_shown(rig.server.port, f"/v1/runs/{run['run_id']}", lambda shown: shown["status"] == "completed")
        assert len(await rows(rig, f"&idempotency_key={tag}")) == 1
        assert asked(rig, tag) == 1


async def test_P7_one_key_starts_one_run_across_a_kill_and_a_restart(rig: Rig) -> None:
    chance = random.Random(7)
    for n in range(4):
        tag = f"load-again-{n}"
        given = {"input": f"{tag} [[tokens=60 pace=0.01]]", "stream": True}
        first = [Exchange(rig.server.port, "POST", "/v1/responses", given, Idempotency_Key=tag) for _ in range(20)]
        tasks = [asyncio.create_task(one.run()) for one in first]
        enough = chance.choice((1, 5, 20))
        await until(lambda some=first, k=enough: sum(bool(one.data) for one in some) >= k, what="answers")  # type: ignore[misc]
        await rig.server.kill()
        await all_done(tasks)
        rig.server = await rig.start()
        second = await all_done(post(rig.server.port, "/v1/responses", given, Idempotency_Key=tag) for _ in range(20))
        told = {shown_id(answer) for answer in (*first, *second) if b"\n\n" in answer.data}
        assert {answer.status for answer in second} == {200} and len(told) == 1
        assert len(await rows(rig, f"&idempotency_key={tag}")) == 1
        other = await post(rig.server.port, "/v1/responses", {**given, "input": "another"}, Idempotency_Key=tag)
        assert (other.status, other.json()["error"]["code"]) == (409, "idempotency_key_conflict")
        # One ask per life that drove it: no second run stands behind the answers.
        assert asked(rig, tag) <= 2


async def test_P6_ten_parallel_posts_on_one_conversation_start_one_and_leave_no_trace_of_the_rest(rig: Rig) -> None:
    for n in range(3):
        before = len(await rows(rig))
        text, talk = "[[tokens=30 pace=0.01]]", f"talk-{n}"
        bodies = [
            (k, {"input": f"load-{n}-{k} {text}", "conversation": talk, "stream": bool(k % 2)}) for k in range(10)
        ]
        posts = [post(rig.server.port, "/v1/responses", body, Idempotency_Key=f"key-{n}-{k}") for k, body in bodies]
        answers = await all_done(posts)
        assert sorted(answer.status for answer in answers) == [200] + [409] * 9
        for answer in answers:
            if answer.status == 409:
                assert answer.json()["error"]["code"] == "conversation_response_not_completed"
                assert answer.headers["x-should-retry"] == "false"
        winner = next(k for k, answer in enumerate(answers) if answer.status == 200)
        assert len(await rows(rig)) == before + 1
        assert [asked(rig, f"load-{n}-{k}") for k in range(10)] == [int(k == winner) for k in range(10)]
        assert [len(await rows(rig, f"&idempotency_key=key-{n}-{k}")) for k in range(10)].count(1) == 1
        # The conversation is free again and holds the winner's turn alone.
        follow = await post(
            rig.server.port, "/v1/responses", {"input": f"load-follow-{n}", "conversation": f"talk-{n}"}
        )
        assert follow.status == 200
        rig.take_asks()
        (messages,) = rig.asks[f"load-follow-{n}"]
        assert [m["content"].split()[0] for m in messages if m["role"] == "user"] == [
            f"load-{n}-{winner}",
            f"load-follow-{n}",
        ]


async def test_P6_a_conversation_is_free_after_a_kill_once_its_run_has_ended(rig: Rig) -> None:
    load = Load("load-held", "responses", "load-held [[tokens=100 pace=0.01]]", {"conversation": "held"})
    client = asyncio.create_task(load.begin(rig.server.port))
    await until(lambda: asked(rig, "load-held"), what="the run has begun")
    await rig.server.kill()
    await client
    rig.server = await rig.start()
    losers = await all_done(
        post(rig.server.port, "/v1/responses", {"input": f"load-late-{n}", "conversation": "held"}) for n in range(5)
    )
    assert {loser.status for loser in losers} == {409}
    await rig.find(load)
    assert not await rig.ended([load])
    after = await post(rig.server.port, "/v1/responses", {"input": "load-after", "conversation": "held"})
    assert after.status == 200
    assert [asked(rig, f"load-late-{n}") for n in range(5)] == [0] * 5


async def test_P3_fifty_races_of_cancel_and_completion_have_one_end_each_and_GET_agrees(rig: Rig) -> None:
    chance = random.Random(3)
    ends = {"completed": 0, "cancelled": 0}
    for batch in range(10):
        loads = [Load(f"load-c{batch}-{n}", "responses", "") for n in range(5)]
        for load in loads:
            load.text = f"{load.tag} [[tokens={chance.randint(1, 12)} pace=0.004]]"
        statuses = await all_done(_cancelled(rig, load, chance.uniform(0.0, 0.06)) for load in loads)
        for load, status in zip(loads, statuses, strict=True):
            evidence = await rig.evidence(load, all_places=False)
            assert not judge(evidence), [str(finding) for finding in judge(evidence)]
            assert evidence.status == status, "the answer to a cancel is final"
            assert evidence.status == evidence.body["status"]
            again = await stream(rig.server.port, "responses", load.id)
            assert again == evidence.replay["responses"]
            ends[status] += 1
    assert all(ends.values()), f"one side always won: {ends}"


async def _cancelled(rig: Rig, load: Load, seconds: float) -> str:
    """Begin a run and cancel it after a moment, twice at once; what the cancels answered."""
    port = rig.server.port
    client = asyncio.create_task(load.begin(port))
    await until(lambda: asked(rig, load.tag), what=f"{load.tag} has begun")
    (run,) = await rows(rig, f"&idempotency_key={load.tag}")
    shown = f"resp_{run['run_id'].removeprefix('run_')}"
    await asyncio.sleep(seconds)
    answers = await all_done(post(port, f"/v1/responses/{shown}/cancel", {}) for _ in range(2))
    await client
    assert {answer.status for answer in answers} == {200}
    (status,) = {answer.json()["status"] for answer in answers}
    return str(status)
