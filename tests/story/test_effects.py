"""Effects over real kills: what was finished is reused, what may be repeated is repeated under the same call id, a
write is never repeated (E3, P5, D1)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.story.server import ROOT, Server, Upstream, start_server, wait_until

RUNS = "/v1/runs"
TOOLS = '''
import pathlib, time
from ninelives.tools.decorator import tool
from ninelives.tools.base import Place

LOG = pathlib.Path({log!r})
GO = pathlib.Path({go!r})

def did(name, place):
    with LOG.open("a") as file:
        file.write(f"{{name}} {{place.call_id}}\\n")

def slowly():
    for _ in range(600):
        if GO.exists():
            return
        time.sleep(0.05)

@tool(effect="read")
def quick(place: Place) -> str:
    """Done at once."""
    did("quick", place)
    return "quick"

@tool(effect="read")
def look(place: Place) -> str:
    """A slow read."""
    did("look", place)
    slowly()
    return "looked"

@tool(effect="idempotent")
def put(place: Place) -> str:
    """A slow write that may be repeated."""
    did("put", place)
    slowly()
    return "put"

@tool(effect="write")
def send(place: Place) -> str:
    """A slow write."""
    did("send", place)
    time.sleep(60)
    return "sent"
'''


def test_p5_parallel_calls_are_settled_each_by_its_own_rule_over_two_kills(tmp_path: Path, upstream: Upstream) -> None:
    log, go, module = tmp_path / "effects", tmp_path / "go", tmp_path / "own_tools.py"
    module.write_text(TOOLS.format(log=str(log), go=str(go)))
    log.touch()
    settings = {"NINELIVES_TOOLS_MODULES": str(module)}

    def names() -> list[str]:
        return [line.split()[0] for line in log.read_text().splitlines()]

    server = start_server(tmp_path, upstream.url, **settings)
    run = server.client.post(RUNS, {"input": "[[parallel=quick:{}|look:{}|put:{}|send:{}]]"}).json()["run_id"]

    def one_is_done() -> bool:
        steps = server.client.get(f"{RUNS}/{run}/receipt").json()["steps"]
        return any(step["outcome"] == "known" for step in steps)

    wait_until(lambda: one_is_done() and len(names()) == 3, "two are in flight")
    server.kill()
    server = start_server(tmp_path, upstream.url, **settings)
    wait_until(lambda: sorted(names()) == ["look", "look", "put", "put", "quick"], "both are made again")
    go.touch()
    wait_until(lambda: names()[-1] == "send", "the write is in flight")
    server.kill()
    server = start_server(tmp_path, upstream.url, **settings)
    wait_until(lambda: server.client.get(f"{RUNS}/{run}").json()["status"] == "completed", "the end")
    assert sorted(names()) == ["look", "look", "put", "put", "quick", "send"]
    assert len(set(log.read_text().splitlines())) == 4, "a repetition has the same call id"
    receipt = server.client.get(f"{RUNS}/{run}/receipt").json()
    by_id = {step["call_id"]: step["tool"] for step in receipt["steps"]}
    assert sorted(by_id[call] for call in receipt["repeated"]) == ["look", "put"]
    assert [by_id[call] for call in receipt["unknown_outcomes"]] == ["send"]
    assert receipt["recoveries"] == 2
    assert server.stop() == 0


def test_p5_through_an_mcp_server_the_same_rules_hold(tmp_path: Path, upstream: Upstream) -> None:
    """One finished read, then a write that hangs: after a kill the read is reused and the write's outcome is unknown;
    declared idempotent, the same call is made again under the same call id."""
    log = tmp_path / "effects"
    log.touch()
    config = tmp_path / "ninelives.toml"

    def configured(effect: str) -> dict[str, str]:
        config.write_text(
            f'[mcp.t]\ncommand = "{sys.executable}"\nargs = ["{ROOT}/tests/tools/mcp_server.py", "stdio"]\n'
            f'env = {{ MCP_TEST_LOG = "{log}" }}\neffects = {{ echo = "read", hang = "{effect}" }}\ntimeout_s = 30\n'
        )
        return {"NINELIVES_CONFIG": str(config)}

    for effect, made in (("write", 1), ("idempotent", 2)):
        log.write_text("")
        folder = tmp_path / effect
        folder.mkdir()
        settings = configured(effect)
        server = start_server(folder, upstream.url, **settings)
        wait_until(lambda s=server: "t_hang" in str(s.client.get("/v1/toolsets").json()), "the MCP server")
        run = server.client.post(RUNS, {"input": '[[tools=t_echo:{"text":"hi"}|t_hang:{}]]'}).json()["run_id"]
        wait_until(lambda: "hang" in log.read_text(), "the call is in flight")
        server.kill()
        server = start_server(folder, upstream.url, **settings)

        def receipt(at: Server = server, of: str = run) -> dict[str, Any]:
            return dict(at.client.get(f"{RUNS}/{of}/receipt").json())

        if effect == "write":
            wait_until(lambda s=server, r=run: s.client.get(f"{RUNS}/{r}").json()["status"] == "completed", "the end")
            assert len(receipt()["unknown_outcomes"]) == 1
        else:
            wait_until(lambda: log.read_text().count("hang") == 2, "it is made again")
            server.client.post(f"{RUNS}/{run}/stop")
        assert log.read_text().count("hang") == made
        assert receipt()["steps"][0]["starts"] == 1, "the finished read is reused"
        assert server.stop() == 0
