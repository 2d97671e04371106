"""Slots, the queue and the stall deadline: what waits is told so, what is too much is refused with a time to come back,
and a reader that owns its run holds it up for so long only (A8, C2, C8, P8)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.story import chat
from tests.story.responses import HANGS, PATH, check_whole, create, finished, get, started
from tests.story.server import KEY, Client, Server, Upstream, start_server, wait_until

pytestmark = pytest.mark.xdist_group("processes")

SETTINGS = {
    "NINELIVES_LIMITS_CONCURRENT_RUNS": "2",
    "NINELIVES_LIMITS_QUEUE": "2",
    "NINELIVES_LIMITS_STALL_S": "0.7",
    "NINELIVES_LIMITS_LEAVE_GRACE_S": "0.2",
    "NINELIVES_AGENT_STORE_FALSE": "memory",
}


@pytest.fixture
def full(client: Client, server: Server) -> Iterator[list[str]]:
    """Both slots are taken by runs that do not end by themselves."""
    busy = [started(client, f"{n} {HANGS}") for n in range(2)]
    yield busy
    for run in client.get("/v1/runs?limit=100").json()["data"]:
        if run["status"] in ("queued", "running"):
            client.post(f"/v1/runs/{run['run_id']}/stop")
    wait_until(lambda: server.health()["runs"] == {"active": 0, "queued": 0}, "all is quiet")


def waiting(client: Client, text: str, **fields: object) -> str:
    """A run that has to wait."""
    answer = client.post(PATH, {"input": text, "background": True, **fields})
    assert answer.json()["status"] == "queued", answer.body
    return str(answer.json()["id"])


def test_a8_runs_wait_in_the_queue_and_begin_when_a_slot_is_free(
    client: Client, server: Server, upstream: Upstream, full: list[str], mark: str
) -> None:
    first, second = (waiting(client, f"{mark} hello {n}") for n in range(2))
    assert server.health()["runs"] == {"active": 2, "queued": 2}
    assert get(client, first)["status"] == "queued" and not upstream.asked(mark)
    with client.stream(f"{PATH}/{first}?stream=true") as stream:
        opening = stream.next()
        assert opening is not None and opening.data["response"]["status"] == "queued"
        client.post(f"{PATH}/{full[0]}/cancel")
        assert check_whole([opening, *stream.rest()])["status"] == "completed"
    assert finished(client, second)["status"] == "completed"


def test_a8_past_the_queue_is_429_with_a_time_to_come_back_and_leaves_no_trace(
    client: Client, upstream: Upstream, full: list[str], mark: str
) -> None:
    for n in range(2):
        waiting(client, f"hello {n}")
    headers = {"idempotency-key": mark}
    for path, body in [
        (PATH, {"input": mark}),
        (PATH, {"input": mark, "store": False}),
        (PATH, {"input": mark, "stream": True}),
        (chat.PATH, chat.ask(mark)),
        (chat.PATH, chat.ask(mark, stream=True)),
        ("/v1/runs", {"input": mark}),
    ]:
        for more in ({}, headers if "store" not in body else {}):
            answer = client.post(path, body, more)
            assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1, path
            assert answer.error()["code"] == "too_many_runs"
    assert client.get(f"/v1/runs?idempotency_key={mark}").json()["data"] == []
    assert not upstream.asked(mark)


def test_a8_a_known_key_is_answered_even_when_all_is_full(client: Client, mark: str, request: object) -> None:
    headers = {"idempotency-key": mark}
    known = create(client, "hello", headers)
    busy = [started(client, f"{n} {HANGS}") for n in range(2)]
    queued = [waiting(client, f"hello {n}") for n in range(2)]
    assert create(client, "hello", headers) == known
    for shown in [*queued, *busy]:
        client.post(f"{PATH}/{shown}/cancel")


@pytest.mark.parametrize("way", ["cancel", "delete", "stop"])
def test_c8_a_run_that_waits_can_be_ended_at_once(
    client: Client, upstream: Upstream, full: list[str], mark: str, way: str
) -> None:
    shown = waiting(client, mark, conversation=mark)
    if way == "delete":
        assert client.delete(f"{PATH}/{shown}").status == 200
        assert client.get(f"{PATH}/{shown}").status == 404
    elif way == "cancel":
        assert client.post(f"{PATH}/{shown}/cancel").json()["status"] == "cancelled"
    else:
        assert client.post(f"/v1/runs/{shown}/stop").status == 200
        assert get(client, shown)["status"] == "cancelled"
    for busy in full:
        client.post(f"{PATH}/{busy}/cancel")
    assert create(client, "next", conversation=mark)["status"] == "completed", "the conversation is free"
    assert not upstream.asked(mark)


@pytest.mark.usefixtures("full")
def test_c2_a_run_that_is_not_stored_and_waits_goes_with_its_client(
    client: Client, server: Server, upstream: Upstream, mark: str
) -> None:
    for body in ({"input": mark, "store": False, "stream": True}, {"input": mark, "store": False}):
        sock = client.left_waiting(PATH, body)
        wait_until(lambda: server.health()["runs"]["queued"] == 1, "it waits")
        sock.close()
        wait_until(lambda: server.health()["runs"]["queued"] == 0, "it is gone")
    wait_until(lambda: server.health()["runs"]["active"] == 2, "only the others are left")
    assert not upstream.asked(mark)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("stream", [True, False])
def test_c4_a_front_end_that_stops_by_leaving_ends_a_run_that_still_waits(
    client: Client, upstream: Upstream, mark: str, stream: bool
) -> None:
    headers = {"x-openwebui-chat-id": "chat-1", "idempotency-key": mark}
    sock = client.left_waiting(PATH, {"input": mark, "stream": stream}, headers)
    (run,) = wait_until(lambda: client.get(f"/v1/runs?idempotency_key={mark}").json()["data"], "the run")
    assert run["status"] == "queued"
    sock.close()
    shown = f"/v1/runs/{run['run_id']}"
    wait_until(lambda: client.get(shown).json()["status"] == "cancelled", "it is ended")
    assert not upstream.asked(mark)


def test_p8_a_reader_that_owns_its_run_and_never_reads_ends_it_after_the_stall_deadline(
    client: Client, server: Server, upstream: Upstream
) -> None:
    asked = upstream.stats()["requests"]
    body = json.dumps({"input": "[[big=4000000 messages=12]]", "store": False, "stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", client.port))
        sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: server.health()["runs"]["active"] == 1, "it runs")
        wait_until(lambda: server.health()["runs"]["active"] == 0, "it is ended")
        assert upstream.stats()["requests"] <= asked + 4, "it was held up long before its twelfth message"
    wait_until(lambda: server.health()["readers"] == 0, "nobody reads")


def test_d2_a_session_that_is_deleted_while_a_run_in_it_waits_gives_that_run_an_empty_history(
    client: Client, upstream: Upstream, full: list[str], mark: str
) -> None:
    for busy in full:
        client.post(f"{PATH}/{busy}/cancel")
    header = {"x-hermes-session-id": mark}
    assert client.post(chat.PATH, chat.ask(f"{mark} first"), header).status == 200
    again = [started(client, f"{n} {HANGS}") for n in range(2)]
    shown = client.post(PATH, {"input": f"{mark} second", "background": True}, header).json()["id"]
    assert client.delete(f"/api/sessions/{mark}").status == 200
    for busy in again:
        client.post(f"{PATH}/{busy}/cancel")
    assert finished(client, shown)["status"] == "completed"
    assert [m["content"] for m in upstream.asked(f"{mark} second")[0]["messages"]][-1:] == [f"{mark} second"]
    assert "first" not in str(upstream.asked(f"{mark} second"))


QUEUED_MB, QUEUED_BODIES = 5, 12


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        pytest.param(PATH, {"background": True}, id="background", marks=pytest.mark.long),
        pytest.param(PATH, {}, id="waits"),
        pytest.param(PATH, {"stream": True}, id="stream", marks=pytest.mark.long),
        pytest.param(chat.PATH, {"store": True}, id="chat"),
    ],
)
def test_a8_a_stored_run_that_waits_for_a_slot_keeps_only_its_id_in_memory(
    tmp_path: Path, upstream: Upstream, path: str, fields: dict[str, object]
) -> None:
    """Twelve requests of 5 MB took 120 to 300 MB; what is left is what the allocator keeps of one or two."""
    server = start_server(tmp_path, upstream.url, NINELIVES_LIMITS_CONCURRENT_RUNS="1")
    started(server.client, HANGS)
    before = resident_mb(server.process.child.pid)
    text = "word " * (QUEUED_MB * 200_000)
    body = chat.ask(text) if path == chat.PATH else {"input": text}
    with ExitStack() as lines:
        lines.callback(server.kill)
        for _ in range(QUEUED_BODIES):
            line = lines.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            line.sendall(raw_post(path, json.dumps(body | fields).encode()))
        wait_until(lambda: server.health()["runs"]["queued"] == QUEUED_BODIES, "all wait", 60.0)
        half = QUEUED_BODIES * QUEUED_MB / 2
        wait_until(lambda: resident_mb(server.process.child.pid) - before < half, f"less than {half} MB are held", 60.0)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def raw_post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    )
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
