"""The routes behind the web page: a list that does not fold, a run over time, entries by their place, and what the
model was really sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ninelives.app.agents import choose_model
from ninelives.app.assemble import Assembled, assemble
from ninelives.app.keys import ADMIN_OWNER
from ninelives.app.settings import load
from ninelives.engine.engine import Engine
from ninelives.observe.alive import AliveMark
from ninelives.observe.log import Log
from ninelives.testing.fake_upstream import FakeUpstream
from tests.asgi import Answer, call

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "page-key-0123456789abcdef"
AUTH = {"host": "127.0.0.1:8642", "authorization": f"Bearer {KEY}"}
DEADLINE_S = 30.0


class World:
    def __init__(self, built: Assembled, up: FakeUpstream) -> None:
        self.built, self.up = built, up

    async def get(self, path: str) -> Answer:
        return await call(self.built.app, "GET", path, AUTH)

    async def post(self, path: str, body: Any) -> Answer:
        sent = {**AUTH, "content-type": "application/json"}
        return await call(self.built.app, "POST", path, sent, msgspec.json.encode(body))

    async def ran(self, text: str) -> str:
        """A run that has ended."""
        run = str((await self.post("/v1/runs", {"input": text})).json()["run_id"])
        async with asyncio.timeout(DEADLINE_S):
            while not (await self.get(f"/api/runs/{run}/timeline")).json()["run"]["ended"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return run


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    data: Path = tmp_path_factory.mktemp("page")
    async with FakeUpstream() as up:
        flags = {"server.data_dir": str(data), "server.key": KEY, "tools.sandbox": "off", "tools.approval": "never"}
        loaded = load(None, {"HOME": str(data)}, flags | {"model.url": up.url, "model.name": "m"})
        model, _ = await choose_model(loaded.settings, {})
        made = await assemble(loaded, KEY, Log(lambda: "", None), model)
        await made.start()
        yield World(made, up)
        await made.stop()


async def test_what_the_model_was_sent_is_what_the_upstream_got(world: World) -> None:
    run = await world.ran('unique-words [[tools=write_file:{"path":"a.txt","content":"x"}]] [[text=The end.]]')
    told = (await world.get(f"/api/runs/{run}/timeline")).json()
    asked = [step for step in told["steps"] if step["kind"] == "model"]
    sent = [each for each in world.up.requests if "unique-words" in str(each["messages"])]
    assert len(asked) == len(sent) == 2
    for step, request in zip(asked, sent, strict=True):
        shown = (await world.get(f"/api/runs/{run}/request/{step['seq']}")).json()
        assert shown["messages"] == request["messages"]
        assert shown["tools"] == request["tools"]


async def test_a_step_has_its_text_its_arguments_and_its_result(world: World) -> None:
    run = await world.ran('[[tools=write_file:{"path":"b.txt","content":"x"}]] [[text=**Done.**]]')
    told = (await world.get(f"/api/runs/{run}/timeline")).json()
    (tool,) = [step for step in told["steps"] if step["kind"] == "tool"]
    details = (await world.get(f"/api/runs/{run}/steps/{tool['seq']}")).json()
    assert details["arguments"] == '{"path":"b.txt","content":"x"}' and "b.txt" in details["output"]
    last = (await world.get(f"/api/runs/{run}/steps/{told['last_seq']}")).json()
    assert last["text"].startswith("**Done.**") and last["step"]["kind"] == "model" and not last["cut"]
    said = (await world.get(f"/api/runs/{run}/conversation")).json()["messages"]
    assert [message["role"] for message in said] == ["user", "assistant", "tool", "assistant"]


async def test_entries_are_found_by_their_place_and_their_kind(world: World) -> None:
    run = await world.ran("[[tokens=60 pace=0.001]]")
    page = (await world.get(f"/api/runs/{run}/entries?offset=20&limit=10")).json()
    last = (await world.get(f"/api/runs/{run}/timeline")).json()["last_seq"]
    assert [each["seq"] for each in page["data"]] == list(range(20, 30)) and page["total"] == last + 1
    facts = (await world.get(f"/api/runs/{run}/entries?kinds=run.accepted,run.completed")).json()
    assert [each["type"] for each in facts["data"]] == ["run.accepted", "run.completed"] and facts["total"] == 2
    whole = (await world.get(f"/api/runs/{run}/entries/0")).json()
    assert whole["event"]["type"] == "run.accepted" and whole["seq"] == 0
    for path, status in (("entries?kinds=odd", 400), ("entries/99999", 404), ("entries/x", 400), ("as/odd", 404)):
        assert (await world.get(f"/api/runs/{run}/{path}")).status == status, path


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages", "runs"])
async def test_a_run_is_shown_as_each_api_shows_it(world: World, api: str) -> None:
    run = await world.ran("[[text=Seen by all.]]")
    shown = (await world.get(f"/api/runs/{run}/as/{api}")).json()
    assert "Seen" in shown["text"] and not shown["cut"]


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages", "runs"])
async def test_a_run_with_a_big_answer_is_shown_as_far_as_there_is_room(world: World, api: str) -> None:
    """A big frame was 500."""
    run = await world.ran("[[big=300000 messages=1]]")
    shown = (await world.get(f"/api/runs/{run}/as/{api}")).json()
    assert shown["cut"] and len(shown["text"]) == 128 * 1024


async def test_the_list_reads_an_ended_run_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.ran("zebra [[tokens=3]]")
    await world.ran('zebra crossing [[tools=read_file:{"path":"none"}]]')
    found = (await world.get("/api/runs?q=zebra")).json()
    assert [line["title"][:14] for line in found["data"]] == ["zebra crossing", "zebra [[tokens"]
    assert [tool["name"] for tool in found["data"][0]["tools"]] == ["read_file"]

    def refused(*args: object) -> None:
        raise AssertionError("the list read a journal again")

    monkeypatch.setattr(Engine, "entries", refused)
    assert len((await world.get("/api/runs?q=zebra+tool:read_file")).json()["data"]) == 1
    assert (await world.get("/api/runs?q=since:long")).status == 400


async def test_the_list_goes_on_where_a_page_ends(world: World) -> None:
    for n in range(5):
        await world.ran(f"lemur {n} [[text=x]]")
    seen: list[str] = []
    after = ""
    while True:
        page = (await world.get(f"/api/runs?q=lemur&limit=2{after}")).json()
        seen += [line["title"][:7] for line in page["data"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == [f"lemur {n}" for n in (4, 3, 2, 1, 0)]


async def test_a_deleted_run_is_gone_though_it_is_kept_in_memory(world: World) -> None:
    run = await world.ran("[[text=soon gone]]")
    assert await world.built.engine.delete(ADMIN_OWNER, run.removeprefix("run_"))
    for path in ("timeline", "entries", "conversation", "steps/0", "as/chat", "request/2"):
        assert (await world.get(f"/api/runs/{run}/{path}")).status == 404, path


async def test_markdown_is_bounded(world: World) -> None:
    assert (await world.post("/api/markdown", {"texts": ["*a*", "b"]})).json() == {
        "trees": [[["p", {}, [["em", {}, ["a"]]]]], [["p", {}, ["b"]]]]
    }
    assert (await world.post("/api/markdown", {"texts": ["x" * 300_000]})).status == 400
    assert (await world.post("/api/markdown", {"texts": ["x"] * 101})).status == 400
    assert (await world.post("/api/markdown", {"texts": ["> " * 30_000]})).status == 200


async def test_a_process_that_was_killed_is_told_with_its_last_sign_of_life(tmp_path: Path) -> None:
    first = AliveMark(tmp_path)
    assert first.read() is None
    first.begin()
    killed = AliveMark(tmp_path).read()  # as the next process sees it, when nobody called end()
    assert killed is not None and killed.died_at >= killed.began_at > 0
    assert killed.death_of(killed.began_at) == killed.died_at
    assert killed.death_of(killed.began_at - 1) == 0, "another process held that run"
    first.end()
    assert AliveMark(tmp_path).read() is None
