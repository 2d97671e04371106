"""python -m tests.supervisor.one_call: kills the server at random moments while runs stream (server.keep_calls). Owns:
the load, the kills and the verdict: every run completes, each message is asked of the model once, its text is the
upstream's script, numbers are dense, and each tool ran once. Refuses to know: how calls are kept."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.story.server import Server, Upstream, start_supervised, start_upstream, wait_until
from tests.supervisor.test_supervisor import kill_server

TOKENS = 70


@dataclass
class Verdict:
    """What was seen."""

    kills: int = 0
    in_flight: int = 0
    runs: int = 0
    kept: int = 0
    back_ms: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def show(self) -> str:
        back = sorted(self.back_ms)
        p50 = back[len(back) // 2] if back else 0
        return (
            f"{self.kills} kills, {self.in_flight} of them in a run; {self.runs} runs; {self.kept} attempts "
            f"went on with a kept call; server back p50 {p50:.0f} ms, max {max(back, default=0):.0f} ms; "
            f"{len(self.wrong)} wrong"
        )


class Storm:
    """One server, killed again and again under load."""

    def __init__(self, server: Server, upstream: Upstream, folder: Path, seed: int) -> None:
        self._server, self._upstream, self._folder = server, upstream, folder
        self._chance = random.Random(seed)
        self._count = 0
        self.verdict = Verdict()
        calm, response = self._begin()
        wait_until(lambda: self._status(response) == "completed", "a run without a kill", 60)
        self._script = _text(self._events(response))
        """What every run says: the upstream's script, as a run without a kill shows it."""
        assert f"tok{TOKENS - 1} " in self._script and calm

    def round(self, runs: int, kills: int) -> None:
        """Some runs, some kills while they stream, and what became of each."""
        made = [self._begin() for _ in range(runs)]
        for _ in range(kills):
            time.sleep(self._chance.uniform(0.02, 1.0))
            active = [tag for tag, response in made if self._status(response) in ("queued", "in_progress")]
            began = time.monotonic()
            kill_server(self._server)
            self.verdict.back_ms.append((time.monotonic() - began) * 1000)
            self.verdict.kills += 1
            self.verdict.in_flight += bool(active)
        for tag, response in made:
            self._judge(tag, response)

    def gated_round(self, runs: int) -> None:
        """Some runs, and a kill whose place does not depend on the clock: all words before a call were shown, and the
        model goes on only after the kill."""
        made = [self._begin("[[callgate]]") for _ in range(runs)]
        for _, response in made:
            with self._server.client.stream(f"/v1/responses/{response}?stream=true") as stream:
                assert any(frame.data.get("delta", "").endswith("terminal. ") for frame in stream)
        kill_server(self._server)
        self.verdict.kills += 1
        self.verdict.in_flight += 1
        self._upstream.post("/_go")
        for tag, response in made:
            self._judge(tag, response)

    def _begin(self, more: str = "") -> tuple[str, str]:
        self._count += 1
        tag = f"storm-{self._count}."
        effects = self._folder / f"{tag}effects"
        arguments = json.dumps({"command": f"echo once >> {effects}; sleep 0.2"})
        call = f"[[tools=terminal:{arguments}]]"
        asked = f"{tag} {call} [[reason=8]] [[tokens={TOKENS} pace=0.02]] {more}"
        body = {"input": asked, "background": True, "store": True}
        return tag, str(self._server.client.post("/v1/responses", body).json()["id"])

    def _status(self, response: str) -> str:
        return str(self._server.client.get(f"/v1/responses/{response}").json()["status"])

    def _events(self, response: str) -> list[Any]:
        stream = self._server.client.stream(f"/v1/responses/{response}?stream=true")
        seen = [frame.data for frame in stream.rest()]
        stream.leave()
        return seen

    def _judge(self, tag: str, response: str) -> None:
        verdict = self.verdict
        wait_until(lambda: self._status(response) not in ("queued", "in_progress"), f"{tag} to end", 120)
        shown: Any = self._server.client.get(f"/v1/responses/{response}").json()
        run = response.removeprefix("resp_")
        receipt: Any = self._server.client.get(f"/v1/runs/run_{run}/receipt").json()
        seen = self._events(response)
        effects = self._folder / f"{tag}effects"
        lines = len(effects.read_text().splitlines()) if effects.exists() else 0
        found = {
            "did not complete": shown["status"] == "completed",
            "its text is another": _text(seen) == self._script,
            "its numbers have gaps": [each["sequence_number"] for each in seen] == list(range(len(seen))),
            "the model was asked again": len(self._upstream.asked(tag)) == 2,
            "the tool ran twice": lines <= 1,
            "a draft was dropped": receipt["drafts_dropped"] == 0,
        }
        verdict.runs += 1
        verdict.kept += sum(bool(each.get("kept_model_call")) for each in receipt["attempts"])
        verdict.wrong += [f"{tag} {response}: {what}" for what, right in found.items() if not right]


def _text(seen: list[Any]) -> str:
    return "".join(each["delta"] for each in seen if each["type"] == "response.output_text.delta")


def main() -> None:
    """Kill, print, and end with 1 where something was wrong."""
    options = argparse.ArgumentParser(prog="tests.supervisor.one_call")
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="one-call-") as folder:
        verdict = storm(Path(folder), given.kills, given.seed)
    print(verdict.show(), *verdict.wrong[:20], sep="\n")
    print(Counter(each.split(": ", 1)[1] for each in verdict.wrong))
    raise SystemExit(bool(verdict.wrong))


def storm(folder: Path, kills: int, seed: int, bug: str = "", most_wrong: int = 20, *, gated: bool = False) -> Verdict:
    """A storm of so many kills. It ends early where so much is wrong. `bug`: a planted one. `gated`: the first kill
    comes while two models write."""
    upstream = start_upstream(folder / "upstream")
    server = start_supervised(folder, upstream.url, bug, NINELIVES_SERVER_KEEP_CALLS="true")
    made = Storm(server, upstream, folder, seed)
    chance = random.Random(seed)
    try:
        if gated:
            made.gated_round(2)
        while made.verdict.kills < kills and len(made.verdict.wrong) < most_wrong:
            made.round(chance.randint(1, 4), min(chance.choice((1, 1, 2)), kills - made.verdict.kills))
    finally:
        server.stop()
        upstream.process.stop()
    return made.verdict


if __name__ == "__main__":
    main()
