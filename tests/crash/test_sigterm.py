"""SIGTERM (A9, P10). One shutdown with twenty runs, a stuck tool and a stuck reader is made once, and
each rule is a test over what was seen; the rest of the file ends servers in other ways."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ninelives.drill.checks import ENDS, Evidence, calls_of, frames_of, judge, payload
from ninelives.drill.loads import Load, terminal
from ninelives.drill.processes import Server, launch_clean
from ninelives.drill.rig import Rig
from ninelives.drill.wire import KEY, Exchange, all_done, get, post, until, until_shown

pytestmark = pytest.mark.xdist_group("processes")
DRAIN_S = 2.0
CHAT = "/v1/chat/completions"


@dataclass
class Seen:
    """All that the one big shutdown showed."""

    refused: Exchange
    waiting: Exchange
    ephemeral: dict[str, Exchange]
    loads: dict[str, list[Load]]
    cut: list[Exchange]
    code: int = -1
    seconds: float = 0.0
    evidence: dict[str, Evidence] = field(default_factory=dict)
    """After the restart, by tag."""


def loads() -> dict[str, list[Load]]:
    """Twenty runs in all states that matter."""
    tools = "|".join(terminal(0.7) for _ in range(3))
    texts = {
        "text": (8, "[[tokens=45 pace=0.02]]"),
        "long": (4, "[[tokens=170 pace=0.02]]"),
        "tool": (7, f"[[tools={tools}]]"),
        "stuck": (1, f"[[tools={terminal(60)}]]"),
    }
    return {
        name: [Load(f"load-{name}-{n}", "responses", f"load-{name}-{n} {text}") for n in range(count)]
        for name, (count, text) in texts.items()
    }


class Client(Exchange):
    """A load's exchange, kept."""

    def __init__(self, port: int, load: Load) -> None:
        super().__init__(port, "POST", "/v1/responses", {"input": load.text, "stream": True}, Idempotency_Key=load.tag)


async def shut_down(folder: Path) -> Seen:
    """Load, SIGTERM in the middle, and what comes of it."""
    settings = {"NINELIVES_LIMITS_DRAIN_S": str(DRAIN_S), "NINELIVES_AGENT_STORE_FALSE": "memory"}
    async with Rig(folder, 9, **settings) as rig:
        port, kinds = rig.server.port, loads()
        clients = {load.tag: Client(port, load) for group in kinds.values() for load in group}
        text = "[[tokens=170 pace=0.02]]"
        waiting = Exchange(port, "POST", "/v1/responses", {"input": f"load-waiting {text}"}, Idempotency_Key="waiting")
        chat = {"messages": [{"role": "user", "content": text}], "stream": True, "store": False}
        ephemeral = {
            "chat": Exchange(port, "POST", CHAT, chat),
            "responses": Exchange(port, "POST", "/v1/responses", {"input": text, "stream": True, "store": False}),
        }
        tasks = [asyncio.create_task(one.run()) for one in (*clients.values(), waiting, *ephemeral.values())]
        busy = [clients[load.tag] for name in ("text", "long") for load in kinds[name]]
        await until(lambda: all(b".delta" in client.data for client in busy), what="text on every stream")
        brief = list(ephemeral.values())
        await until(lambda: all(client.data.count(b"data:") > 3 for client in brief), what="ephemeral text")
        await until(lambda: rig.lines() >= 8, what="eight tools at work")
        with closing(stuck_reader(port)):
            began = time.monotonic()
            rig.server.signal(signal.SIGTERM)
            refused = await refusal(port)
            seen = Seen(refused, waiting, ephemeral, kinds, list(clients.values()))
            seen.code, seen.seconds = await rig.server.gone(), time.monotonic() - began
        await all_done(tasks)
        await after(rig, seen, clients)
        return seen


async def refusal(port: int) -> Exchange:
    """What new work is answered while the server drains."""
    await until_shown(port, "/health/detailed", lambda shown: shown["status"] == "draining")
    return await post(port, "/v1/responses", {"input": "load-new"})


def stuck_reader(port: int) -> socket.socket:
    """A client that asks for two megabytes and never reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    body = b'{"input": "load-big [[big=2000000]]", "stream": true}'
    head = f"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock


async def after(rig: Rig, seen: Seen, clients: dict[str, Client]) -> None:
    """Restart on the same data directory, wait for the end of every run, gather the evidence."""
    rig.server = await rig.start()
    for load in [load for group in seen.loads.values() for load in group]:
        load.learn(clients[load.tag])
        rig.loads.append(load)
    waiting = Load("waiting", "responses", "")
    await rig.find(waiting)
    assert not await rig.ended([*rig.loads, waiting]), [str(finding) for finding in rig.tally.found]
    rig.take_asks()
    for load in (*rig.loads, waiting):
        seen.evidence[load.tag] = await rig.evidence(load, all_places=False)
    rig.loads = []


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(shut_down(tmp_path_factory.mktemp("sigterm")))


def test_A9_new_work_is_refused_with_503_and_retry_after_while_draining(seen: Seen) -> None:
    assert seen.refused.status == 503
    assert int(seen.refused.headers["retry-after"]) > 0
    assert seen.refused.json()["error"]["code"] == "shutting_down"


def test_P10_the_exit_code_is_0(seen: Seen) -> None:
    assert seen.code == 0


def test_P10_neither_a_stuck_tool_nor_a_stuck_reader_holds_the_exit(seen: Seen) -> None:
    assert DRAIN_S <= seen.seconds < DRAIN_S + 10.0, f"it took {seen.seconds:.1f} s"


def test_A9_streams_of_stored_runs_are_cut_without_an_end(seen: Seen) -> None:
    for client in seen.cut:
        assert client.status == 200 and client.data
        assert not client.whole, "a final HTTP chunk was sent"
        kinds = {payload(frame).get("type") for frame in frames_of(client.data)}
        assert b"[DONE]" not in client.data and not kinds & set(ENDS["responses"])


def test_A9_a_caller_that_waits_for_a_stored_run_is_cut_without_an_answer(seen: Seen) -> None:
    assert (seen.waiting.status, seen.waiting.data) == (0, b"")
    assert seen.evidence["waiting"].status == "completed"


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_A9_an_ephemeral_stream_ends_with_an_error_frame(seen: Seen, dialect: str) -> None:
    exchange = seen.ephemeral[dialect]
    frames = [payload(frame) for frame in frames_of(exchange.data)]
    if dialect == "chat":
        assert frames[-1]["error"]["code"] == "shutting_down" and b"[DONE]" not in exchange.data
    else:
        assert [frame["type"] for frame in frames if frame][-1] == "response.failed"
        assert "shutting_down" in frames[-2]["response"]["error"]["message"]
    assert exchange.whole


def test_P10_after_the_restart_every_run_goes_on_to_its_end_and_P1_to_P5_hold(seen: Seen) -> None:
    assert {evidence.status for evidence in seen.evidence.values()} == {"completed"}
    wrong = [finding for evidence in seen.evidence.values() for finding in judge(evidence)]
    assert not wrong, "\n".join(str(finding) for finding in wrong)


def test_A9_a_message_that_was_streaming_finishes_and_is_not_asked_for_again(seen: Seen) -> None:
    for load in seen.loads["text"]:
        evidence = seen.evidence[load.tag]
        assert len(evidence.asks) == 1
        assert b"message.dropped" not in evidence.replay["runs"]


def test_A9_a_tool_in_flight_finishes_and_no_step_is_repeated(seen: Seen) -> None:
    for load in seen.loads["tool"]:
        evidence = seen.evidence[load.tag]
        assert [call.outcome for call in calls_of(evidence.replay["runs"]).values()] == ["known"] * 3
        assert sorted(evidence.effects.values()) == [1, 1, 1]
        assert len(evidence.asks) == 4, "one ask for each of the three calls and one for the answer"


def test_A9_what_does_not_finish_in_the_drain_is_told_as_unknown_or_drafted_anew(seen: Seen) -> None:
    (stuck,) = seen.loads["stuck"]
    evidence = seen.evidence[stuck.tag]
    assert [call.outcome for call in calls_of(evidence.replay["runs"]).values()] == ["unknown"]
    assert sum(evidence.effects.values()) == 1
    for load in seen.loads["long"]:
        assert len(seen.evidence[load.tag].asks) == 2


@asynccontextmanager
async def serving(folder: Path, drain_s: float) -> AsyncIterator[Server]:
    """A server of its own."""
    async with Rig(folder, 0, NINELIVES_LIMITS_DRAIN_S=str(drain_s)) as rig:
        yield rig.server


async def test_P10_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, 10) as server:
        assert (await get(server.port, "/health")).status == 200
        server.signal(signal.SIGTERM)
        assert await server.gone(8.0) == 0, "it waited for the drain although nothing was running"


async def test_A9_a_server_with_a_drain_notice_answers_new_connections_so_long(tmp_path: Path) -> None:
    """Those who send requests hear of the stop a while after it has begun (Kubernetes)."""
    async with Rig(tmp_path, 0, NINELIVES_LIMITS_DRAIN_NOTICE_S="1.5") as rig:
        server = rig.server
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        refused = await refusal(server.port)
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        ready = await get(server.port, "/readyz")
        assert (ready.status, ready.headers["connection"], ready.json()["status"]) == (503, "close", "draining")
        assert await server.gone(20.0) == 0
        assert time.monotonic() - began >= 1.5, "nothing ran, and it did not wait"


async def test_P10_a_second_SIGTERM_ends_it_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    async with Rig(tmp_path, 2, NINELIVES_LIMITS_DRAIN_S="20") as rig:
        load = Load("load-twice", "responses", f"load-twice [[tools={terminal(60)}|{terminal(0)}]]")
        client = asyncio.create_task(load.begin(rig.server.port))
        await until(lambda: rig.lines() == 1, what="the first effect")
        rig.server.signal(signal.SIGTERM)
        assert (await refusal(rig.server.port)).status == 503
        rig.server.signal(signal.SIGTERM)
        await rig.server.gone(10.0)  # neither the tool (60 s) nor the drain (20 s) is waited for
        await client
        rig.loads = [load]
        await rig.recover_and_judge()
        assert not rig.tally.found and rig.tally.runs == 1, rig.tally


async def test_promise_10_a_second_server_on_the_same_data_directory_is_refused_and_says_who_holds_it(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, 2) as first:
        second = await Server.spawn(tmp_path, 1, launch_clean())
        assert await second.gone() not in (0, None)
        said = second.errors.read_text()
        assert f"in use by another ninelives (pid {first.pid})" in said and "Traceback" not in said
        assert (await get(first.port, "/health")).status == 200
