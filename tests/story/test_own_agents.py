"""Several agents of one's own behind one real server (E5, G12, G14, G18): approvals and receipts for tools of a
framework, producers without ids, and that one agent that cannot be continued does not spoil the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.approvals import ASKED, begin, finish
from tests.story.server import KEY, Client, Json, Server, Upstream, start_server, wait_until

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")
pytestmark = pytest.mark.xdist_group("processes")

RUNS = "/v1/runs"
CODE = '''
import asyncio, json, os, pathlib, urllib.request
from pydantic_ai import Agent

HERE = pathlib.Path(__file__).parent

def note(name: str) -> None:
    with (HERE / name).open("a") as file:
        file.write("x\\n")

payer = Agent("openai-chat:m")

@payer.tool_plain
def pay(amount: int) -> str:
    """Pay."""
    note("paid")
    return f"paid {amount}"

@payer.tool_plain(metadata={"effect": "read"})
def look(city: str) -> str:
    """Look."""
    return "sunny"

@payer.tool_plain(metadata={"effect": "read"})
def peek(city: str) -> str:
    """Peek."""
    return "dark"

async def hang() -> str:
    note("hangs")
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    return "done"

async def once(question: str) -> str:
    return await hang()

async def steps(question: str, ctx) -> str:
    return await ctx.step("hang", hang, effect="read")

def legacy(message: str, tool_progress_callback) -> str:
    tool_progress_callback("tool.started", "look", "Rome", {"city": "Rome"})
    tool_progress_callback("tool.started", "look", "Oslo", {"city": "Oslo"})
    tool_progress_callback("tool.completed", "look", None, None, result="sun")
    tool_progress_callback("tool.completed", "look", None, None, result="rain")
    return "Sun in Rome, rain in Oslo."

def shown(run: str) -> list:
    """What the server tells others of the steps of this run."""
    head = {"Authorization": "Bearer " + os.environ["OWN_KEY"]}
    url = (HERE / "data" / "address").read_text().strip() + f"/v1/runs/{run}/receipt"
    with urllib.request.urlopen(urllib.request.Request(url, headers=head)) as answer:
        return [step["tool"] for step in json.load(answer)["steps"]]

async def witness(question: str, ctx):
    yield "Looking. "
    seen = await ctx.step("shown", shown, ctx.run_id, effect="read")
    after = await asyncio.to_thread(shown, ctx.run_id)
    yield json.dumps([seen, after])
'''
CONFIG = """
[profiles.careful]
agent = "{file}:payer"
approval = "on-write"
[profiles.once]
agent = "{file}:once"
[profiles.steps]
agent = "{file}:steps"
[profiles.legacy]
agent = "{file}:legacy"
[profiles.witness]
agent = "{file}:witness"
[[approvals]]
tool = "peek"
ask = "always"
"""


class Agents:
    """One server after another, with the agents of this file."""

    def __init__(self, where: Path, upstream: Upstream) -> None:
        self.where, self._upstream = where, upstream
        (where / "own.py").write_text(CODE)
        (where / "own.toml").write_text(CONFIG.format(file=where / "own.py"))
        self._settings = {"NINELIVES_CONFIG": str(where / "own.toml"), "OPENAI_BASE_URL": upstream.url}
        self._settings |= {"OPENAI_API_KEY": "none", "OWN_KEY": KEY}
        self.server: Server
        self.start()

    def start(self) -> None:
        self.server = start_server(self.where, self._upstream.url, **self._settings)

    @property
    def client(self) -> Client:
        return self.server.client

    def lines(self, name: str) -> int:
        return len((self.where / name).read_text().splitlines()) if (self.where / name).exists() else 0

    def receipt(self, run: str) -> Json:
        return dict(self.client.get(f"{RUNS}/{run}/receipt").json())

    def ended(self, run: str) -> Json:
        over = ("completed", "failed")
        return dict(
            wait_until(lambda: (r := self.client.get(f"{RUNS}/{run}").json())["status"] in over and r, "its end", 60)
        )


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Agents]:
    made = Agents(tmp_path_factory.mktemp("agents"), upstream)
    yield made
    made.server.kill()


def script(*calls: tuple[str, str]) -> str:
    return f"[[tools={'|'.join(f'{name}:{arguments}' for name, arguments in calls)}]] Go"


def test_e5_a_tool_of_a_framework_is_asked_about_shown_and_made_once_over_a_kill(agents: Agents) -> None:
    run, status = begin(agents.client, script(("look", '{"city":"Rome"}'), ("pay", '{"amount":5}')))
    assert status == ASKED and agents.lines("paid") == 0
    asked = agents.client.get(f"{RUNS}/{run}").json()
    assert "pay" in json.dumps(asked) and "5" in json.dumps(asked)
    agents.server.kill()
    agents.start()
    finish(agents.client, run, "once")
    assert agents.lines("paid") == 1
    receipt = agents.receipt(run)
    assert [(step["tool"], step["effect"], step["starts"]) for step in receipt["steps"]] == [
        ("look", "read", 1),
        ("pay", "write", 1),
    ]
    assert receipt["approvals"][0]["choice"] == "once" and receipt["unknown_outcomes"] == []


def test_e5_a_denied_call_is_not_made_and_the_model_is_told(agents: Agents, upstream: Upstream, mark: str) -> None:
    before = agents.lines("paid")
    run, status = begin(agents.client, f"{mark} {script(('pay', json.dumps({'amount': 7})))}")
    assert status == ASKED
    finish(agents.client, run, "deny")
    assert agents.lines("paid") == before
    assert "denied by a person" in json.dumps(upstream.asked(mark)[-1]["messages"])


def test_e5_a_rule_of_the_server_holds_for_a_tool_of_a_framework(agents: Agents) -> None:
    run, status = begin(agents.client, script(("peek", '{"city":"Rome"}')))
    assert status == ASKED, "a read, which only the rule asks about"
    finish(agents.client, run, "once")


def test_g14_calls_without_ids_are_pairs_in_every_api(agents: Agents) -> None:
    bodies: dict[str, Json] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Go"}]},
        "/v1/responses": {"input": "Go"},
        "/v1/messages": {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 100},
    }
    pairs = {
        "/v1/chat/completions": ('"status":"running"', '"status":"completed"'),
        "/v1/responses": ('"type":"function_call"', '"type":"function_call_output"'),
        "/v1/messages": ('"type":"mcp_tool_use"', '"type":"mcp_tool_result"'),
        RUNS: ('"event":"tool.started"', '"event":"tool.completed"'),
    }
    for path, (begins, ends) in pairs.items():
        if path in bodies:
            text = agents.client.post(path, {**bodies[path], "model": "legacy", "stream": True}).body.decode()
        else:
            run = agents.client.post(path, {"input": "Go", "model": "legacy"}).json()["run_id"]
            text = agents.client.get(f"{path}/{run}/events").body.decode()
        frames = [frame for frame in text.split("\n\n") if "response.completed" not in frame]
        begun = [frame for frame in frames if begins in frame]
        ended = [frame for frame in frames if ends in frame]
        assert begun and ended, (path, text)
        assert frames.index(begun[0]) < frames.index(ended[0]), path
        if path in ("/v1/chat/completions", RUNS):  # they show no results
            assert (len(begun), len(ended)) == (2, 2), (path, text)
        else:
            assert text.index("sun") < text.index("rain"), "the oldest open call of that name is closed first"


def test_g12_a_step_is_made_and_returns_when_others_can_see_it(agents: Agents) -> None:
    run = agents.client.post(RUNS, {"input": "Go", "model": "witness"}).json()["run_id"]
    shown = agents.ended(run)
    assert shown["status"] == "completed", shown
    seen, after = json.loads(str(shown["output"]).removeprefix("Looking. "))
    assert seen == ["shown"] and after == ["shown"]


def test_g18_one_agent_that_cannot_be_continued_does_not_spoil_the_others(agents: Agents) -> None:
    runs = {
        name: agents.client.post(RUNS, {"input": "Go", "model": name}).json()["run_id"] for name in ("once", "steps")
    }
    wait_until(lambda: agents.lines("hangs") == 2, "both hang")
    agents.server.kill()
    (agents.where / "go").write_text("")
    agents.start()
    once, steps = agents.ended(runs["once"]), agents.ended(runs["steps"])
    assert (once["status"], steps["status"]) == ("failed", "completed")
    assert "agent_not_resumable" in str(once["error"]) and "died" in str(once["error"])
    assert agents.lines("hangs") == 3, "the step of the other was a read"
