"""A process that is stopped, starved or besieged (P8, P9, P12, P19), and clients that do not behave."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ninelives.drill.checks import judge
from ninelives.drill.loads import Load, terminal
from ninelives.drill.rig import Rig
from ninelives.drill.wire import KEY, Exchange, get, until, until_shown

SLOW = "[[tokens=60 pace=0.02]]"


async def judged(rig: Rig, load: Load) -> None:
    assert not await rig.ended([load])
    rig.take_asks()
    evidence = await rig.evidence(load, all_places=False)
    assert judge(evidence) == [] and evidence.status == "completed"


@pytest.mark.parametrize("seconds", [1.5, pytest.param(20.0, marks=pytest.mark.long)])
async def test_a_process_that_is_stopped_and_goes_on_loses_nothing(tmp_path: Path, seconds: float) -> None:
    """20 s is longer than a lease: on one machine nobody else can have taken the run."""
    async with Rig(tmp_path, 1) as rig:
        load = Load("load-1-a", "responses", f"load-1-a [[tools={terminal(0.1)}]] {SLOW}")
        reading = asyncio.create_task(load.begin(rig.server.port))
        await until(rig.lines, what="the first tool")
        rig.server.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        rig.server.signal(signal.SIGCONT)
        await asyncio.wait_for(reading, 60)
        await judged(rig, load)
        assert rig.lines() == 1


FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


@pytest.mark.skipif(FAKETIME is None, reason="NOT TESTED: libfaketime is not installed (apt-get install libfaketime)")
async def test_P12_a_clock_that_jumps_a_day_forth_and_back_changes_nothing(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    environ = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NINELIVES_STORE_MAX_DAYS": "0.5",
        "NINELIVES_STORE_RETENTION_S": "0.1",
    }
    async with Rig(tmp_path / "rig", 1, **environ) as rig:
        before = Load("load-0-a", "responses", "load-0-a [[tokens=3]]")
        await before.begin(rig.server.port)
        load = Load("load-1-a", "responses", f"load-1-a [[tools={terminal(0.1)}]] {SLOW}")
        reading = asyncio.create_task(load.begin(rig.server.port))
        await until(rig.lines, what="the first tool")
        for jump in ("+1d", "-1d", "+0"):
            clock.write_text(jump)
            await asyncio.sleep(0.4)
        await asyncio.wait_for(reading, 60)
        await judged(rig, load)
        await judged(rig, before)  # nothing expired by a clock that was wrong for a moment


async def test_out_of_file_descriptors_the_server_waits_and_answers_again(tmp_path: Path) -> None:
    limit = [
        sys.executable,
        "-c",
        "import os,resource,sys;resource.setrlimit(resource.RLIMIT_NOFILE,(64,64));os.execv(sys.argv[1],sys.argv[1:])",
    ]
    async with Rig(tmp_path, 1) as rig:
        await rig.server.kill()
        rig.server = await rig.start(*limit)
        sockets = []
        for _ in range(100):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", rig.server.port))
            sockets.append(sock)
        await asyncio.sleep(1.0)
        assert rig.server.code is None
        for sock in sockets:
            sock.close()
        async with asyncio.timeout(60):
            while (await get(rig.server.port, "/health")).status != 200:  # noqa: ASYNC110 (in another process)
                await asyncio.sleep(0.05)
        load = Load("load-1-a", "responses", "load-1-a [[tokens=5]]")
        await load.begin(rig.server.port)
        await judged(rig, load)


async def test_slowloris_is_closed_and_does_not_keep_others_out(tmp_path: Path) -> None:
    async with Rig(tmp_path, 1, NINELIVES_LIMITS_HEAD_S="1") as rig:
        lines = [await asyncio.open_connection("127.0.0.1", rig.server.port) for _ in range(200)]
        for _, writer in lines:
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
            """Bytes now and then; how much was answered."""
            try:
                while not reader.at_eof():
                    writer.write(b"x")
                    await asyncio.wait_for(reader.read(1), 0.2)
            except (TimeoutError, ConnectionError):
                if not reader.at_eof() and not writer.is_closing():
                    return await drip(reader, writer)
            return 0

        dripping = [asyncio.create_task(drip(*line)) for line in lines]
        assert (await get(rig.server.port, "/health")).status == 200
        await asyncio.wait_for(asyncio.gather(*dripping), 60)
        for _, writer in lines:
            writer.close()


async def readers_of(rig: Rig, readers: int, runs: int) -> None:
    """Many idle readers on a few runs that hang: all get the end."""
    loads = [Load(f"load-{n}-a", "responses", f"load-{n}-a [[hang=1]]") for n in range(runs)]
    for load in loads:
        asked = Exchange(rig.server.port, "POST", "/v1/responses", {"input": load.text, "background": True})
        load.id = (await asked.run()).json()["id"]
    exchanges = [
        Exchange(rig.server.port, "GET", f"/v1/responses/{loads[n % runs].id}?stream=true") for n in range(readers)
    ]
    before = rss(rig)
    waiting = []
    for start in range(0, readers, 200):
        part = exchanges[start : start + 200]
        waiting += [asyncio.create_task(exchange.run(300)) for exchange in part]
        await asyncio.gather(*(asyncio.wait_for(exchange.began.wait(), 60) for exchange in part))
    print(f"{readers} readers: {(rss(rig) - before) / readers:.1f} KiB each, {rss(rig) // 1024} MiB in all")
    assert (await get(rig.server.port, "/health")).status == 200
    for load in loads:
        await Exchange(rig.server.port, "POST", f"/v1/responses/{load.id}/cancel").run()
    await asyncio.wait_for(asyncio.gather(*waiting), 300)
    assert all(b"response.incomplete" in exchange.data and exchange.whole for exchange in exchanges)
    await until_shown(rig.server.port, "/health/detailed", lambda shown: shown["readers"] == 0)


def rss(rig: Rig) -> int:
    status = Path(f"/proc/{rig.server.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


async def test_P19_a_thousand_idle_readers_on_ten_runs_all_get_the_end(tmp_path: Path) -> None:
    async with Rig(tmp_path, 1) as rig:
        await readers_of(rig, 1000, 10)


@pytest.mark.long
async def test_P19_ten_thousand_idle_readers_on_a_hundred_runs_all_get_the_end(tmp_path: Path) -> None:
    async with Rig(tmp_path, 1) as rig:
        await readers_of(rig, 10_000, 100)


def netns(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT TESTED, no network of its own here: {done.stderr.strip()}")


CLIENT = """
import socket, time
body = b'{{"input": "[[hang=1]]", "stream": true}}'
head = b"POST /v1/responses HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {key}\\r\\n"
head += b"Content-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
line = socket.create_connection(("10.213.7.1", {port}))
line.sendall(head + body)
line.recv(10)
print("on", flush=True)
time.sleep(60)
"""


def lines_to(address: str) -> int:
    """How many connections to an address the kernel still has."""
    there = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    return sum(there in line for line in Path("/proc/net/tcp").read_text().splitlines())


@pytest.mark.skipif(shutil.which("ip") is None or os.getuid() != 0, reason="NOT TESTED: needs root and iproute2")
async def test_P9_a_half_open_client_is_noticed_within_two_keepalives(tmp_path: Path) -> None:
    """A client in a network of its own, whose cable is pulled: no FIN ever comes."""
    name = f"hf{os.getpid() % 100000}"
    netns("netns", "add", name)
    try:
        netns("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        netns("addr", "add", "10.213.7.1/30", "dev", f"{name}a")
        netns("link", "set", f"{name}a", "up")
        for args in (("addr", "add", "10.213.7.2/30", "dev", f"{name}b"), ("link", "set", f"{name}b", "up")):
            netns("-n", name, *args)
        environ = {"NINELIVES_SERVER_HOST": "10.213.7.1", "NINELIVES_SERVER_ALLOW_REMOTE": "true"}
        environ["NINELIVES_LIMITS_KEEPALIVE_S"] = "1"
        async with Rig(tmp_path, 1) as rig:
            await rig.server.kill()
            rig.environ = environ
            rig.server = await rig.start(waits=False)
            line = await rig.server.line()
            port = int(line.rsplit(":", 1)[1])
            code = CLIENT.format(port=port, key=KEY)
            client = await asyncio.create_subprocess_exec(
                "ip", "netns", "exec", name, sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
            )
            try:
                assert client.stdout is not None
                assert await asyncio.wait_for(client.stdout.readline(), 60) == b"on\n"
                assert lines_to("10.213.7.2") == 1
                netns("-n", name, "link", "set", f"{name}b", "down")
                await until(lambda: not lines_to("10.213.7.2"), 20, "the server lets go of the socket")
            finally:
                client.kill()
                await client.wait()
    finally:
        await asyncio.to_thread(subprocess.run, ["ip", "netns", "del", name], check=False)
