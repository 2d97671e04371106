"""A shortage of the machine never fails a journaled run: it is parked, and goes on when there is room."""

from __future__ import annotations

import json
import resource
import socket
from contextlib import closing
from pathlib import Path

from tests.story.responses import PATH, finished
from tests.story.server import Server, Upstream, start_server, wait_until

FILES = 160
PATIENCE_S = 60.0
SLOW = 'slow [[tokens=40 pace=0.05 tools=terminal:{"command":"echo done"}]]'


def parked(server: Server) -> set[str]:
    """The runs that were parked by a shortage."""
    lines = [json.loads(line) for line in server.log().splitlines() if '"run_parked"' in line]
    return {line["run"] for line in lines}


def test_a_server_whose_descriptors_are_used_up_fails_no_stored_run(tmp_path: Path, upstream: Upstream) -> None:
    """Idle connections take what they may, then the limit is lowered below what is open: nothing can be opened."""
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_IDLE_S="600")
    pid, client = server.process.pid, server.client
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    try:
        slow = client.post(PATH, {"input": SLOW, "background": True}).json()["id"]
        with closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)) as sock:
            # The request is sent on a connection that is open already, and its run needs a new one to the upstream.
            wait_until(lambda: upstream.asked("slow"), "the first run has the only connection", PATIENCE_S)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
            text = b'{"input":"hello","background":true}'
            head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {client._headers['authorization']}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
            sock.sendall(head.encode() + text)
            wait_until(lambda: len(parked(server)) == 2, "both are parked: no connection, no tool", PATIENCE_S)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        runs = wait_until(lambda: _two(client.get("/v1/runs?limit=10").json()["data"]), "both runs", PATIENCE_S)
        for run in runs:
            wait_until(lambda run=run: client.get(f"/v1/runs/{run}").json()["status"] == "completed", run, PATIENCE_S)
        assert "done" in json.dumps(finished(client, slow)["output"]), "its tool ran"
        assert server.anonymous.get("/livez").status == 200
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert server.stop() == 0


def _two(runs: list[dict[str, str]]) -> list[str] | None:
    return [run["run_id"] for run in runs] if len(runs) == 2 else None


def test_many_idle_connections_leave_room_for_runs_and_for_new_clients(tmp_path: Path, upstream: Upstream) -> None:
    program = "tests.story.few_files"
    server = start_server(
        tmp_path, upstream.url, program=program, NINELIVES_LIMITS_IDLE_S="600", NINELIVES_LIMITS_CONCURRENT_RUNS="8"
    )
    idle = []
    try:
        for _ in range(2 * FILES):
            idle.append(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S))
        runs = [
            server.client.post(PATH, {"input": f'[[tools=terminal:{{"command":"echo {n}"}}]]', "background": True})
            for n in range(8)
        ]
        for answer in runs:
            assert answer.status == 200
            assert finished(server.client, answer.json()["id"])["status"] == "completed"
        assert server.anonymous.get("/livez").status == 200
    finally:
        for sock in idle:
            sock.close()
        assert server.stop() == 0
