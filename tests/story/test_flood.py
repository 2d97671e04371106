"""One owner floods the server with 200 runs; how long another one waits for the first delta (fair turns, A8)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.story import chat
from tests.story.server import Client, Server, Upstream, start_server, wait_until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("processes")]

KEYS = {name: f"{name}-key-0123456789abcdef" for name in ("greedy", "modest")}
CONFIG = "".join(f'[profiles.{name}]\nowner = "{name}"\nkey = "{key}"\n\n' for name, key in KEYS.items())
SLOW = "[[tokens=40 pace=0.05]]"
LONG = "[[tokens=600 pace=0.1]]"
TRIES, FLOOD = 20, 200


def first_delta_s(client: Client, text: str) -> float:
    """The time from the request to its first word."""
    begun = time.monotonic()
    with client.stream(chat.PATH, chat.ask(text, stream=True)) as stream:
        for frame in stream:
            if frame.data["choices"][0]["delta"].get("content"):
                took = time.monotonic() - begun
                stream.rest()
                return took
    raise AssertionError("no word came")


def p95(client: Client, name: str) -> float:
    times = sorted(first_delta_s(client, f"{name} {n} [[slowstart=0.3]]") for n in range(TRIES))
    return times[int(TRIES * 0.95) - 1]


@pytest.mark.parametrize("slots", ["default", "32"])
def test_a_flood_of_one_owner_does_not_double_the_wait_of_another(
    tmp_path: Path, upstream: Upstream, slots: str
) -> None:
    """With the default of 256 slots all runs of the flood work at once; with 32 most of them wait."""
    (tmp_path / "ninelives.toml").write_text(CONFIG)
    server: Server = start_server(
        tmp_path,
        upstream.url,
        NINELIVES_CONFIG=str(tmp_path / "ninelives.toml"),
        **({} if slots == "default" else {"NINELIVES_LIMITS_CONCURRENT_RUNS": slots}),
    )
    greedy, modest = (Client(server.port, {"authorization": f"Bearer {key}"}) for key in KEYS.values())
    try:
        idle = p95(modest, "idle")
        for n in range(FLOOD):
            text = f"flood {n} {LONG if slots == 'default' else SLOW}"
            answer = greedy.post("/v1/responses", {"input": text, "background": True})
            assert answer.status == 200, answer.body
        runs = server.health()["runs"]
        assert runs["queued"] > 100 if slots == "32" else runs["active"] > FLOOD * 0.9, runs
        busy = p95(modest, "busy")
        runs = server.health()["runs"]
        assert runs["queued"] if slots == "32" else runs["active"] > FLOOD * 0.9, "the flood lasted until the end"
        print(f"p95 to the first delta: idle {idle * 1000:.0f} ms, in a flood {busy * 1000:.0f} ms, {busy / idle:.2f}x")
        assert busy <= 2 * idle
    finally:
        server.kill()
        wait_until(lambda: server.process.child.poll() is not None, "the server is gone")
