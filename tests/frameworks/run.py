"""python -m tests.frameworks.run [EXAMPLE ...] [--write]: what each example in examples/ keeps over a crash, with the
real packages (make test-agents). Owns: the servers, the kills and the counts. Refuses to know: what an example does.

The model is the scripted upstream, which logs each request. The examples book into a file. Each example is streamed
through four APIs. Then it is killed before and after every write of a run, and in the middle of its booking. After each
kill the next server finishes the run, and it is counted what was done again though it was finished.

The quick starts of the frameworks are served as their documentation has them, with tools that declare nothing, and with
the lines that run the agent once. Their models speak the Responses API, so a second server stands before the scripted
upstream."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninelives.drill.boundaries import Point, dies, points
from ninelives.drill.processes import Launch, Server, Upstream, launch_clean
from ninelives.drill.rig import ENDED, Rig
from ninelives.drill.wire import KEY, Exchange, get, post, until, until_shown
from ninelives.drill.witness import Setup

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-agent.md"
DIALECTS = ("chat", "responses", "runs")
BOOK = '[[tools=weather:{"city":"Oslo"}|book:{"city":"Oslo"}]] Plan a trip'


@dataclass(frozen=True)
class Case:
    """An example, and what is known of its run."""

    name: str
    kind: str
    needs: str = ""
    """The package that must be installed."""
    prompt: str = BOOK
    answers: int = 3
    """How often it asks the model."""
    tools: tuple[str, ...] = ("weather", "book")
    books: bool = True
    thing: str = "agent"
    folder: str = "examples"
    mark: str = ""
    """Only requests to the model with this text count: a script that runs its agent when it is imported asks too."""


CASES = (
    Case("function", "async function", prompt="Book Oslo", answers=0),
    Case("stream", "async generator", prompt="Go", answers=0, tools=("roll", "note"), books=False),
    Case("own_loop", "function, asks", prompt='[[tools=book:{"city":"Oslo"}]] Go', answers=2, tools=("book",)),
    Case("pydantic_agent", "pydantic-ai", "pydantic_ai"),
    Case("openai_agent", "OpenAI Agents SDK", "agents"),
    Case("langgraph_agent", "LangGraph: create_agent", "langchain_openai"),
    Case("langgraph_graph", "LangGraph: blocking nodes", "langchain_openai", "Plan", 2, ("book",), thing="graph"),
    Case(
        "hermes_agent",
        "hermes-agent",
        "run_agent",
        '[[tools=terminal:{"command":"echo Oslo >> bookings.txt; sleep 0.4"}]] Book',
        2,
        ("terminal",),
    ),
)


QUICK = "tests/frameworks/quickstarts"
ASKED = "Quickly now"


def quick(name: str, kind: str, needs: str, tool: str, arguments: str = "{}") -> Case:
    prompt = f"[[tools={tool}:{arguments}]] {ASKED}"
    return Case(name, kind, needs, prompt, 2, (tool,), books=False, folder=QUICK, mark=ASKED)


QUICKSTARTS = (
    quick("pydantic_quickstart", "pydantic-ai", "pydantic_ai", "roll_dice"),
    quick("openai_quickstart", "OpenAI Agents SDK", "agents", "history_fun_fact"),
    quick("langchain_quickstart", "langchain", "langchain_openai", "get_weather", '{"city":"sf"}'),
    quick("langgraph_quickstart", "LangGraph", "langchain_openai", "add", '{"a":3,"b":4}'),
    quick("hermes_quickstart", "hermes-agent", "run_agent", "terminal", '{"command":"echo 4"}'),
)


@dataclass
class Counts:
    """What was counted for one example."""

    kills: int = 0
    events: int = 0
    calls_again: int = 0
    answers_again: int = 0
    unknown: int = 0
    lost: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Trial:
    """One example on one data directory."""

    def __init__(self, case: Case, folder: Path, upstream: Upstream, port: int) -> None:
        self.case = case
        self.folder = folder
        self.counts = Counts()
        self._upstream = upstream
        url = f"http://127.0.0.1:{port}/v1"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NINELIVES_", "API_SERVER_"))}
        environ = {
            **kept,
            "API_SERVER_KEY": KEY,
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": KEY,
            "NINELIVES_MODEL_URL": url,
            "NINELIVES_MODEL_NAME": "m",
            "NINELIVES_TOOLS_APPROVAL": "never",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "HERMES_HOME": str(folder / "hermes"),
            "TERMINAL_CWD": str(folder),
        }
        (folder / "hermes").mkdir(exist_ok=True)
        (folder / "hermes" / "config.yaml").write_text(HERMES.format(url=url, key=KEY))
        agent = str(ROOT / case.folder / f"{case.name}.py") + f":{case.thing}"
        launch = Launch(("--host", "127.0.0.1", agent), environ, folder)
        self.rig = Rig(folder, 1, Setup(launch, scripted=False, counted=frozenset()))

    def booked(self) -> int:
        file = self.folder / "bookings.txt"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def asked(self) -> int:
        lines = self._upstream.log.read_text().splitlines() if self._upstream.log.exists() else []
        return sum(self.case.mark in line for line in lines)

    async def run(self, *, kills: bool = True) -> Counts:
        async with self.rig:
            await self._stream_everywhere()
            if kills:
                await self._kill_everywhere()
                await self._kill_in_the_middle()
        self.counts.wrong += [f"{found.kind}: {found.text}" for found in self.rig.tally.found]
        self.counts.lost = self.rig.tally.count("lost", "changed")
        self.counts.events = self.rig.tally.events
        return self.counts

    async def _stream_everywhere(self) -> None:
        """The tools show in the stream of each API, each call as a pair."""
        text, port = self.case.prompt, self.rig.server.port
        user = [{"role": "user", "content": text}]
        bodies: dict[str, dict[str, Any]] = {
            "/v1/chat/completions": {"messages": user, "stream": True},
            "/v1/responses": {"input": text, "stream": True},
            "/v1/messages": {"messages": user, "stream": True, "model": "x", "max_tokens": 1000},
        }
        pairs = {
            "/v1/chat/completions": (b'"status":"running"', b'"status":"completed"'),
            "/v1/responses": (b'"type":"function_call"', b'"type":"function_call_output"'),
            "/v1/messages": (b'"type":"mcp_tool_use"', b'"type":"mcp_tool_result"'),
            "/v1/runs": (b'"event":"tool.started"', b'"event":"tool.completed"'),
        }
        for path, (begin, end) in pairs.items():
            if path in bodies:
                data = (await post(port, path, bodies[path])).data
            else:
                run = (await post(port, path, {"input": text})).json()["run_id"]
                data = (await get(port, f"{path}/{run}/events")).data
            frames = data.split(b"\n\n")
            for tool in self.case.tools:
                named = b'"%s"' % tool.encode()
                begun = [frame for frame in frames if begin in frame and (named in frame)]
                if not begun or not any(end in frame for frame in frames):
                    self.counts.wrong.append(f"{path} shows no pair of events for {tool}")

    async def _kill_everywhere(self) -> None:
        rig = self.rig
        await rig.server.kill()
        rig.module = Point(1, "before").module
        rig.server = await rig.start()
        for n, point in enumerate(points(100)):
            before = self.booked(), self.asked()
            died = await dies(rig, point, self.case.prompt, DIALECTS[n % len(DIALECTS)])
            load, at_death = rig.loads[-1], self.asked()
            rig.module = (Point(point.at, "after") if point.when == "before" else Point(point.at + 1, "before")).module
            if not died:
                rig.module = rig.setup.launch.module
            await rig.recover_and_judge()
            if not died:
                return
            self.counts.kills += 1
            if load.id:
                await self._count(load.id.split("_")[-1].removeprefix("chatcmpl-"), before, at_death)
        self.counts.wrong.append("the run had more than 100 writes")

    async def _kill_in_the_middle(self) -> None:
        """Killed while it books: the booking is in the file, and its result is not in the journal."""
        if not self.case.books:
            return
        for path in ("/v1/runs", "/v1/messages"):
            rig, before = self.rig, (self.booked(), self.asked())
            key = f"middle{path.replace('/', '-')}"
            body: dict[str, Any] = {"input": self.case.prompt}
            if path == "/v1/messages":
                user = [{"role": "user", "content": self.case.prompt}]
                body = {"messages": user, "stream": True, "model": "x", "max_tokens": 1000}
            client = asyncio.create_task(Exchange(rig.server.port, "POST", path, body, None, Idempotency_Key=key).run())
            await until(lambda was=before[0]: self.booked() > was, 60, "it books")  # type: ignore[misc]
            await rig.server.kill()
            await client
            at_death = self.asked()
            rig.server = await rig.start()
            found = (await rig.server.shown(f"/v1/runs?idempotency_key={key}"))["data"]
            self.counts.kills += 1
            await self._count(found[0]["run_id"].removeprefix("run_"), before, at_death)

    async def _count(self, run: str, before: tuple[int, int], asked_at_death: int) -> None:
        """What a run did again that was finished at the kill."""
        port, counts = self.rig.server.port, self.counts
        shown = await until_shown(port, f"/v1/runs/run_{run}", lambda body: body["status"] in ENDED, 60)
        receipt = (await get(port, f"/v1/runs/run_{run}/receipt")).json()
        last = receipt["attempts"][-1]
        error = receipt["error"] or {}
        code = error.get("reason") or error.get("code") or ""
        counts.ends[" ".join(filter(None, (shown["status"], code)))] += 1
        counts.calls_again += max(0, self.booked() - before[0] - 1)
        counts.calls_again += sum(step["starts"] > 1 for step in receipt["steps"] if step["effect"] == "write")
        counts.unknown += len(receipt["unknown_outcomes"])
        due = max(0, self.case.answers - last.get("reused_messages", 0))
        counts.answers_again += max(0, self.asked() - asked_at_death - due)


HERMES = """\
model:
  default: m
  provider: custom
  base_url: {url}
  api_key: {key}
"""


def table(rows: dict[str, Counts], cases: Sequence[Case]) -> str:
    head = "| example | kills | events seen | lost | calls repeated | answers repeated | unknown, told | ends |"
    lines = [head, "|" + "---|" * 8]
    for case in cases:
        if (one := rows.get(case.name)) is not None:
            ends = ", ".join(f"{count} {name}" for name, count in one.ends.most_common())
            lines.append(
                f"| [{case.name}.py](../{case.folder}/{case.name}.py) ({case.kind}) "
                f"| {one.kills} | {one.events} | {one.lost} | {one.calls_again} | {one.answers_again} "
                f"| {one.unknown} | {ends} |"
            )
    return "\n".join(lines)


async def counted(case: Case, folder: Path, *, kills: bool = True) -> Counts:
    """Stream an example through each API, and kill it everywhere."""
    upstream = await Upstream.start(folder)
    before: Server | None = None
    try:
        if case.folder == QUICK:
            (folder / "model").mkdir()
            before = await Server.start(folder / "model", upstream.port, launch_clean())
        return await Trial(case, folder, upstream, (before or upstream).port).run(kills=kills)
    finally:
        if before is not None:
            await before.kill()
        await upstream.kill()


async def measured(names: list[str]) -> dict[str, Counts]:
    rows: dict[str, Counts] = {}
    for case in (*CASES, *QUICKSTARTS):
        if names and case.name not in names:
            continue
        if case.needs and importlib.util.find_spec(case.needs) is None:
            print(f"!!! {case.name} IS SKIPPED: {case.needs} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix=f"agents-{case.name}-") as folder:
            rows[case.name] = await counted(case, Path(folder))
        print(
            table({case.name: rows[case.name]}, [case]).splitlines()[-1], *rows[case.name].wrong, sep="\n  ", flush=True
        )
    return rows


TABLES = {"<!-- measured: make test-agents -->": CASES, "<!-- measured: quick starts -->": QUICKSTARTS}
END = "<!-- end -->"


def write(rows: dict[str, Counts]) -> None:
    """Renew the rows of the tables in the documentation that were measured now."""
    text = PAGE.read_text()
    for begin, cases in TABLES.items():
        before, rest = text.split(begin)
        old, after = rest.split(END, 1)
        new = table(rows, cases).splitlines()
        kept = [line for line in old.strip().splitlines()[2:] if not any(f"[{name}.py]" in line for name in rows)]
        order = [case.name for case in cases]
        lines = sorted([*new[2:], *kept], key=lambda line: order.index(line.split("[")[1].split(".py]")[0]))
        text = f"{before}{begin}\n" + "\n".join([*new[:2], *lines]) + f"\n{END}{after}"
    PAGE.write_text(text)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.frameworks.run")
    options.add_argument("names", nargs="*")
    options.add_argument("--write", action="store_true", help="renew the table in docs/own-agent.md")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    rows = asyncio.run(measured(given.names))
    if given.write:
        write(rows)
    if given.json:
        print(json.dumps({name: vars(one) for name, one in rows.items()}))
    bad = [name for name, one in rows.items() if one.wrong or one.lost or one.calls_again or one.answers_again]
    print(f"{len(rows)} examples, {sum(one.kills for one in rows.values())} kills, broken: {', '.join(bad) or 'none'}")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
