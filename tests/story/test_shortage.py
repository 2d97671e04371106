"""A shortage of the machine never fails a journaled run: it is parked, and goes on when there is room."""

from __future__ import annotations

import json
import resource
import socket
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from tests.story.responses import PATH, finished
from tests.story.server import Server, Upstream, start_server, wait_until

FILES = 160
PATIENCE_S = 60.0
SLOW = 'slow [[callgate tools=terminal:{"command":"echo done"}]]'
"""Its call is not complete before the gate is opened."""
SLOW_RUNS = 3


def parked(server: Server) -> set[str]:
    """The runs that were parked by a shortage."""
    lines = [json.loads(line) for line in server.log().splitlines() if '"run_parked"' in line]
    return {line["run"] for line in lines}


def asked_or_parked(server: Server, upstream: Upstream, calls: int) -> bool:
    return bool(parked(server)) or len(upstream.asked("slow")) == calls


def request(authorization: str) -> bytes:
    """A slow run, as bytes."""
    text = msgspec.json.encode({"input": SLOW, "background": True})
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
    return head.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text


def test_a_server_whose_descriptors_are_used_up_fails_no_stored_run(tmp_path: Path, upstream: Upstream) -> None:
    """Idle connections take what they may, then the limit is lowered below what is open: nothing can be opened."""
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_IDLE_S="600")
    pid, client = server.process.pid, server.client
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    try:
        for _ in range(SLOW_RUNS):
            client.post(PATH, {"input": SLOW, "background": True})
        with closing(socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)) as sock:
            sock.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200"), "the server has accepted it"
            wait_until(lambda: len(upstream.asked("slow")) == SLOW_RUNS, "all are in mid-call", PATIENCE_S)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
            # A request comes on a connection that is open, and its run needs one to the upstream. The first runs
            # may find an idle one.
            for more in count(1):
                sock.sendall(request(client._headers["authorization"]))
                assert sock.recv(65536).startswith(b"HTTP/1.1 200")
                wait_until(partial(asked_or_parked, server, upstream, SLOW_RUNS + more), "its call", PATIENCE_S)
                if parked(server):
                    break
            held = len(upstream.asked("slow"))
            upstream.post("/_go", {})
            wait_until(lambda: len(parked(server)) == 1 + held, "all are parked: no tool", PATIENCE_S)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        ends = [finished(client, f"resp_{run}") for run in parked(server)]
        assert {end["status"] for end in ends} == {"completed"}
        assert all("done" in json.dumps(end["output"]) for end in ends), "their tools ran"
        assert server.anonymous.get("/livez").status == 200
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert server.stop() == 0


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
