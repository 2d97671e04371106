"""python -m tests.hostile.leaks: thousands of short runs and aborted streams against one server. Owns: the load, and
what must come back: memory (its slope is printed), descriptors, threads and objects that the collector tracks. Exit
code 1 where one of the last three grows with the number of runs. Refuses to know: why something stays."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from tests.hostile.counted import FILE
from tests.story.server import KEY, Server, start_server, start_upstream, wait_until

CHAT = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
AT_ONCE = 16
SETTLE_S = 60.0
PER_RUN, NOISE = 0.1, 60
"""Objects of a type that are no leak: for each run, and in any case. One object that stays for each run is 1."""
CALM_S = 1.0

BRIEF = {
    "NINELIVES_STORE_RETENTION_S": "1",
    "NINELIVES_STORE_MAX_RESPONSES": "500",
    "NINELIVES_AGENT_RESEND_WINDOW_S": "3",
    "NINELIVES_AGENT_RESEND_ANONYMOUS_S": "3",
}
"""What is kept on purpose is bounded early: stored runs, and runs that wait for their caller to come back."""


@dataclass(frozen=True)
class Sample:
    """The server at rest, after so many runs."""

    runs: int
    rss_mb: float
    fds: int
    threads: int
    objects: Mapping[str, int]

    @property
    def tracked(self) -> int:
        return sum(self.objects.values())


class Rested:
    """A server whose objects can be counted."""

    def __init__(self, where: Path, **settings: str) -> None:
        self._file = where / "counted.json"
        self.upstream = start_upstream(where / "upstream")
        own = {FILE: str(self._file), **BRIEF, **settings}
        self.server: Server = start_server(where / "server", self.upstream.url, program="tests.hostile.counted", **own)
        self.runs = 0

    def close(self) -> int:
        """Stop both. Returns the exit code of the server."""
        try:
            return self.server.stop()
        finally:
            self.upstream.process.stop()

    def sample(self, like: Sample | None = None) -> Sample:
        """Count when everything has come to rest: no run is active, and timers and tasks of the last runs have ended.
        `like`: wait for as few descriptors and objects as there were then."""
        wait_until(lambda: not self.server.health()["runs"]["active"], "the runs to end", SETTLE_S)
        deadline = time.monotonic() + SETTLE_S
        taken, before = self._taken(), None
        while time.monotonic() < deadline and not _rested(taken, before if like is None else like):
            time.sleep(CALM_S)
            taken, before = self._taken(), taken
        return taken

    def _taken(self) -> Sample:
        server = self.server
        return Sample(self.runs, server.rss_kb() / 1024, server.fds(), server.threads(), self._counted())

    def _counted(self) -> dict[str, int]:
        self._file.unlink(missing_ok=True)
        self.server.process.child.send_signal(signal.SIGUSR1)
        wait_until(self._file.exists, "the count", SETTLE_S)
        return dict(json.loads(self._file.read_text())["objects"])

    def load(self, count: int, one: Callable[[HTTPConnection], None]) -> None:
        """The same `count` times, from a few clients. A client keeps its connection where it can."""

        def client(number: int) -> None:
            line = HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            for _ in range(number):
                one(line)
            line.close()

        shares = [count // AT_ONCE + (n < count % AT_ONCE) for n in range(AT_ONCE)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(client, shares))
        self.runs += count


def _rested(now: Sample, like: Sample | None) -> bool:
    return like is not None and now.fds <= like.fds and now.tracked <= like.tracked + NOISE


def body(text: str, **more: object) -> bytes:
    return json.dumps({"model": "hermes-agent", "messages": [{"role": "user", "content": text}], **more}).encode()


SHORT = body("hi")
STREAM = body("[[tokens=200 pace=0.02]]", stream=True)


def short_run(line: HTTPConnection) -> None:
    """A chat, from request to answer."""
    line.request("POST", CHAT, SHORT, HEADERS)
    answer = line.getresponse()
    assert (answer.status, len(answer.read()) > 100) == (200, True)


def aborted_stream(line: HTTPConnection) -> None:
    """A stream whose caller leaves after its first bytes."""
    line.request("POST", CHAT, STREAM, HEADERS)
    answer = line.getresponse()
    assert answer.status == 200 and answer.read1(64)
    answer.close()
    line.close()


def slope(samples: list[Sample]) -> float:
    """MB for 10,000 runs, by least squares over the second half."""
    late = samples[len(samples) // 2 :]
    if len(late) < 2:
        return 0.0
    mean_x = sum(each.runs for each in late) / len(late)
    mean_y = sum(each.rss_mb for each in late) / len(late)
    below = sum((each.runs - mean_x) ** 2 for each in late)
    return 10_000 * sum((each.runs - mean_x) * (each.rss_mb - mean_y) for each in late) / below


def grown(before: Sample, after: Sample) -> dict[str, int]:
    """Types of which there is more than noise."""
    runs = after.runs - before.runs
    more = {name: count - before.objects.get(name, 0) for name, count in after.objects.items()}
    return {name: count for name, count in more.items() if count > max(NOISE, PER_RUN * runs)}


def faults(before: Sample, after: Sample) -> list[str]:
    """What did not come back between two samples at rest."""
    found = [f"{name}: {count} more" for name, count in grown(before, after).items()]
    found += [f"descriptors: {before.fds} before, {after.fds} after"] if after.fds > before.fds else []
    return found + ([f"threads: {before.threads}, {after.threads}"] if after.threads > before.threads else [])


def told(sample: Sample) -> str:
    return (
        f"{sample.runs:6} runs  rss {sample.rss_mb:6.1f} MB  fds {sample.fds:3}  threads {sample.threads:3}  "
        f"objects {sample.tracked}"
    )


def main(argv: list[str]) -> int:
    """Print samples and what grew. Returns the exit code."""
    options = argparse.ArgumentParser(prog="python -m tests.hostile.leaks", description=__doc__)
    options.add_argument("--runs", type=int, default=20_000)
    options.add_argument("--aborted", type=int, default=2_000)
    options.add_argument("--samples", type=int, default=10)
    given = options.parse_args(argv)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ninelives-leaks-") as folder:
        rested = Rested(Path(folder))
        for name, count, one in (("runs", given.runs, short_run), ("aborted streams", given.aborted, aborted_stream)):
            began = time.monotonic()
            rested.load(max(count // given.samples, AT_ONCE * 2), one)
            samples = [rested.sample()]
            for _ in range(given.samples - 1):
                rested.load(count // given.samples, one)
                samples.append(rested.sample(samples[0]))
                print(told(samples[-1]), flush=True)
            found = faults(samples[0], samples[-1])
            print(
                f"{count} {name} in {time.monotonic() - began:.0f} s: {slope(samples):+.2f} MB for 10,000",
                *found,
                sep="\n  ",
            )
            wrong += found
        wrong += [f"exit code {code}"] if (code := rested.close()) else []
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
