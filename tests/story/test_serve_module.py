"""An agent of one's own behind `ninelives serve module:object`, killed and continued (E5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.responses import PATH, text_of
from tests.story.server import Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

CODE = """
import asyncio, pathlib, time

HERE = pathlib.Path(__file__).parent

def pay(amount: int, key: str) -> str:
    with (HERE / "paid").open("a") as file:
        file.write(key + "\\n")
    return "paid"

async def hang(name: str) -> str:
    with (HERE / name).open("a") as file:
        file.write("x")
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    return "done"

async def clock() -> int:
    return 1

async def agent(question, ctx):
    yield "First. "
    await ctx.step("pay", pay, 5)
    if question == "clock":
        await ctx.step("clock", clock, effect="read") if ctx.attempt == 1 else await ctx.step("other", clock)
    await ctx.step("hang", hang, "hung", effect="write" if question == "write" else "read")
    yield "Last."

async def plain(question: str) -> str:
    await hang("hung")
    return "You said " + question
"""


class Place:
    """One server after another, with the agent of this file."""

    def __init__(self, where: Path, upstream: Upstream) -> None:
        self.where = where
        self._upstream = upstream
        self._servers: list[Server] = []
        (where / "own_agent.py").write_text(CODE)

    def start(self, name: str = "agent") -> Server:
        named = f"{self.where / 'own_agent.py'}:{name}"
        server = start_server(self.where, self._upstream.url, NINELIVES_AGENT_OBJECT=named)
        self._servers.append(server)
        return server

    def lines(self, name: str) -> int:
        return len((self.where / name).read_text().splitlines()) if (self.where / name).exists() else 0

    def close(self) -> None:
        for server in self._servers:
            if server.process.child.poll() is None:
                server.stop()


@pytest.fixture
def place(tmp_path: Path, upstream: Upstream) -> Iterator[Place]:
    made = Place(tmp_path, upstream)
    try:
        yield made
    finally:
        made.close()


def interrupted(place: Place, question: str, name: str = "agent") -> tuple[Server, str]:
    """A run whose server was killed while `hang` ran, and the next server."""
    server = place.start(name)
    run = server.client.post(PATH, {"input": question, "background": True}).json()["id"]
    wait_until(lambda: place.lines("hung") == 1, "the agent is in its step")
    server.kill()
    (place.where / "go").write_text("")
    return place.start(name), run


def ended(server: Server, run: str) -> dict[str, object]:
    wait_until(lambda: server.client.get(f"{PATH}/{run}").json()["status"] not in ("queued", "in_progress"), "it ended")
    return dict(server.client.get(f"{PATH}/{run}").json())


def test_e5_a_finished_step_is_not_made_again_after_a_kill_and_a_read_is(place: Place) -> None:
    server, run = interrupted(place, "read")
    response = ended(server, run)
    assert response["status"] == "completed" and text_of(response) == "First. Last."
    assert place.lines("paid") == 1 and (place.where / "hung").read_text() == "xx"


def test_e5_a_write_in_flight_is_told_as_unknown_and_not_repeated(place: Place) -> None:
    server, run = interrupted(place, "write")
    response = ended(server, run)
    assert response["status"] == "failed" and "outcome is unknown" in str(response["error"])
    assert place.lines("paid") == 1 and (place.where / "hung").read_text() == "x"


def test_e5_code_that_does_something_else_after_a_kill_ends_the_run_and_repeats_nothing(place: Place) -> None:
    server, run = interrupted(place, "clock")
    response = ended(server, run)
    assert response["status"] == "failed"
    assert "clock" in str(response["error"]) and "other" in str(response["error"])
    receipt = server.client.get(f"/v1/runs/{run}").json()
    assert "replay_diverged" in str(receipt["error"])
    assert place.lines("paid") == 1 and (place.where / "hung").read_text() == "x"


def test_e5_a_function_without_context_is_not_called_again_after_a_kill(place: Place) -> None:
    server, run = interrupted(place, "hello", "plain")
    response = ended(server, run)
    assert response["status"] == "failed" and (place.where / "hung").read_text() == "x"
