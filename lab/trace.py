"""Which functions of the package a request passes, and which lie between the start of a process and the worker that
goes on with a run. Owns: a server under a profiler, a chat with one tool, a kill, and the counts. Run it with
`python -m lab.trace`; `--list` names every function. Refuses to know: what a good count is.

Theory of operation. The server runs in a child process, with `sys.setprofile` in all of its threads. A call counts for
its root: the outermost frame of the package on its stack, which for a task is the coroutine that the task was made of.
So the rounds that a server makes anyway (finder, beat, upkeep) are told apart from the request, though both run on one
loop. Lambdas and comprehensions belong to the function that they stand in."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TextIO

ROUNDS = (
    *("WorkFinder.run", "Lease.beat", "Lease.watch", "Retainer.run", "Retainer.run_forgetting", "Readers.tick"),
    *("SqliteDatabase.keep_up", "watch_space", "Space.shortage", "SessionLister.run", "Accounts.run"),
)
"""Roots that go round beside the requests."""
JOBS_OF_ROUNDS = frozenset(
    {
        ("journal/sqlite/database.py", "SqliteDatabase.checkpoint"),
        ("journal/sqlite/database.py", "_trim"),
        ("journal/sqlite/upkeep.py", "SqliteLedger.add.<locals>.add"),
    }
)
"""What such rounds ask of the threads of the store. Without this they would count for the request, because the root of
all jobs is that of the thread."""
LOOP = ("asyncio/runners.py", "asyncio/events.py", "asyncio/base_events.py")
"""Files of the event loop: what calls a task or a callback."""
SPAWN = "Tasks._guard"
"""Stands around every task of the engine."""
FINDS, TAKES, DRIVES = "WorkFinder.run", "WorkFinder._take", "Worker.drive"
KEY = "trace-key-0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
CHAT = '[[tools=read_file:{"path":"a.txt"}]]'
SEEN = "seen: "
RECORDING = "recording"
START_S = 60.0
AFTERWARDS_S = 1.5
"""How long after an answer calls still belong to its request: its delivery is noted and its run is packed."""
Place = tuple[str, str]
"""A file of the package and the qualified name of a function in it."""


class Tracer:
    """Records calls in this process, by root."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}{os.sep}"
        self._places: dict[CodeType, Place | None] = {}
        self.seen: dict[str, set[Place]] = defaultdict(set)
        self.recording = False
        self._since = self._until = ""

    def record(self, since: str = "", until: str = "") -> None:
        """Begin anew, when the function `since` is called; stop when `until` is called. Empty: at once, and never."""
        self.seen = defaultdict(set)
        self._since, self._until = since, until
        self.recording = True

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """See sys.setprofile."""
        if event != "call" or not self.recording:
            return
        place = self._place(frame.f_code)
        if place is None or self._since not in ("", place[1]):
            return
        self._since = ""
        self.seen[self._root(frame)].add(place)
        if place[1] == self._until:
            self.recording = False

    def _root(self, frame: FrameType) -> str:
        root, each = "", frame
        while each is not None and not each.f_code.co_filename.endswith(LOOP):
            place = self._place(each.f_code)
            if place in JOBS_OF_ROUNDS:
                return place[1]
            if place is not None and place[1] != SPAWN:
                root = place[1]
            each = each.f_back  # type: ignore[assignment]
        return root

    def _place(self, code: CodeType) -> Place | None:
        if code not in self._places:
            file, name = code.co_filename, code.co_qualname.split(".<locals>.<")[0]
            inside = file.startswith(self._package) and code.co_flags & CO_OPTIMIZED and not name.startswith("<")
            self._places[code] = (file.removeprefix(self._package), name) if inside else None
        return self._places[code]


def serve_traced(package: str, commands: TextIO, out: TextIO) -> None:
    """Run the server of `package` under a tracer. Each line of `commands` is "record" or "show"."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"there is no package {package}")
    tracer = Tracer(Path(spec.origin).parent)

    def obey() -> None:
        for line in commands:
            if line.strip() == "show":
                seen = {root: sorted(places) for root, places in tracer.seen.items()}
                out.write(f"{SEEN}{json.dumps(seen)}\n")
                out.flush()
            else:
                tracer.record()
                out.write(f"{RECORDING}\n")
                out.flush()

    threading.Thread(target=obey, daemon=True).start()
    if span := os.environ.get("TRACE_SPAN"):
        tracer.record(*span.split(","))
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    runpy.run_module(package, run_name="__main__", alter_sys=True)


class TracedServer:
    """A traced server in a child process."""

    def __init__(self, folder: Path, upstream: int, package: str, span: str = "") -> None:
        self.log = folder / "serve.log"
        self.port = 0
        serve = ["serve", "--port", "0", "--data-dir", str(folder / "data"), "--store", "sqlite"]
        model = ["--model-url", f"http://127.0.0.1:{upstream}/v1", "--model", "trace"]
        alone = ["--no-supervisor"] if package == "ninelives" else []
        self._process = subprocess.Popen(
            [sys.executable, __file__, package, *serve, *model, *alone],
            env={**os.environ, "API_SERVER_KEY": KEY, "TRACE_SPAN": span, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            text=True,
        )
        self.port = int(_line_with(self._process, "listening on").rpartition(":")[2])

    def _ask_tracer(self, command: str, answer: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return _line_with(self._process, answer)

    def record(self) -> None:
        """Record from now on."""
        self._ask_tracer("record", RECORDING)

    def seen(self) -> dict[str, list[Place]]:
        """What was called since then, by root."""
        found: dict[str, list[Place]] = json.loads(self._ask_tracer("show", SEEN).removeprefix(SEEN))
        return found

    def ask(self, text: str) -> HTTPConnection:
        """Send a streamed chat."""
        line = HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        body = {"model": "hermes-agent", "stream": True, "messages": [{"role": "user", "content": text}]}
        line.request("POST", "/v1/chat/completions", json.dumps(body), HEADERS)
        return line

    def chat(self, text: str) -> None:
        """Send a streamed chat and read the answer."""
        answer = self.ask(text).getresponse().read()
        if b"[DONE]" not in answer:
            raise SystemExit(f"the chat failed: {answer[-300:]!r}\n{self.log.read_text()[-500:]}")

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()


def _line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line.strip()
    raise SystemExit("the server ended")


@contextmanager
def _upstream(package: str) -> Iterator[int]:
    argv = [sys.executable, "-m", f"{package}.testing.fake_upstream", "--port", "0"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().split()[-1])
    finally:
        process.kill()
        process.wait()


def trace_chat(folder: Path, upstream: int, package: str) -> dict[str, list[Place]]:
    """The functions of a streamed chat with one tool, by root; not the first one of the process."""
    server = TracedServer(folder, upstream, package)
    try:
        server.chat(CHAT)
        time.sleep(AFTERWARDS_S)
        server.record()
        server.chat(CHAT)
        time.sleep(AFTERWARDS_S)
        return server.seen()
    finally:
        server.kill()


def trace_recovery(folder: Path, upstream: int, package: str) -> dict[str, list[Place]]:
    """The functions from the first look for work to the worker of a run that a killed process left, by root."""
    server = TracedServer(folder, upstream, package)
    line = server.ask("[[hang=3]]")
    line.getresponse().read(200)
    server.kill()
    with suppress(OSError):
        line.close()
    server = TracedServer(folder, upstream, package, f"{FINDS},{DRIVES}")
    try:
        time.sleep(AFTERWARDS_S)
        return server.seen()
    finally:
        server.kill()


def _print(title: str, roots: dict[str, list[Place]], *, listed: bool) -> None:
    places = {tuple(place) for each in roots.values() for place in each}
    print(f"{title}: {len(places)} functions in {len({file for file, _ in places})} files")
    for root, each in sorted(roots.items(), key=lambda item: -len(item[1])) if listed else ():
        print(f"  {root or '(package)'}")
        for file, name in sorted(each):
            print(f"    {file} {name}")


def main(argv: list[str]) -> None:
    """Trace a chat and a recovery, and print what was passed."""
    listed, package = "--list" in argv, next((each for each in argv if not each.startswith("-")), "ninelives")
    with tempfile.TemporaryDirectory(prefix="trace-") as folder, _upstream(package) as upstream:
        chat = trace_chat(Path(folder), upstream, package)
        recovery = trace_recovery(Path(folder), upstream, package)
    rounds = (*ROUNDS, *(name for _, name in JOBS_OF_ROUNDS))
    own = {root: places for root, places in chat.items() if root not in rounds}
    _print("a streamed chat with one tool", own, listed=listed)
    _print("beside it, rounds", {root: places for root, places in chat.items() if root in rounds}, listed=listed)
    way = {root: places for root, places in recovery.items() if root in (FINDS, TAKES)}
    hops = {root: [place for place in places if place[0].startswith("engine")] for root, places in way.items()}
    _print("hops of a recovery, in engine/", hops, listed=listed)
    _print("all of that way, with the store and the fold", way, listed=False)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[2] == "serve":
        traced = sys.argv[1]
        sys.argv = [traced, *sys.argv[2:]]
        serve_traced(traced, sys.stdin, sys.stdout)
    else:
        main(sys.argv[1:])
