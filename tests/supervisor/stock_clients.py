"""python -m tests.supervisor.stock_clients: kills the server at random moments while stock clients stream
(server.keep_calls and server.keep_clients). Owns: the load, the kills and the verdict. Every answer that has begun
comes to its end, its text is the upstream's script, its bytes are those of the projection of its journal (rendered.py),
each message is asked of the model once, and each tool ran once. Chats and messages have the events of an answer that
nobody disturbed. Nothing is kept of an answer that is over. Clients are curl, OpenAI's SDK for Python and for Node, and
Anthropic's; none tries again. Refuses to know: how clients are kept, but for finding what is left of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ninelives.supervisor import calls, custody
from tests import pg
from tests.story.server import KEY, ROOT, Server, Upstream, signal_process, start_supervised, start_upstream, wait_until
from tests.supervisor.forked import SOURCE
from tests.supervisor.rendered import Runs, body_of, runs_in_postgres, runs_in_sqlite, stream_of
from tests.supervisor.test_supervisor import children, server_pid, status

Json = dict[str, Any]
TOKENS = 40
BATCH = 50
"""Kills between two looks at what became of the answers."""
KEEPALIVE = b": keepalive\n\n"
CURL = ("chat", "chat-stored", "chat-unstored", "responses", "messages", "run", "wait-chat", "wait-responses")
PYTHON = ("chat", "responses", "messages", "wait")
NODE = ("chat", "responses")
STREAMS = ("chat", "chat-stored", "chat-unstored", "responses", "messages", "run")
DIALECT = {"wait": "chat", "wait-chat": "chat", "wait-responses": "responses", "run": "runs"} | {
    way: way.split("-")[0] for way in STREAMS if way != "run"
}
UNNUMBERED = (("curl", "chat"), ("curl", "chat-unstored"), ("curl", "messages"), ("python", "messages"))
"""Streams without the numbers of journal entries: a kill adds an entry."""
RUN = {
    "chat": re.compile(rb'"id":"chatcmpl-([0-9a-f]+)"'),
    "responses": re.compile(rb'"id":"resp_([0-9a-f]+)"'),
    "messages": re.compile(rb'"id":"msg_([0-9a-f]+)"'),
}
"""Where an answer names its run."""
SAYS = {"reasoning_content": "reasoning", "content": "text", "tool_calls": "arguments"}
LEFT_S = 20.0
MOST_CLIENTS = 128
"""Of a storm. The lowest slots are taken first."""
BEFORE = "a kill before the answer was in custody"


@dataclass
class Stock:
    """What was seen."""

    kills: int = 0
    in_flight: int = 0
    """Kills while a stream was begun and not over."""
    again: int = 0
    """Kills of a server that was starting, or going on with the answers of the one before."""
    moments: Counter[str] = field(default_factory=Counter)
    """What each answer was at when a kill came."""
    answers: Counter[str] = field(default_factory=Counter)
    before: Counter[str] = field(default_factory=Counter)
    """Requests that a kill met before their answer was in custody."""
    errors: Counter[str] = field(default_factory=Counter)
    """What these were told."""
    adopted: int = 0
    pauses: list[float] = field(default_factory=list)
    met: list[float] = field(default_factory=list)
    """How long curl got no byte around a kill. Keepalives come each 0.2 s."""
    killed_at: list[float] = field(default_factory=list)
    back_ms: list[float] = field(default_factory=list)
    sealed: int = 0
    """Runs that were given up after five deaths without progress (R7)."""
    wrong: list[str] = field(default_factory=list)

    def show(self) -> str:
        pauses, back, met = (sorted(each) or [0.0] for each in (self.pauses, self.back_ms, self.met))
        half, most = pauses[len(pauses) // 2], pauses[len(pauses) * 9 // 10]
        return (
            f"{self.kills} kills, {self.in_flight} of them in a stream in flight, {self.again} of a server that had "
            f"just begun; at a kill, answers were in {dict(self.moments)}; {self.adopted} went on in another process; "
            f"{self.answers.total()} answers ({dict(self.answers)}); "
            f"{self.before.total()} requests ended by a kill before their answer was in custody ({dict(self.before)}); "
            f"{len(self.met)} pauses of curl around a kill p50 {met[len(met) // 2]:.2f} s, max {met[-1]:.2f} s; "
            f"longest pause of an answer p50 {half:.2f} s, p90 {most:.2f} s, max {pauses[-1]:.2f} s; "
            f"server back p50 {back[len(back) // 2]:.0f} ms, max {back[-1]:.0f} ms; "
            f"{self.sealed} runs given up; {len(self.wrong)} wrong"
        )

    def add(self, other: Stock) -> None:
        """Another server's part of the same storm, or another storm."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @classmethod
    def read(cls, said: Json) -> Stock:
        """A storm that was recorded."""
        kinds = {name: type(value) for name, value in vars(cls()).items()}
        return cls(**{name: kind(said[name]) for name, kind in kinds.items()})


class Worker:
    """A process that has an SDK."""

    def __init__(self, words: list[str], log: Path, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True, bufsize=1
            )
        self._jobs: dict[str, Future[Json]] = {}
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            seen = json.loads(line)
            seen["raw"] = seen["raw"].encode()
            self._jobs.pop(seen["id"]).set_result(seen)

    def do(self, job: Json) -> Json:
        done: Future[Json] = Future()
        self._jobs[job["id"]] = done
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        try:
            return done.result(self._deadline_s)
        except TimeoutError:
            return {"text": "", "error": "no end within the deadline", "begun": True, "whole": False, "pause": 0.0}

    def stop(self) -> None:
        self._process.kill()
        self._reading.join()
        self._process.__exit__(None, None, None)  # it closes the pipes and waits


class Curl:
    """curl, one process for each request."""

    def __init__(self, server: Server, deadline_s: float) -> None:
        self._server, self._deadline_s = server, deadline_s

    def do(self, job: Json) -> Json:
        kind, asked, said = job["way"], job["asked"], [{"role": "user", "content": job["asked"]}]
        if kind == "run":
            return self._run(job)
        path, body = {
            "chat": ("/v1/chat/completions", {"model": "m", "stream": True, "messages": said}),
            "chat-stored": ("/v1/chat/completions", {"model": "m", "stream": True, "store": True, "messages": said}),
            "chat-unstored": ("/v1/chat/completions", {"model": "m", "stream": True, "store": False, "messages": said}),
            "responses": ("/v1/responses", {"stream": True, "store": True, "input": asked}),
            "messages": ("/v1/messages", {"model": "m", "max_tokens": 4000, "stream": True, "messages": said}),
            "wait-chat": ("/v1/chat/completions", {"model": "m", "messages": said}),
            "wait-responses": ("/v1/responses", {"store": True, "input": asked}),
        }[kind]
        return self._curl(path, json.dumps(body))

    def _run(self, job: Json) -> Json:
        """POST, which is tried again by its key, then a stream of events."""
        made: Any = None
        body, key = {"input": job["asked"]}, {"idempotency-key": job["id"]}
        deadline = time.monotonic() + self._deadline_s
        while made is None and time.monotonic() < deadline:
            with suppress(Exception):
                made = self._server.client.post("/v1/runs", body, key).json()
        return self._curl(f"/v1/runs/{made['run_id']}/events", None)

    def _curl(self, path: str, body: str | None) -> Json:
        words = ["curl", "-sS", "-N", "--max-time", str(self._deadline_s), self._server.url + path]
        words += ["-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json"]
        words += ["-w", "%{stderr}connections=%{num_connects} status=%{http_code}"]
        if body is not None:
            words += ["-d", body]
        data, gaps, last = b"", [], 0.0
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            while piece := os.read(process.stdout.fileno(), 1 << 20):
                now = time.monotonic()
                if data:
                    gaps.append((last, now))
                data, last = data + piece, now
            said = process.stderr.read().decode()
            code = process.wait()
        error = "" if code == 0 and "connections=1 status=200" in said else f"curl {code}: {said}"
        pause = max((end - begin for begin, end in gaps), default=0.0)
        seen = {"raw": data, "error": error, "begun": bool(data), "whole": not error, "pause": pause}
        return {**seen, "path": path, "gaps": gaps}


class StockStorm:
    """One server, killed again and again under stock clients."""

    def __init__(self, server: Server, upstream: Upstream, folder: Path, weather: Weather, database: str) -> None:
        """`database`: that of the store, where it is PostgreSQL."""
        node, deadline_s = weather.node, weather.deadline_s
        self._server, self._upstream, self._folder, self._database = server, upstream, folder, database
        self._clients: dict[str, tuple[Any, tuple[str, ...]]] = {
            "curl": (Curl(server, deadline_s), CURL),
            "python": (
                Worker([sys.executable, "-m", "tests.supervisor.sdk_client"], folder / "python.log", deadline_s),
                PYTHON,
            ),
        }
        if node:
            program = str(ROOT / "tests/supervisor/sdk_client.mjs")
            self._clients["node"] = (Worker(["node", program, node], folder / "node.log", deadline_s), NODE)
        every = [(client, way) for client, (_, ways) in self._clients.items() for way in ways]
        self.ways = [each for each in every if "-".join(each) in weather.only or not weather.only]
        self._count = 0
        self._active: dict[str, str] = {}
        self.verdict = Stock()
        self._script: dict[tuple[str, str], str] = {}
        self._shape: dict[tuple[str, str], list[Any]] = {}
        for job, seen in self._all(self.ways):
            client, way = job["client"], job["way"]
            assert seen["whole"], (job, seen)
            self._script[client, way] = self._text(job, seen)
            assert "".join(f"tok{n} " for n in range(TOKENS)) in self._script[client, way], (job, seen)
            self._shape[client, way] = shape(seen["raw"]) if (client, way) in UNNUMBERED else []

    # load

    def _job(self, client: str, way: str) -> Json:
        self._count += 1
        name = f"stock-{self._count:06d}."
        effects = self._folder / f"{name}effects"
        call = json.dumps({"command": f"echo once >> {effects}; sleep 0.3"})
        asked = f"{name} [[tools=terminal:{call}]] [[reason=6]] [[tokens={TOKENS} pace=0.02 evenly]]"
        return {"id": name, "client": client, "way": way, "asked": asked, "base": self._server.url, "key": KEY}

    def _seen(self, job: Json) -> Json:
        self._active[job["id"]] = job["way"]
        try:
            return dict(self._clients[job["client"]][0].do(job))
        finally:
            del self._active[job["id"]]

    def _all(self, ways: list[tuple[str, str]]) -> list[tuple[Json, Json]]:
        """Each of these ways once, at the same time."""
        jobs = [self._job(*each) for each in ways]
        with ThreadPoolExecutor(len(jobs)) as threads:
            return list(zip(jobs, threads.map(self._seen, jobs), strict=True))

    def batch(self, streams: int, kills: int, chance: random.Random) -> None:
        """So many kills, while so many clients ask without a break. Then all is judged."""
        stop = threading.Event()
        seen: list[tuple[Json, Json]] = []

        def ask(number: int) -> None:
            own = random.Random(chance.random() + number)
            while not stop.is_set():
                job = self._job(*own.choice(self.ways))
                seen.append((job, self._seen(job)))

        askers = [threading.Thread(target=ask, args=(number,)) for number in range(streams)]
        for asker in askers:
            asker.start()
        try:
            for _ in range(kills):
                self._kill(chance)
        finally:
            stop.set()
            for asker in askers:
                asker.join()
        told = Counter[str]()
        for request in self._upstream.get("/_requests").json():
            told.update(set(re.findall(r"stock-\d+\.", json.dumps(request["messages"]))))
        self._upstream.post("/_reset")
        self._calm(seen, told)
        journal = self._journal([(job, what) for job, what in seen if what["whole"]])
        for job, what in seen:
            self._judge(job, what, told[job["id"]], journal)
        log = self._server.log()
        self.verdict.adopted, self.verdict.sealed = log.count('"client_adopted"'), log.count('"run_sealed"')

    def _calm(self, seen: list[tuple[Json, Json]], told: Counter[str]) -> None:
        """An answer that no kill meets, by each kind of client. Nothing may be kept of it when it is over: neither
        bytes of its model calls, nor a note about its client."""
        first = dict(reversed(self.ways))
        made, over = self._all(list(first.items())), time.monotonic() + LEFT_S
        for job, what in made:
            told[job["id"]] = 2
            run = run_of(job, what)
            while left := [each for each in kept_by(self._server.process.pid) if run and run in each]:
                if time.monotonic() > over:
                    self.verdict.wrong.append(f"{job['id']} calm: it is over and still kept: {left}")
                    break
                time.sleep(0.05)
        seen += made

    def _journal(self, seen: list[tuple[Json, Json]]) -> Runs:
        """The runs of these answers."""
        wanted = {run_of(job, what) for job, what in seen}
        if self._database:
            return runs_in_postgres(self._database, wanted)
        return runs_in_sqlite(self._server.data, wanted)

    # kills

    def _kill(self, chance: random.Random) -> None:
        if chance.random() < 0.9:
            wait_until(self._has_spare, "a spare", 60)
        time.sleep(chance.uniform(0.0, 0.4))
        verdict, old = self.verdict, server_pid(self._server)
        self._count_moments()
        began = time.monotonic()
        verdict.killed_at.append(began)
        signal_process(old, signal.SIGKILL)
        verdict.kills += 1
        if chance.random() < 0.25:  # again, while the next server starts or goes on with the answers
            time.sleep(chance.uniform(0.0, 0.2))
            for each in servers(self._server.process.pid):
                if each != old:
                    self._count_moments()
                    verdict.killed_at.append(time.monotonic())
                    signal_process(each, signal.SIGKILL)
                    verdict.kills += 1
                    verdict.again += 1
                    break
        wait_until(lambda: self._serves(old), "the next server", 60)
        verdict.back_ms.append((time.monotonic() - began) * 1000)

    def _count_moments(self) -> None:
        """Note what the answers are at. Call it right before a kill."""
        found = {each["asked"].split(" ")[0]: SAYS[each["says"]] for each in self._upstream.get("/_now").json()}
        begun = 0
        for name, way in list(self._active.items()):
            tool = "tool" if (self._folder / f"{name}effects").exists() else "between"
            moment = found.get(name, tool)
            self.verdict.moments[moment] += 1
            begun += moment != "between" and way in STREAMS
        self.verdict.in_flight += begun > 0

    def _has_spare(self) -> bool:
        """A child besides the server sleeps: it has its imports behind it."""
        own = server_pid(self._server)
        spares = [each for each in servers(self._server.process.pid) if each != own]
        for _ in range(4):
            for spare in spares:
                with suppress(OSError):
                    if Path(f"/proc/{spare}/stat").read_text().rpartition(")")[2].split()[0] != "S":
                        return False
            time.sleep(0.01)
        return bool(spares)

    def _serves(self, old: int) -> bool:
        with suppress(OSError, ValueError):
            pid = status(self._server)["server"]
            return pid != old and pid in children(self._server.process.pid)
        return False

    # verdict

    def _judge(self, job: Json, seen: Json, asked: int, journal: Runs) -> None:
        verdict, name = self.verdict, f"{job['client']}-{job['way']}"
        effects = self._folder / f"{job['id']}effects"
        lines = len(effects.read_text().splitlines()) if effects.exists() else 0
        effects.unlink(missing_ok=True)
        if not seen["begun"] and seen["error"]:
            verdict.before[name] += 1
            verdict.errors[seen["error"][:120]] += 1
            if asked > 2 or lines > 1:
                verdict.wrong.append(f"{job['id']} {name}: {BEFORE}, and work was repeated ({asked}, {lines})")
            return
        verdict.answers[name] += 1
        verdict.pauses.append(seen["pause"])
        if job["way"] in STREAMS:
            at, gaps = verdict.killed_at, seen.get("gaps", ())
            verdict.met += [end - begin for begin, end in gaps if bisect(at, begin) < bisect(at, end)]
        how = job["client"], job["way"]
        found = {
            "it was cut": seen["whole"],
            "its text is another": not seen["whole"] or self._text(job, seen) == self._script[how],
            "its bytes are not those of its journal": not seen["whole"] or is_rendered(job, seen, journal),
            f"its events are others{self._differing(how, seen)}": not seen["whole"] or not self._differing(how, seen),
            "the model was asked again": asked == 2,
            "the tool ran twice": lines <= 1,
        }
        for what, right in found.items():
            if not right:
                verdict.wrong.append(f"{job['id']} {name}: {what}: {str(seen)[-700:]} asked={asked}")

    def _text(self, job: Json, seen: Json) -> str:
        if job["way"] == "wait":
            return str(seen["text"])
        try:
            text = TEXTS[job["way"]](seen["raw"])
            assert seen.get("text", text) == text, "the SDK read another text"
            return text
        except (AssertionError, ValueError, LookupError) as error:
            return f"not a whole answer: {error!r}"

    def _differing(self, how: tuple[str, str], seen: Json) -> str:
        """The first event that is not that of an answer that nobody disturbed."""
        right = self._shape[how]
        found = shape(seen["raw"]) if right and seen["whole"] else right
        pairs = zip_longest(found, right)
        return next((f" ({one} in place of {other})" for one, other in pairs if one != other), "")

    def stop(self) -> None:
        for client, _ in self._clients.values():
            if isinstance(client, Worker):
                client.stop()


def without_keepalives(raw: bytes) -> bytes:
    return raw.replace(KEEPALIVE, b"")


def run_of(job: Json, seen: Json) -> str:
    """The run of an answer; empty where it does not say it."""
    dialect = DIALECT[job["way"]]
    if dialect == "runs":
        return str(seen["path"].split("/")[3].removeprefix("run_"))
    found = RUN[dialect].search(seen["raw"])
    return found[1].decode() if found is not None else ""


def is_rendered(job: Json, seen: Json, journal: Runs) -> bool:
    """Are the bytes of an answer those which the package makes of the journal of its run?"""
    entries = journal.get(run_of(job, seen))
    if entries is None:
        return False
    render = stream_of if job["way"] in STREAMS else body_of
    return render(DIALECT[job["way"]], entries) == without_keepalives(seen["raw"])


def servers(supervisor: int) -> list[int]:
    """The children of a supervisor that are servers or spares (forked.py has others)."""
    found = []
    for pid in children(supervisor):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() != SOURCE:
                found.append(pid)
    return found


def kept_by(supervisor: int) -> list[str]:
    """What a supervisor keeps: the names of model calls, and the notes about clients that are being answered."""
    found: list[str] = []
    for path in Path(f"/proc/{supervisor}/fd").iterdir():
        with suppress(OSError):
            if (kind := path.readlink().name).startswith("memfd:"):
                fd = os.open(path, os.O_RDONLY)
                found += kept_calls(fd) if "answers" in kind else kept_clients(fd) if "clients" in kind else []
                os.close(fd)
    return found


def kept_calls(fd: int) -> list[str]:
    _, _, length = calls._HEAD.unpack(os.pread(fd, calls._HEAD.size, 0))
    return [os.pread(fd, length, calls._HEAD.size).decode()] if length else []


def kept_clients(fd: int) -> list[str]:
    found = []
    for at in range(0, MOST_CLIENTS * custody.SLOT_BYTES, custody.SLOT_BYTES):
        _, length, *_ = custody._HEAD.unpack(os.pread(fd, custody._HEAD.size, at + 8))
        if length:
            found.append(os.pread(fd, length, at + custody._NOTE_AT).decode())
    return found


def events(raw: bytes) -> list[Any]:
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


VARIES = re.compile(
    rb'((?:chatcmpl|msg|call)[-_])[0-9a-f]+|(?<=stock-)[0-9]+|(?<="created":)[0-9]+|(?<="input_tokens":)[0-9]+'
)
PIECES = ("content", "reasoning_content", "text", "thinking", "partial_json")


def shape(raw: bytes) -> list[Any]:
    """The events of a chat or of messages without what differs between two runs: ids, times, status lines, what became
    of a tool that a kill met, and where a text was divided into pieces."""
    merged: list[Any] = []
    for event in events(VARIES.sub(lambda found: (found[1] or b"") + b"0", without_keepalives(raw))):
        if (
            event.get("event", {}).get("type") == "status"
            or event.get("content_block", {}).get("type") == "mcp_tool_result"
        ):
            continue
        delta = event["choices"][0]["delta"] if event.get("choices") else event.get("delta", {})
        said = {key: delta.pop(key) for key in PIECES if isinstance(delta.get(key), str)}
        if said and merged and merged[-1][0] == event and merged[-1][1].keys() == said.keys():
            merged[-1][1] = {key: merged[-1][1][key] + text for key, text in said.items()}
        else:
            merged.append([event, said])
    return merged


def _chat(raw: bytes) -> str:
    assert raw.endswith(b"data: [DONE]\n\n")
    choices = [event["choices"][0] for event in events(raw) if event.get("choices")]
    return "".join(each["delta"].get("content") or "" for each in choices)


def _responses(raw: bytes) -> str:
    seen = events(raw)
    assert [each["sequence_number"] for each in seen] == list(range(len(seen))), "its numbers have gaps"
    return "".join(each["delta"] for each in seen if each["type"] == "response.output_text.delta")


def _messages(raw: bytes) -> str:
    deltas = [event["delta"] for event in events(raw) if event["type"] == "content_block_delta"]
    assert events(raw)[-1]["type"] == "message_stop"
    return "".join(delta.get("text", "") for delta in deltas)


def _runs(raw: bytes) -> str:
    return "".join(event.get("delta", "") for event in events(raw) if event["event"] == "message.delta")


TEXTS: dict[str, Callable[[bytes], str]] = {
    "chat": _chat,
    "chat-stored": _chat,
    "chat-unstored": _chat,
    "responses": _responses,
    "messages": _messages,
    "run": _runs,
    "wait-chat": lambda raw: str(json.loads(raw)["choices"][0]["message"]["content"]),
    "wait-responses": lambda raw: str(json.loads(raw)["output"][-1]["content"][0]["text"]),
}


@dataclass(frozen=True)
class Weather:
    """What a storm is like. It ends early where so much is wrong. `bug`: a planted one. `node`: the folder of the npm
    package openai."""

    kills: int
    seed: int = 1
    streams: int = 10
    node: str = ""
    bug: str = ""
    only: tuple[str, ...] = ()
    """The ways of asking, such as curl-chat. Empty: all."""
    most_wrong: int = 20
    postgres: bool = False
    minutes: float = 600.0
    deadline_s: float = 120.0
    """How long a client waits for the end of its answer."""
    forked: bool = False
    """A spare is a fork in place of a new program: a kill costs a third (forked.py)."""


MAKING_DATABASE = threading.Lock()


def storm(folder: Path, weather: Weather) -> Stock:
    """A storm."""
    upstream = start_upstream(folder / "upstream")
    with MAKING_DATABASE:
        database = asyncio.run(pg.server().database()) if weather.postgres else ""
    settings = {
        "NINELIVES_STORE_URL": database,
        "NINELIVES_SERVER_KEEP_CALLS": "true",
        "NINELIVES_SERVER_KEEP_CLIENTS": "true",
        "NINELIVES_LIMITS_KEEPALIVE_S": "0.2",  # some in every tool
    }
    planted = ",".join(filter(None, ("keeps_delivered", "forked" * weather.forked, weather.bug)))
    server = start_supervised(folder, upstream.url, planted, **settings)
    chance = random.Random(weather.seed)
    made: StockStorm | None = None
    try:
        made = StockStorm(server, upstream, folder, weather, database)
        over = time.monotonic() + weather.minutes * 60
        while (
            made.verdict.kills < weather.kills
            and len(made.verdict.wrong) < weather.most_wrong
            and time.monotonic() < over
        ):
            made.batch(weather.streams, min(BATCH, weather.kills - made.verdict.kills), chance)
            sys.stderr.write("\n".join((made.verdict.show(), *made.verdict.wrong[-3:])) + "\n")
    finally:
        if made is not None:
            made.stop()
        server.stop()
        upstream.process.stop()
    return made.verdict


def show_sum(path: Path) -> None:
    """Print the sum of recorded storms: of all, and of each kind."""
    kinds: dict[str, Stock] = {}
    for line in path.read_text().splitlines():
        said = json.loads(line)
        given, storm = said["given"], Stock.read(said)
        store = "PostgreSQL" if given["postgres"] else "SQLite"
        kind = f"{store}, spares are {'forks' if given['forked'] else 'programs'}"
        for name in ("all", kind, f"commit {said['commit'][:7]}"):
            kinds.setdefault(name, Stock()).add(storm)
    for name, sum_ in kinds.items():
        print(f"{name}: {sum_.show()}\n")
    raise SystemExit(any(each.wrong for each in kinds.values()))


def main() -> None:
    """Kill, print, and end with 1 where something was wrong."""
    options = argparse.ArgumentParser(prog="tests.supervisor.stock_clients")
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--streams", type=int, default=10)
    options.add_argument("--servers", type=int, default=2, help="so many are killed at the same time, each by itself")
    options.add_argument("--node", default="", help="folder of the npm package openai")
    options.add_argument("--bug", default="")
    options.add_argument("--postgres", action="store_true", help="the store is PostgreSQL")
    options.add_argument("--minutes", type=float, default=600.0, help="no batch of kills begins after so long")
    options.add_argument("--only", default="", help="ways of asking, such as curl-chat,node-chat")
    options.add_argument("--forked", action="store_true", help="a spare is a fork: a kill costs a third")
    options.add_argument("--log", help="where the log of the server is left")
    options.add_argument(
        "--record", type=Path, help="a file to which a line of JSON is added: the storm and its verdict"
    )
    options.add_argument("--sum", type=Path, help="kill nothing: add up such a file")
    given = options.parse_args()
    if given.sum:
        return show_sum(given.sum)
    only, each = tuple(filter(None, given.only.split(","))), -(-given.kills // given.servers)
    verdict = Stock()
    with tempfile.TemporaryDirectory(prefix="stock-clients-") as folder, ThreadPoolExecutor() as servers:
        storms: list[Future[Stock]] = []
        for number in range(given.servers):
            own = Path(folder) / str(number)
            own.mkdir()
            weather = Weather(
                kills=each,
                seed=given.seed + number,
                streams=given.streams,
                node=given.node,
                bug=given.bug,
                only=only,
                postgres=given.postgres,
                minutes=given.minutes,
                forked=given.forked,
            )
            storms.append(servers.submit(storm, own, weather))
        wait(storms)
        try:
            for made in storms:
                verdict.add(made.result())
        finally:
            if given.log:
                for log in Path(folder).glob("*/server.err"):
                    shutil.copy(log, f"{given.log}.{log.parent.name}")
    if given.record:
        words = {name: value for name, value in vars(given).items() if isinstance(value, str | int | float | bool)}
        commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        with given.record.open("a") as file:
            file.write(json.dumps({"given": words, "commit": commit.stdout.strip(), **vars(verdict)}) + "\n")
    print(verdict.show(), *verdict.wrong[:20], sep="\n")
    print(*verdict.errors.most_common(12), sep="\n")
    print(Counter(each.split(": ", 2)[1] for each in verdict.wrong))
    raise SystemExit(bool(verdict.wrong))


if __name__ == "__main__":
    main()
