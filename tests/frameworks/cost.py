"""python -m tests.frameworks.cost: what this server costs a pydantic-ai agent (make bench-agents). Owns: both servers,
the load and the ratios. Refuses to know: how either server works.

The same agent, with a model in its process that says TOKENS words at a pace, is behind this server and behind a bare
FastAPI endpoint that sends its words as server-sent events and stores nothing. Both get the same requests in turns, so
what else the machine does counts for both. Then both are killed in the middle of an answer."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ninelives.drill.processes import Launch, Process, Server
from ninelives.drill.wire import KEY, Exchange, until, until_shown

AGENT = """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

async def words(messages, info):
    for n in range({tokens}):
        await asyncio.sleep({pace})
        yield f"word{{n}} "

agent = Agent(FunctionModel(stream_function=words), instructions="Be brief.")
"""
BARE = """
import json, sys
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from my_agent import agent

app = FastAPI()

@app.post("/stream")
async def stream(body: dict):
    async def events():
        async with agent.run_stream(body["messages"][-1]["content"]) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                yield f"data: {json.dumps({'delta': text})}\\n\\n"
        yield "data: [DONE]\\n\\n"
    return StreamingResponse(events(), media_type="text/event-stream")

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


async def bare_server(folder: Path) -> Process:
    with_port = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = with_port.sockets[0].getsockname()[1]
    with_port.close()
    await with_port.wait_closed()
    child = await asyncio.create_subprocess_exec(sys.executable, "bare.py", str(port), cwd=folder)
    process = Process(child)
    process.port = port
    async with asyncio.timeout(60):
        while (await Exchange(port, "GET", "/docs").run()).status == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return process


async def own_server(folder: Path) -> Server:
    environ = {**os.environ, "API_SERVER_KEY": KEY, "NINELIVES_TOOLS_APPROVAL": "never"}
    return await Server.start(folder, None, Launch(("--host", "127.0.0.1", "my_agent:agent"), environ, folder))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def once(port: int, path: str) -> tuple[float, int]:
    """Seconds to the first word, and how many words came."""
    began, first = time.perf_counter(), 0.0

    def on_data(data: bytes) -> None:
        nonlocal first
        if not first and b"word0" in data:
            first = time.perf_counter() - began

    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on"}], "stream": True}
    exchange = await Exchange(port, "POST", path, body, on_data).run()
    return first, exchange.data.count(b'"word')


async def batch(process: Process, path: str, requests: int, at_once: int) -> tuple[list[float], float]:
    """Times to the first word, and CPU seconds per word."""
    before, firsts, words = cpu_s(process.pid), [], 0
    for _ in range(requests // at_once):
        for first, count in await asyncio.gather(*(once(process.port, path) for _ in range(at_once))):
            firsts.append(first)
            words += count
    return firsts, (cpu_s(process.pid) - before) / words


async def kept(process: Process, path: str) -> tuple[int, str]:
    """Kill in the middle of an answer. Returns the words that the client had, and the id of its run, if it has one."""
    seen: list[bytes] = []
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on"}], "stream": True}
    client = asyncio.create_task(Exchange(process.port, "POST", path, body, seen.append).run())
    await until(lambda: b"".join(seen).count(b'"word') > 20)
    process.signal(signal.SIGKILL)
    await process.gone()
    data = (await client).data
    shown = data.split(b"chatcmpl-", 1)[1][:24].decode() if b"chatcmpl-" in data else ""
    return data.count(b'"word'), shown


async def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.frameworks.cost")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--requests", type=int, default=16)
    options.add_argument("--at-once", type=int, default=8)
    options.add_argument("--tokens", type=int, default=200)
    options.add_argument("--pace", type=float, default=0.005)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="agents-cost-") as name:
        folder = Path(name)
        (folder / "my_agent.py").write_text(AGENT.format(tokens=given.tokens, pace=given.pace))
        (folder / "bare.py").write_text(BARE)
        bare, own = await bare_server(folder), await own_server(folder)
        paths: dict[str, tuple[Process, str]] = {"bare": (bare, "/stream"), "own": (own, "/v1/chat/completions")}
        for process, path in paths.values():
            await batch(process, path, given.at_once, given.at_once)
        firsts: dict[str, list[float]] = {"bare": [], "own": []}
        costs: dict[str, list[float]] = {"bare": [], "own": []}
        for _ in range(given.rounds):
            for side, (process, path) in paths.items():
                times, cost = await batch(process, path, given.requests, given.at_once)
                firsts[side] += times
                costs[side].append(cost)
        first = {side: median(times) * 1000 for side, times in firsts.items()}
        cpu = {side: median(each) * 1e6 for side, each in costs.items()}
        print(f"{given.rounds} rounds of {given.requests} requests, {given.at_once} at once, {given.tokens} words each")
        print("| | bare FastAPI | ninelives | ratio |\n|---|---|---|---|")
        for what, found in {"first word, median (ms)": first, "CPU per word, median (us)": cpu}.items():
            print(f"| {what} | {found['bare']:.1f} | {found['own']:.1f} | {found['own'] / found['bare']:.2f} |")
        had, _ = await kept(bare, "/stream")
        print(f"| after kill -9 at word {had} | 0 of {given.tokens} words | ", end="")
        had, run = await kept(own, "/v1/chat/completions")
        own = await own_server(folder)
        shown = await until_shown(own.port, f"/v1/runs/run_{run}", lambda body: body["status"] == "completed", 60)
        print(f"{str(shown['output']).count('word')} of {given.tokens} words (killed at {had}) | |")
        await own.kill()


if __name__ == "__main__":
    asyncio.run(main())
