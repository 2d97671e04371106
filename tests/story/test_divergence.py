"""Agents that read the clock, behind a real server that is killed (E5): the difference is told with both values, and
nothing is repeated."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.responses import PATH
from tests.story.server import Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

COMMON = '''
import asyncio, os, pathlib, time

HERE = pathlib.Path(__file__).parent

def note(name: str) -> None:
    with (HERE / name).open("a") as file:
        file.write("x\\n")

def now() -> str:
    return f"clock-{time.time_ns()}"

async def pay(amount: int) -> str:
    """Pay."""
    note("paid")
    return "paid"

async def wait() -> str:
    """Wait."""
    note("waits")
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    return "waited"
'''
FUNCTION = """
async def agent(question, ctx):
    await ctx.step("pay", pay, 5)
    await ctx.step("log", print, now(), effect="read")
    await ctx.step("wait", wait, effect="read")
"""
PYDANTIC_AI = """
from pydantic_ai import Agent

agent = Agent("openai-chat:m", tools=[pay, wait])

@agent.instructions
def time_of_day() -> str:
    return f"You pay bills. It is {now()}."
"""
OPENAI_AGENTS = """
from agents import Agent, function_tool, set_default_openai_api

set_default_openai_api("chat_completions")

def time_of_day(context, agent) -> str:
    return f"You pay bills. It is {now()}."

agent = Agent(name="Payer", instructions=time_of_day, tools=[function_tool(pay), function_tool(wait)])
"""
LANGGRAPH = '''
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

@tool
async def look(at: str) -> str:
    """Look."""
    return "seen"

pay, wait = tool(pay), tool(wait)

async def node(state: MessagesState) -> dict:
    await pay.ainvoke({"amount": 5})
    await look.ainvoke({"at": now()})
    await wait.ainvoke({})

agent = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").add_edge("node", END)
'''
AGENTS = {
    "function": (FUNCTION, ""),
    "pydantic-ai": (PYDANTIC_AI, "pydantic_ai"),
    "openai-agents": (OPENAI_AGENTS, "agents"),
    "langgraph": (LANGGRAPH, "langgraph"),
}
CALLS = '[[tools=pay:{"amount":5}|wait:{}]] Go'


@pytest.fixture(
    params=["function", *(pytest.param(name, marks=pytest.mark.long) for name in AGENTS if name != "function")]
)
def servers(request: pytest.FixtureRequest, tmp_path: Path, upstream: Upstream) -> Iterator[list[Server]]:
    """One server; a test appends the next one."""
    code, package = AGENTS[request.param]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "clock_agent.py").write_text(COMMON + code)
    made = [next_server(tmp_path, upstream)]
    yield made
    made[-1].kill()


def next_server(where: Path, upstream: Upstream) -> Server:
    named = f"{where / 'clock_agent.py'}:agent"
    environment = {"OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    return start_server(where, upstream.url, NINELIVES_AGENT_OBJECT=named, **environment)


def test_e5_an_agent_that_reads_the_clock_ends_diverged_with_both_values_and_repeats_nothing(
    servers: list[Server], tmp_path: Path, upstream: Upstream
) -> None:
    run = servers[0].client.post(PATH, {"input": CALLS, "background": True}).json()["id"]
    wait_until(lambda: (tmp_path / "waits").exists(), "it waits in a step", 90)
    servers[0].kill()
    asked = len(upstream.asked("Go"))
    (tmp_path / "go").write_text("")
    servers.append(next_server(tmp_path, upstream))
    client = servers[1].client
    wait_until(lambda: client.get(f"{PATH}/{run}").json()["status"] not in ("queued", "in_progress"), "it ended", 90)
    error = client.get(f"/v1/runs/{run}/receipt").json()["error"]
    assert error["reason"] == "replay_diverged", error
    assert len(set(re.findall(r"clock-\d+", error["message"]))) == 2, error["message"]
    assert (tmp_path / "paid").read_text() == "x\n" and (tmp_path / "waits").read_text() == "x\n"
    assert len(upstream.asked("Go")) == asked, "no model was asked again"
