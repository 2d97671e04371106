"""`ninelives drill` as its user has it: a command, in a directory with a configuration and tools of their own (F2)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ninelives.app.settings import load
from ninelives.drill.boundaries import die_everywhere, scenario
from ninelives.drill.checks import CLOSED, Evidence, Finding, Told, judge
from ninelives.drill.loads import PROBES, Load
from ninelives.drill.own import Impossible, Own, Wish, named_call, own_server
from ninelives.drill.processes import Launch
from ninelives.drill.report import Facts, page, table
from ninelives.drill.rig import Rig, Tally
from ninelives.drill.wire import KEY, until_shown
from ninelives.drill.witness import Setup
from ninelives.testing.fake_upstream import FakeUpstream

pytestmark = pytest.mark.xdist_group("processes")
ROOT = Path(__file__).resolve().parents[2]
TOOLS = '''
from pathlib import Path
from ninelives.tools.decorator import tool

print("a module that talks " * 20_000)


@tool(effect="write")
async def order(item: str) -> str:
    """Order something."""
    with Path("orders").open("a") as file:
        file.write(item + "\\n")
    return f"{item} is ordered"
'''
CONFIG = """
[server]
key = "the-Users-own-key-0123456789"
model_name = "mine"
[agent]
max_rounds = 2
tool_items = "mcp_call"
[tools]
modules = ["shop.py"]
approval = "always"
[store]
url = "postgresql://nobody@127.0.0.1:1/a-drill-must-not-touch-it"
max_responses = 1
"""
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("NINELIVES_", "API_SERVER_"))}


class Said(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the user has their configuration."""
    (tmp_path / "shop.py").write_text(TOOLS)
    (tmp_path / "ninelives.toml").write_text(CONFIG)
    return tmp_path


async def ninelives_drill(home: Path, *arguments: str) -> Said:
    """The command, to its end."""
    environ = {**ENVIRON, "PYTHONPATH": str(ROOT), "TMPDIR": str(home), "NINELIVES_CONFIG": "ninelives.toml"}
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ninelives", "drill", *arguments, cwd=home, env=environ, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(180):
            out, err = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return Said(child.returncode, out.decode(), err.decode())


async def test_F2_a_drill_of_the_users_own_server_counts_kills_and_calls_only_the_tools_that_were_named(
    home: Path,
) -> None:
    named = ("--call", 'order:{"item": "tea"}')
    said = await ninelives_drill(home, "--kills", "2", "--no-boundaries", "--json", "--report", "proof.md", *named)
    assert said.code == 0, said
    told = json.loads(said.out)
    assert told["ok"] and told["kills"] == told["at_random"] == 2 and told["violations"] == []
    assert told["runs"] >= 4 and told["events_seen"] > 10 and told["tool_executions_counted"] >= 0
    assert told["changed_settings"]["tools.modules"] == "shop.py,ninelives.drill.probes"
    assert (home / "proof.md").read_text().count("\n| ") >= 15
    ordered = (home / "orders").read_text().split() if (home / "orders").exists() else []
    assert set(ordered) <= {"tea"}
    assert not [left for left in os.listdir(home) if left.startswith("ninelives-drill-")], "it leaves nothing behind"


async def test_F2_a_server_that_tells_before_it_writes_is_found_with_exit_code_1(home: Path) -> None:
    broken = str(Path(__file__).with_name("broken.py"))
    (home / "ninelives.toml").write_text(f'[tools]\nmodules = ["{broken}"]\n')
    said = await ninelives_drill(home, "--kills", "1", "--in-flight", "3", "--no-boundaries", "--seed", str(SEED))
    assert said.code == 1, said
    lost = re.search(r"events lost +(\d+)\nevents changed +(\d+)", said.out)
    assert lost is not None and int(lost[1]) + int(lost[2]) > 0, said
    assert "BROKEN" in said.out and f"--seed {SEED}" in said.out, said


SEED = 39
"""Its first kill comes with a frame that a client has got, whatever the speed of the machine."""


async def test_F2_a_drill_with_the_users_own_model_judges_what_it_cannot_foresee(home: Path) -> None:
    prompts = ('--prompt=buy tea [[tools=order:{"item": "tea"}]]', "--prompt=talk [[tokens=30 pace=0.02]]")
    async with FakeUpstream() as model:
        config = f'[model]\nurl = "{model.url}"\nname = "m"\n[tools]\nmodules = ["shop.py"]\napproval = "on-write"\n'
        (home / "ninelives.toml").write_text(config)
        said = await ninelives_drill(home, "--real", *prompts, "--kills", "1", "--in-flight", "3", "--json")
    assert said.code == 0, said
    told = json.loads(said.out)
    assert told["model"] == "the configured one" and told["at_boundaries"] == 0 and told["at_random"] == 1
    assert not told["changed_settings"].keys() & {"tools.modules", "tools.approval"}
    assert told.get("waited_for_a_person", 0) <= told["runs"] <= 3
    assert not (home / "orders").exists(), "a drill answers no question"


async def test_F2_a_server_that_does_not_start_is_shown_with_its_last_lines_and_exit_code_2(home: Path) -> None:
    (home / "shop.py").write_text("raise RuntimeError('no shop today')\n")
    said = await ninelives_drill(home)
    assert said.code == 2 and "no shop today" in said.err and "Traceback" not in said.err, said


def own(home: Path, monkeypatch: pytest.MonkeyPatch, **wish: Any) -> Own:
    """The user's server, without the command."""
    monkeypatch.chdir(home)
    for name in set(os.environ) - set(ENVIRON):
        monkeypatch.delenv(name)
    file = home / "ninelives.toml"
    return own_server(Wish(config=str(file), **wish), load(file, {"HOME": str(home)}, {}), home)


async def test_P1_to_P5_hold_before_and_after_the_writes_of_a_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = own(home, monkeypatch).setup
    told: list[str] = []
    async with Rig(home / "rig", 7, setup) as rig:
        await die_everywhere(rig, f"[[tools={PROBES.write(0.01)}]]", told.append, most=2)
    assert told == ["before write 1", "after write 1", "before write 2", "after write 2"]
    assert rig.tally.kills == rig.tally.boundaries == 4 and not rig.tally.found, rig.tally
    assert rig.tally.runs == 3, "before its first write there is no run; after it there always is"


SILENT = """
import asyncio

async def agent(question):
    await asyncio.sleep(600)
    return "late"
"""


async def test_P1_a_chat_that_failed_before_it_said_anything_has_lost_nothing(tmp_path: Path) -> None:
    """Its replay is its error, with the status of that (B2). An agent with one parameter cannot go on after a crash."""
    (tmp_path / "silent.py").write_text(SILENT)
    environ = {**ENVIRON, "PYTHONPATH": str(ROOT), "API_SERVER_KEY": KEY, "NINELIVES_MODEL_URL": "demo:"}
    launch = Launch(("--host", "127.0.0.1", "silent.py:agent"), environ, tmp_path)
    load = Load("load-1", "chat", "Go")
    async with Rig(tmp_path / "rig", 1, Setup(launch, scripted=False, counted=frozenset())) as rig:
        rig.loads.append(load)
        client = asyncio.create_task(load.begin(rig.server.port))
        await until_shown(rig.server.port, f"/v1/runs?idempotency_key={load.tag}", lambda body: bool(body["data"]))
        await rig.server.kill()
        await client
        await rig.recover_and_judge()
    assert rig.tally.found == [] and rig.tally.runs == 1


def test_P1_a_frame_of_a_chat_whose_replay_is_an_error_was_lost_unless_it_is_that_error() -> None:
    said = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}],"sequence_number":3}\n\n'
    error = b'data: {"error":{"message":"m","type":"server_error","param":null,"code":"agent_failed"}}\n\n'
    runs = b'data: {"event":"run.failed","seq":4}\n\n' + CLOSED

    def findings(*told: bytes) -> list[str]:
        replay = {"chat": b"", "runs": runs}
        found = Evidence("r", "chat", "failed", "", [Told("chat", -1, b"".join(told))], replay, refused="agent_failed")
        return [finding.kind for finding in judge(found)]

    assert findings(error) == [] == findings()
    assert findings(said) == ["lost"] == findings(said, error)
    assert findings(error.replace(b"agent_failed", b"overloaded")) == ["lost"]


def test_a_rule_that_asks_before_the_probes_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (home / "ninelives.toml").open("a") as file:
        file.write('[[approvals]]\ntool = "*"\nask = "always"\n')
    with pytest.raises(Impossible, match=r'tool = "drill_write" and ask = "never"'):
        own(home, monkeypatch)


@pytest.mark.parametrize("text", ["order", "order:[1]", "order:{", "two words:{}"])
def test_a_call_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Impossible, match="NAME"):
        named_call(text)


def test_the_scenario_has_every_effect_at_once_and_one_by_one_and_the_users_own_calls() -> None:
    text = scenario(['order:{"item": "tea"}'])
    assert all(text.count(name) == 2 for name in ("drill_write", "drill_idempotent", "drill_read"))
    assert 'order:{"item": "tea"}' in text


def test_the_table_and_the_page_show_what_was_broken() -> None:
    tally = Tally(kills=3, boundaries=1, found=[Finding("lost", "r", "gone"), Finding("ask", "r", "strange")])
    facts = Facts(5, "ninelives drill --seed 5", "2026-01-01", "scripted", {"tools.approval": "never"}, 1.0)
    shown = table(tally, facts)
    assert re.search(r"events lost +1\n", shown) and re.search(r"other violations +1\n", shown)
    assert "lost: run r: gone" in shown and "To repeat it: ninelives drill --seed 5" in shown
    made = page(tally, facts)
    assert "BROKEN: 2 violations" in made and "| events lost | 1 |" in made and "lost: run r: gone" in made
    assert "No promise was broken" in page(replace(tally, found=[]), facts)
