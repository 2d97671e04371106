"""What a command puts where the server writes in a workspace blocks nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.server import Server, Upstream, start_server, wait_until

RESPONSES = "/v1/responses"
OUTPUTS = ".ninelives/outputs"
FILE = f'"{OUTPUTS}/$NINELIVES_CALL_ID.txt"'
SOCKET = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
LONG = "head -c 50000 /dev/zero | tr '\\0' x"
TRAPS = {
    "a pipe": f"mkdir -p {OUTPUTS} && mkfifo {FILE}",
    "a socket": f"mkdir -p {OUTPUTS} && cd {OUTPUTS} && python3 -c '{SOCKET}' $NINELIVES_CALL_ID.txt && cd ../..",
    "a folder": f"mkdir -p {FILE}",
    "a link": f"mkdir -p {OUTPUTS} && ln -s ../../victim {FILE}",
    "a link to a pipe": f"mkdir -p {OUTPUTS} && mkfifo pipe && ln -s ../../pipe {FILE}",
    "a pipe for the folder": "rm -rf .ninelives && mkdir .ninelives && mkfifo .ninelives/outputs",
    "a link for the folder": "rm -rf .ninelives && mkdir .ninelives && ln -s / .ninelives/outputs",
    "a pipe for the top folder": "rm -rf .ninelives && mkfifo .ninelives",
}


@pytest.fixture
def server(tmp_path: Path, upstream: Upstream) -> Iterator[Server]:
    started = start_server(tmp_path / "server", upstream.url)
    yield started
    if started.process.child.poll() is None:
        started.kill()


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_at_the_path_of_a_long_output_blocks_a_run_or_the_stop(server: Server, trap: str) -> None:
    command = f"echo keep > victim; {TRAPS[trap]} && {LONG}"
    call = f"terminal:{json.dumps({'command': command})}"
    ids = [
        server.client.post(RESPONSES, {"input": f"{n} [[tools={call}]]", "background": True}).json()["id"]
        for n in range(6)
    ]
    for n in range(3):
        reader = json.dumps({"path": "victim"})
        body = {"input": f"innocent {n} [[tools=terminal:{json.dumps({'command': 'echo ok'})}|read_file:{reader}]]"}
        assert server.client.post(RESPONSES, body).json()["status"] == "completed"

    def statuses() -> list[str]:
        return [server.client.get(f"{RESPONSES}/{each}").json()["status"] for each in ids]

    wait_until(lambda: set(statuses()) == {"completed"}, "the runs with a trap end too", 60.0, 0.1)
    (workspace,) = [each for each in (server.data / "workspaces").iterdir() if each.is_dir()]
    assert (workspace / "victim").read_text() == "keep\n", "no link is followed"
    assert server.stop() == 0
