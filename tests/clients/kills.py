"""kill -9 in mid-answer, as real clients see it (B6, B8, G13). Owns: a server as its user starts it, which dies after
it ran one tool and said three words, and is started again on the same port and data directory; what each client does
then, and what must come of it: one run, one line from the tool, the whole answer. Refuses to know: any client."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients import install, matrix
from tests.clients.matrix import Client
from tests.clients.proxy import CountingProxy
from tests.clients.script import JOB_S, Script, command, started
from tests.story.server import KEY, Upstream, start_stock, start_upstream, wait_until

MODEL, TOKENS = "hermes-agent", 20
ONCE = '[[tools=terminal:{"command":"echo x >> once.txt"}]] [[hang=3 times=1 at=1]]' + f" [[tokens={TOKENS}]]"
"""One tool, then a text that hangs after three words the first time."""
BEGINNING = "Step 0: calling terminal. "
LAST = "".join(f"tok{n} " for n in range(TOKENS)) + "done after 1 results"
ROUNDS = 3
"""Requests to the model: the call, the text that hung, the text again. A second run would ask for the call again."""
RETRIES = 20
"""Of the SDKs. Their own two are over after about two seconds, and a server may take as long to start."""
ASKED_S = 90.0
ENDED = ("completed", "failed", "cancelled", "incomplete")
MID, FIRST = "in mid-answer", "before the first byte"
ITSELF, USER = "the client", "its user"
WHOLE, REPEATED = "whole", "whole, after the part that broke off"


@dataclass(frozen=True)
class Killed:
    """One client and one way of asking: when the server dies, and what must come of it."""

    client: Client
    way: str
    when: str
    again: str
    """Who asks again."""
    did: str
    """What the client does; for the table."""
    retries: int | None = None
    answer: str = WHOLE
    runs: int = 1
    rounds: int = ROUNDS
    gap: str = ""
    """What is not yet as it should be, where that is known."""


@dataclass(frozen=True)
class Death:
    """One row of the table. `result`: ok, gap (known, and not yet as it should be), fail, skip."""

    client: str
    version: str
    way: str
    when: str
    result: str
    again: str = ""
    lines: int = 0
    runs: int = 0
    answer: str = ""
    did: str = ""
    why: str = ""
    seconds: float = 0.0


class House:
    """One server after another on one port and one data directory."""

    def __init__(self, where: Path, upstream: Upstream) -> None:
        self._where, self._upstream = where, upstream
        self.server = start_stock(where, upstream.url)
        self.runs: set[str] = set()
        """All that were ever listed: some are forgotten when they were delivered."""

    def restart(self) -> None:
        self.server = start_stock(self._where, self._upstream.url, at=self.server.port)

    def look(self) -> list[dict[str, Any]]:
        """The runs that are listed now."""
        found = list(self.server.client.get("/v1/runs?limit=100").json()["data"])
        self.runs |= {run["run_id"] for run in found}
        return found

    def left(self) -> list[str]:
        """The runs that do not end, although there is time enough."""

        def active() -> list[str]:
            return [run["run_id"] for run in self.look() if run["status"] not in ENDED]

        with suppress(AssertionError):
            wait_until(lambda: not active(), "every run ends", every=0.1)
        return active()

    def lines(self) -> int:
        """How often the tool ran."""
        return sum(len(path.read_text().split()) for path in self.server.data.rglob("once.txt"))

    def has_said(self, run: str, word: str) -> None:
        """Read a run until it says a word."""
        text = ""
        with self.server.client.stream(f"/v1/runs/{run}/events") as stream:
            for frame in stream:
                text += frame.data.get("delta") or ""
                if word in text:
                    return
        raise AssertionError(f"the run ended with {text!r}")


@contextmanager
def house(where: Path, upstream: Upstream) -> Iterator[House]:
    made = House(where, upstream)
    try:
        yield made
    finally:
        made.server.kill()  # a run may hang: a stop would wait for it


def answer_of(seen: dict[str, Any]) -> str:
    """What the client's user has in the end, however its lines are broken. Where the client makes a whole response out
    of a stream, that must have the answer once."""
    text, final = (" ".join(words.split()) for words in (seen["text"], seen["more"].get("final", LAST)))
    if seen["error"] or not final.endswith(LAST):
        return ""
    if text.endswith(BEGINNING + LAST):
        return WHOLE
    return REPEATED if text.endswith(LAST) and BEGINNING in text else ""


def complaints(case: Killed, lines: int, runs: int, rounds: int, answer: str, ran: list[str]) -> list[str]:
    """What is not as it must be."""
    wanted = (
        ("lines of the tool", lines, 1),
        ("runs", runs, case.runs),
        ("model calls", rounds, case.rounds),
        ("answer", answer or "not whole", case.answer),
        ("tools that the client ran", ran, []),
    )
    return [f"{name}: {got}, not {must}" for name, got, must in wanted if got != must]


def _until_it_hangs(on: House, upstream: Upstream, mark: str, waiting: Future[Any]) -> None:
    """Wait until the tool has run and the text hangs."""

    def asked() -> bool:
        assert not waiting.done(), f"the client ended before the kill: {waiting.result()}"
        return len(upstream.asked(mark)) == 2

    wait_until(asked, "the text is asked for", ASKED_S, 0.05)
    (run,) = on.look()
    on.has_said(run["run_id"], "tok2")
    assert on.lines() == 1, "the tool ran before the kill"


def _killed(on: House, upstream: Upstream, script: Script, job: dict[str, Any], proxy: CountingProxy) -> Any:
    """What the client saw of an answer in which the server died."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(script.ask, job)
        try:
            _until_it_hangs(on, upstream, job["lane"], waiting)
        finally:
            on.server.kill()
            proxy.hold = False
        on.restart()
        deadline = time.monotonic() + JOB_S
        while not waiting.done() and time.monotonic() < deadline:
            on.look()
            wait_for([waiting], 0.1)
        return waiting.result(JOB_S)


def _gave_up(seen: dict[str, Any] | str) -> str:
    """Why a client's user does not have an answer; empty where he has one."""
    if isinstance(seen, str):
        return seen
    if seen["error"]:
        return f"{seen['error']['kind']}: {seen['error']['message']}"
    return "" if answer_of(seen) else f"it showed {seen['text'][-200:]!r} as if that were all"


def die(case: Killed, version: str, where: Path, upstream: Upstream, script: Script) -> Death:
    """One kill, and the verdict."""
    began = time.monotonic()
    lane = "-".join(f"{case.client.name} {case.way} {case.when}".replace(".", "-").split())
    row = (case.client.name, version, case.way, case.when)
    upstream.post("/_reset")
    with house(where / lane, upstream) as on, CountingProxy(on.server.port, hold=True) as proxy:
        job = {
            **{"base": proxy.base(lane) if case.when == FIRST else on.server.url, "key": KEY, "model": MODEL},
            **{"lane": lane, "headers": {}, "way": case.way, "case": "kill", "prompt": f"({lane}) {ONCE}"},
            **{"where": str(where)},
            **({} if case.retries is None else {"retries": case.retries}),
        }
        try:
            seen = _killed(on, upstream, script, job, proxy)
        except AssertionError as error:
            return Death(*row, "fail", why=str(error))
        by, why = ITSELF, _gave_up(seen)
        if why:
            by, seen = USER, script.ask(job)
        if isinstance(seen, str):
            return Death(*row, "fail", by, why=f"{why}; asked again: {seen}")
        left = on.left()
        lines, runs, answer = on.lines(), len(on.runs), answer_of(seen)
        wrong = complaints(case, lines, runs, len(upstream.asked(lane)), answer, seen["ran"])
        if left:
            wrong.append(f"runs without an end: {left}")
        if by != case.again:
            wrong.append(f"asked again by {by}, not by {case.again}: {why}")
        if wrong:
            wrong.append(f"it showed {seen['text'][-300:]!r}, {seen['error']}")
        result = "fail" if wrong else "gap" if case.gap else "ok"
        told, took = "; ".join(wrong) or case.gap, round(time.monotonic() - began, 1)
        return Death(*row, result, by, lines, runs, answer, case.did, told, took)


def _client(name: str) -> Client:
    return next(client for client in matrix.CLIENTS if client.name == name)


PI = Client("pi", "pi", "@mariozechner/pi-coding-agent", "pi_py.py", ())
OPENCODE = Client("opencode", "opencode", "opencode-ai", "opencode_py.py", ())
AIDER = Client("aider", "aider", "aider-chat", "aider_py.py", ())
CLAUDE = Client("Claude Code", "claude", "@anthropic-ai/claude-code", "claude_py.py", ())


def _sdk(name: str, *bases: str) -> Iterator[Killed]:
    """An SDK asks again as long as it has no answer's beginning. An answer that begins and breaks off is an error."""
    client, count = _client(name), f"retries (its limit set to {RETRIES})"
    for base in bases:
        shown = REPEATED if base == "responses" else WHOLE
        yield Killed(client, base, MID, ITSELF, count, RETRIES)
        yield Killed(client, f"{base}.stream", FIRST, ITSELF, count, RETRIES, shown)
        yield Killed(client, f"{base}.stream", MID, USER, "gives up with an error", RETRIES, shown)


def _commands() -> Iterator[Killed]:
    """Commands ask again by themselves."""
    for when in (FIRST, MID):
        yield Killed(_client("Codex CLI"), "responses.stream", when, ITSELF, "reconnects")
        for base in ("chat", "responses", "messages"):
            yield Killed(PI, f"{base}.stream", when, ITSELF, "retries")
            shown = REPEATED if base == "responses" else WHOLE
            yield Killed(OPENCODE, f"{base}.stream", when, ITSELF, "retries", answer=shown)
        yield Killed(AIDER, "chat.stream", when, ITSELF, "retries")
    yield Killed(AIDER, "chat", MID, ITSELF, "retries")
    yield Killed(CLAUDE, "messages.stream", FIRST, ITSELF, "retries")
    yield Killed(CLAUDE, "messages.stream", MID, ITSELF, "sends back what it got and asks to resume from there")


KILLED: tuple[Killed, ...] = (
    *_sdk("openai-python", "chat", "responses"),
    *_sdk("openai-node", "chat", "responses"),
    *_sdk("anthropic-python", "messages"),
    *_sdk("anthropic-node", "messages"),
    *_commands(),
)


def run(client: Client, cases: list[Killed], version: str, where: Path) -> list[Death]:
    """All kills of one client, one after the other, with a model of its own."""
    if shutil.which("bwrap") is None:
        why = "bubblewrap is missing: without it a server offers no terminal by default"
        print(f"\n!!! {client.name}: KILLS ARE SKIPPED: {why}\n", file=sys.stderr, flush=True)
        return [Death(client.name, version, "", "", "skip", why=why)]
    where.mkdir(parents=True)
    upstream = start_upstream(where / "upstream")
    try:
        with started(command(client), where / "home") as script:
            return [die(case, version, where, upstream, script) for case in cases]
    finally:
        upstream.process.stop()


def run_all(cases: list[Killed], missing: dict[str, str], where: Path, jobs: int) -> list[Death]:
    """All kills of all clients that are there; those that are not are told."""
    clients = list(dict.fromkeys(case.client for case in cases))

    def one(client: Client) -> list[Death]:
        if client.place in missing:
            return [Death(client.name, "-", "", "", "skip", why=missing[client.place])]
        version = install.version_of(client.place, client.package)
        mine = [case for case in cases if case.client == client]
        found = run(client, mine, version, where / client.name.replace(" ", "-"))
        counts = {result: sum(death.result == result for death in found) for result in ("ok", "gap", "fail", "skip")}
        print(f"{client.name}, killed: {counts}", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return [death for found in pool.map(one, clients) for death in found]
