"""What observation costs: `python -m lab.observed`. Owns: counting the instructions of a server's process by callgrind,
with the log, the metrics and the observer as they are, and without them. Needs valgrind. Counts do not depend on how
busy the machine is. Refuses to know: what is observed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

KEY = "observed-key-0123456789abcdef"
CALLERS = 8
LOADS = {"tiny": (200, "hello", CALLERS), "tokens": (12, "[[tokens=2000]]", 1)}
"""How many requests, what each says to the fake upstream, and how many callers. Tiny requests wait for their body, the
others stream. One caller at a time, because the size of a batch depends on who comes first."""
OFF = """
import sys
from ninelives.app import assemble
from ninelives.engine.base import NoObserver
from ninelives.http.edge.gate import Gate
from ninelives.observe.log import Log
assemble.RunObserver = lambda *parts: NoObserver()
Gate._note = lambda *parts: None
Log._write = lambda *parts: None
from ninelives.cli import main
main()
"""
ON = "from ninelives.cli import main\nmain()\n"


def upstream(where: Path) -> tuple[subprocess.Popen[str], str]:
    """The fake upstream, in a process of its own."""
    words = (
        "import asyncio\nfrom ninelives.testing.fake_upstream import FakeUpstream\n"
        "async def main():\n async with FakeUpstream() as up:\n"
        "  print(up.url, flush=True)\n  await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True, cwd=where)
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


def served(where: Path, url: str, program: str) -> tuple[subprocess.Popen[bytes], int]:
    """The server below callgrind, and its port."""
    command = [
        *("valgrind", "--tool=callgrind", f"--callgrind-out-file={where}/out.%p", "-q", sys.executable, "-c", program),
        *("serve", "--no-supervisor", "--port", "0", "--data-dir", str(where / "data"), "--model-url", url),
        *("--model", "m", "--sandbox", "off", "--approval", "never"),
    ]
    env = {**os.environ, "PYTHONHASHSEED": "0", "API_SERVER_KEY": KEY, "HOME": str(where)}
    said = where / "said"
    with said.open("wb") as out, (where / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=out, stderr=log, env=env, cwd=where)
    for _ in range(1200):
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", said.read_text()):
            return child, int(found[1])
        assert child.poll() is None, (where / "log").read_text()[-2000:]
        time.sleep(0.1)
    raise AssertionError("the server does not start")


def ask(port: int, text: str, stream: bool) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    body: dict[str, Any] = {"model": "hermes-agent", "messages": [{"role": "user", "content": text}], "stream": stream}
    head = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


def load(port: int, count: int, text: str, at_once: int) -> None:
    stream = at_once == 1
    with ThreadPoolExecutor(at_once) as callers:
        list(callers.map(lambda _: ask(port, text, stream), range(count)))
    time.sleep(3)  # what follows a request: packing, listing, the note of its delivery


def counted(program: str) -> dict[str, float]:
    """Instructions of one request, by load."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        where = Path(place)
        other, url = upstream(where)
        child, port = served(where, url, program)
        try:
            for name, (count, text, at_once) in LOADS.items():
                load(port, count // 2, text, at_once)  # until all is loaded
                subprocess.run(["callgrind_control", "-z", str(child.pid)], check=True, capture_output=True)
                load(port, count, text, at_once)
                subprocess.run(["callgrind_control", "-d", name, str(child.pid)], check=True, capture_output=True)
                newest = max(where.glob(f"out.{child.pid}.*"), key=lambda file: int(file.suffix[1:]))
                total = re.search(r"^(?:summary|totals): (\d+)", newest.read_text(), re.M)
                assert total, newest
                found[name] = int(total[1]) / count
                if keep := os.environ.get("OBSERVED_KEEP"):
                    (Path(keep) / f"{name}-{'on' if program == ON else 'off'}.out").write_bytes(newest.read_bytes())
        finally:
            child.terminate()
            child.wait()
            other.terminate()
            other.wait()
    return found


def main() -> None:
    with_it, without = counted(ON), counted(OFF)
    for name in LOADS:
        share = with_it[name] / without[name] - 1
        print(f"{name}: {with_it[name]:,.0f} instructions a request, {without[name]:,.0f} without: {share:+.1%}")


if __name__ == "__main__":
    main()
