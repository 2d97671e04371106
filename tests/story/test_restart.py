"""A clean restart is no crash (G18): what becomes of runs whose agent cannot be continued, and how receipts, texts of
errors and counters tell a restart from a death. The agent is an extension of its own, installed as pip would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observe.scrape import samples
from tests.story.server import ROOT, Client, Json, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

RUNS = "/v1/runs"
RECOVERIES = "ninelives_recoveries_total"
LONGEST = 90.0
DRAIN_S = "3"
CODE = '''
import asyncio, pathlib, time
from ninelives import events

class Once:
    """Says what it is told to, when a file appears. It cannot be continued."""

    resumable = False

    async def end_leftovers(self, state): ...

    async def run(self, turn):
        facts = turn.state.facts
        words = str(facts.accepted.spec.input[-1]["content"]).split()
        place = pathlib.Path(words[1])
        with place.with_suffix(".began").open("a") as file:
            file.write("x")
        if words[0] == "ask" and not facts.messages:
            call = events.Call("call_" + facts.run, "deed", "{}")
            yield events.MessageCompleted("May I?", calls=(call,), finish="tool_calls")
            code, until = facts.run[:6].upper(), int(time.time() * 1000) + 3_600_000
            yield events.ApprovalRequested(call=call, digest="d", code=code, expires_at=until)
        for due in facts.due.values():
            yield events.ToolStarted(call=due.call, effect="write", label="deed")
            yield events.ToolFinished(call_id=due.call.id, output="done")
        if words[0] == "says":
            yield events.TextDelta("begun")
            yield events.MessageCompleted("begun", finish="length")
        while not place.exists() and words[0] != "ask":
            await asyncio.sleep(0.02)
        yield events.TextDelta("the end")
        yield events.MessageCompleted("the end")
        yield events.RunCompleted()

once = Once()
'''


class House:
    """One server after another, with an agent of its own."""

    def __init__(self, where: Path, upstream: Upstream) -> None:
        self._where, self._upstream, self._port = where, upstream, 0
        site = where / "site"
        info = site / "once_agent-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "once_agent.py").write_text(CODE)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: once-agent\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[ninelives.agents]\nonce = once_agent:once\n")
        self._settings = {
            "PYTHONPATH": f"{ROOT}:{site}",
            "NINELIVES_LIMITS_DRAIN_S": DRAIN_S,
            "NINELIVES_LIMITS_CONCURRENT_RUNS": "2",
        }
        self.server: Server
        self.start()

    def start(self) -> None:
        self.server = start_server(self._where, self._upstream.url, at=self._port, **self._settings)
        self._port = self.server.port

    @property
    def client(self) -> Client:
        return self.server.client

    def place(self, name: str) -> Path:
        """The file for which a run waits."""
        return self._where / name

    def began(self, name: str) -> int:
        """How often the agent was asked to run it."""
        path = self.place(name).with_suffix(".began")
        return len(path.read_text()) if path.exists() else 0

    def run(self, words: str, name: str) -> str:
        """A new run of the agent."""
        made = self.client.post(RUNS, {"model": "once", "input": f"{words} {self.place(name)}"})
        assert made.status == 202, made.body
        return str(made.json()["run_id"])

    def shown(self, run: str) -> Json:
        return dict(self.client.get(f"{RUNS}/{run}").json())

    def ended(self, run: str) -> Json:
        over = ("completed", "failed", "cancelled", "incomplete")
        return dict(wait_until(lambda: (r := self.shown(run))["status"] in over and r, "it ends", LONGEST))

    def receipt(self, run: str) -> Json:
        return dict(self.client.get(f"{RUNS}/{run}/receipt").json())

    def recovery(self) -> Json:
        return dict(self.server.health()["recovery"])

    def restart(self) -> None:
        """SIGTERM, and the next one."""
        assert self.server.stop() == 0
        self.start()

    def go_on(self, *, clean: bool) -> None:
        (self.restart if clean else self.die)()

    def die(self) -> None:
        """kill -9, and the next one."""
        self.server.kill()
        self.start()


@pytest.fixture
def house(tmp_path: Path, upstream: Upstream) -> Iterator[House]:
    made = House(tmp_path, upstream)
    yield made
    made.server.kill()


def test_g18_an_agent_that_cannot_be_continued_gets_the_drain_time_to_finish(house: House) -> None:
    run = house.run("says", "a")
    wait_until(lambda: "begun" in house.shown(run)["output"], "it has begun", LONGEST)
    house.server.process.child.terminate()
    wait_until(lambda: house.server.anonymous.get("/readyz").status == 503, "it drains", LONGEST)
    house.place("a").touch()
    assert house.server.process.child.wait(30) == 0
    house.start()
    shown = house.shown(run)
    assert (shown["status"], shown["attempt"], house.began("a")) == ("completed", 1, 1) and "the end" in shown["output"]
    assert len(house.receipt(run)["attempts"]) == 1


@pytest.mark.parametrize("words", ["says", pytest.param("silent", marks=pytest.mark.long)])
def test_g18_where_the_drain_time_is_over_it_fails_and_the_text_says_restart(house: House, words: str) -> None:
    run = house.run(words, "a")
    wait_until(lambda: house.began("a"), "it has begun", LONGEST)
    house.restart()
    shown = house.ended(run)
    assert shown["status"] == "failed" and "agent_not_resumable" in shown["error"]
    assert "restarted" in shown["error"] and "died" not in shown["error"]
    receipt = house.receipt(run)
    assert receipt["error"]["reason"] == "agent_not_resumable" and "restarted" in receipt["error"]["message"]
    assert all(attempt["clean"] for attempt in receipt["attempts"])
    assert house.began("a") == 1, "it is never asked twice"
    assert house.recovery()["taken_over"] == 0


@pytest.mark.parametrize("words", [pytest.param("says", marks=pytest.mark.long), "silent"])
def test_g18_after_a_kill_it_fails_and_the_text_says_that_the_server_died(house: House, words: str) -> None:
    run = house.run(words, "a")
    wait_until(lambda: house.began("a"), "it has begun", LONGEST)
    house.die()
    shown = house.ended(run)
    assert shown["status"] == "failed" and "agent_not_resumable" in shown["error"]
    assert "died" in shown["error"] and "restarted" not in shown["error"]
    assert [attempt["clean"] for attempt in house.receipt(run)["attempts"]] == [True, False]
    assert house.began("a") == 1
    assert (house.recovery()["taken_over"], house.recovery()["restarted"]) == (1, 0)


@pytest.mark.parametrize("clean", [True, False], ids=["restart", "kill"])
def test_g18_where_it_was_queued_it_goes_on(house: House, clean: bool) -> None:
    for name in ("a", "b"):  # they take both slots
        house.run("silent", name)
    run = house.run("says", "c")
    wait_until(lambda: house.began("a") + house.began("b") == 2, "both have begun", LONGEST)
    assert house.shown(run)["status"] == "queued" and house.began("c") == 0
    house.place("c").touch()
    house.go_on(clean=clean)
    shown = house.ended(run)
    assert shown["status"] == "completed" and house.began("c") == 1
    assert [attempt["clean"] for attempt in house.receipt(run)["attempts"]] == [True]


@pytest.mark.parametrize("clean", [True, False], ids=["restart", "kill"])
def test_g18_where_it_waited_for_a_person_an_answer_after_the_restart_does_not_end_it(
    house: House, clean: bool
) -> None:
    run = house.run("ask", "a")
    wait_until(lambda: house.shown(run)["status"] == "waiting_for_approval", "the question", LONGEST)
    wait_until(lambda: house.server.health()["runs"]["active"] == 0, "it is parked", LONGEST)
    house.go_on(clean=clean)
    assert house.shown(run)["status"] == "waiting_for_approval"
    assert house.client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
    shown = house.ended(run)
    assert (shown["status"], shown["error"]) == ("completed", None), shown
    assert "the end" in shown["output"]
    receipt = house.receipt(run)
    assert [step["outcome"] for step in receipt["steps"]] == ["known"] and receipt["approvals"][0]["choice"] == "once"


# How the two are told apart, with the agent that is built in


def hanging(house: House, upstream: Upstream, mark: str) -> str:
    made = house.client.post(RUNS, {"input": f"{mark} [[hang=3 times=1]] [[tokens=20]]"}).json()["run_id"]
    wait_until(lambda: upstream.asked(mark), "its model is asked", LONGEST)
    return str(made)


def test_g18_counters_and_receipts_tell_a_restart_from_a_crash(house: House, upstream: Upstream, mark: str) -> None:
    run = hanging(house, upstream, f"{mark}-one")
    house.restart()
    assert house.ended(run)["status"] == "completed"
    assert [attempt["clean"] for attempt in house.receipt(run)["attempts"]] == [True, True]
    counted = house.recovery()
    assert (counted["recovered"], counted["restarted"], counted["taken_over"]) == (1, 1, 0)
    run = hanging(house, upstream, f"{mark}-two")
    house.die()
    assert house.ended(run)["status"] == "completed"
    assert [attempt["clean"] for attempt in house.receipt(run)["attempts"]] == [True, False]
    counted = house.recovery()
    assert (counted["recovered"], counted["restarted"], counted["taken_over"]) == (1, 0, 1)
    scraped = samples(house.client.get("/metrics").body.decode())
    kinds = {dict(labels)["kind"]: value for (name, labels), value in scraped.items() if name == RECOVERIES}
    assert kinds == {"crash": 1, "restart": 0}


def test_g18_an_answered_question_is_neither(house: House) -> None:
    run = house.run("ask", "a")
    wait_until(lambda: house.shown(run)["status"] == "waiting_for_approval", "the question", LONGEST)
    assert house.client.post(f"{RUNS}/{run}/approval", {"choice": "once"}).status == 200
    assert house.ended(run)["status"] == "completed"
    assert {"recovered": 0, "restarted": 0, "taken_over": 0}.items() <= house.recovery().items()
    assert json.dumps(house.receipt(run)["attempts"]).count('"clean": true') == 2
