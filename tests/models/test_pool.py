"""Rules of dialling, and of lines that wait to be used again."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ninelives.core.errors import AgentError
from ninelives.models.base import Ask
from ninelives.models.chunks import UpstreamFailed
from ninelives.models.net import connection as pools
from ninelives.models.net.connection import Pool, UpstreamConnection
from ninelives.models.openai import OpenAIModel, Upstream
from tests.models.raw import GET, OK, SOON, Peer, Raw, answers, black_hole, idle, pool_to, raw, rest, until
from tests.tools.conftest import both_loops, open_files

linux = pytest.mark.skipif(sys.platform != "linux", reason="a full backlog drops connections on Linux only")


async def asked(pool: Pool, request: bytes = GET) -> tuple[UpstreamConnection, bytes]:
    """The line on which this was asked, and the answer's body."""
    line = await pool.connection(SOON)
    line.ask(request)
    await line.head(SOON)
    return line, await rest(line)


# ---- lines that are used again ----

STAYS = {
    "HTTP/1.1": (OK, 1),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1),
    "HTTP/1.0 that stays": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 1),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 2),
    "close": (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", 2),
    "bytes after it": (OK + b"ok", 2),
    "another answer": (OK + OK, 2),
}


@both_loops
@pytest.mark.parametrize("name", STAYS)
async def test_a_line_whose_answer_was_whole_is_used_again_where_it_can_be(name: str) -> None:
    answer, connections = STAYS[name]
    async with raw(answers(answer)) as up, pool_to(up.url) as pool:
        for _ in range(2):
            line, body = await asked(pool)
            assert body == b"ok"
            pool.give_back(line)
        assert len(up.peers) == connections


@both_loops
async def test_a_line_whose_answer_was_not_read_to_its_end_is_hung_up() -> None:
    async with raw() as up, pool_to(up.url) as pool:
        line = await pool.connection(SOON)
        line.ask(GET)
        peer = await up.peer()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell")
        await line.head(SOON)
        pool.give_back(line)
        await peer.request()
        await peer.gone()
        assert await pool.connection(SOON) is not line


@both_loops
@pytest.mark.parametrize("end", [Peer.hang_up, Peer.reset, lambda peer: peer.say(OK), lambda peer: peer.say(b"?")])
async def test_an_idle_line_that_the_server_closed_or_spoke_on_is_not_used(end: Callable[[Peer], None]) -> None:
    async with raw() as up, pool_to(up.url) as pool:
        line, peer = await idle(up, pool)
        await peer.request()
        end(peer)
        await until(lambda: not line.reusable)
        assert await pool.connection(SOON) is not line


@both_loops
async def test_idle_lines_are_hung_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "KEEP_S", 0.05)
    async with raw(answers(OK)) as up, pool_to(up.url) as pool:
        for line, _ in [await asked(pool) for _ in range(3)]:
            pool.give_back(line)
        assert len(up.peers) == 3
        await asyncio.gather(*(peer.closed.wait() for peer in up.peers))
        line, _ = await asked(pool)
        pool.give_back(line)
        await up.peers[3].closed.wait()


@both_loops
async def test_an_idle_line_that_waited_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw(answers(OK)) as up, pool_to(up.url) as pool:
        pool.give_back((await asked(pool))[0])
        monkeypatch.setattr(pools, "KEEP_S", 0.0)
        await asked(pool)
        assert len(up.peers) == 2
        await up.peers[0].closed.wait()


@both_loops
async def test_closing_hangs_up_all_lines() -> None:
    async with raw(answers(OK)) as up, pool_to(up.url) as pool:
        lines = [(await asked(pool))[0] for _ in range(4)]
        for line in lines[:2]:
            pool.give_back(line)
        lines[3].ask(GET)
        await pool.close()
        await pool.close()
        await asyncio.gather(*(peer.closed.wait() for peer in up.peers))
        assert not any(line.reusable for line in lines)


@both_loops
async def test_hundreds_at_once_get_each_their_own_answer() -> None:
    async def echo(peer: Peer) -> None:
        while True:
            number = (await peer.request()).split()[1]
            await asyncio.sleep(0)
            peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(number), number))

    async def one(pool: Pool, number: int) -> bool:
        line, body = await asked(pool, b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
        pool.give_back(line)
        return body == b"/%d" % number

    async with raw(echo) as up, pool_to(up.url) as pool:
        for _ in range(3):
            assert all(await asyncio.gather(*(one(pool, number) for number in range(300))))
        assert len(up.peers) == 300


# ---- dialling ----


def resolves_to(*addresses: tuple[str, int]) -> list[str]:
    """From now on every name of an example has these, or none; the names that were looked up."""
    looks: list[str] = []
    loop = asyncio.get_running_loop()
    really = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        if not host.rstrip(".").endswith(".example"):
            return await really(host, port, **more)  # uvloop looks up what is an address too
        looks.append(host)
        await asyncio.sleep(0)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]

    loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign,assignment]
    return looks


@both_loops
async def test_an_address_at_which_nobody_listens_is_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with pool_to(f"http://127.0.0.1:{closed.getsockname()[1]}") as pool:
            with pytest.raises(OSError):
                await pool.connection(SOON)


@linux
@both_loops
@pytest.mark.parametrize("kind", ["refuses", "is silent"])
async def test_where_the_first_address_is_dead_the_next_is_taken(kind: str) -> None:
    with black_hole() as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with raw(answers(OK)) as up, pool_to("http://many.example") as pool:
            resolves_to(silent if kind == "is silent" else closed.getsockname(), ("127.0.0.1", up.port))
            assert (await asked(pool))[1] == b"ok"


@linux
@both_loops
async def test_where_all_addresses_are_dead_it_is_an_os_error() -> None:
    with socket.socket() as closed, socket.socket() as other:
        closed.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        async with pool_to("http://many.example") as pool:
            resolves_to(closed.getsockname(), other.getsockname())
            with pytest.raises(OSError):
                await pool.connection(SOON)


@both_loops
async def test_many_that_dial_at_once_look_the_name_up_once() -> None:
    async with raw(answers(OK)) as up, pool_to("http://one.example") as pool:
        looks = resolves_to(("127.0.0.1", up.port))
        await asyncio.gather(*(asked(pool) for _ in range(20)))
        assert (len(looks), len(up.peers)) == (1, 20)


@both_loops
async def test_a_name_that_nobody_knows_is_an_os_error_and_is_looked_up_again() -> None:
    async with raw(answers(OK)) as up, pool_to("http://one.example") as pool:
        resolves_to()
        with pytest.raises(OSError):
            await pool.connection(SOON)
        resolves_to(("127.0.0.1", up.port))
        assert (await asked(pool))[1] == b"ok"


@both_loops
async def test_looking_up_has_a_deadline_and_keeps_nobody_else_waiting() -> None:
    async with raw(answers(OK)) as up, pool_to("http://one.example", connect_s=1.0) as pool:
        loop = asyncio.get_running_loop()
        really = loop.getaddrinfo
        loop.getaddrinfo = lambda *_, **__: asyncio.Event().wait()  # type: ignore[method-assign,assignment,return-value]
        ends = await asyncio.gather(*(pool.connection(SOON) for _ in range(3)), return_exceptions=True)
        assert [type(end) for end in ends] == [TimeoutError] * 3
        loop.getaddrinfo = really  # type: ignore[method-assign]
        resolves_to(("127.0.0.1", up.port))
        assert (await asked(pool))[1] == b"ok"


@linux
@both_loops
async def test_dialling_has_a_deadline_and_leaves_no_socket() -> None:
    with black_hole() as silent:
        async with pool_to(f"http://127.0.0.1:{silent[1]}", connect_s=0.02) as pool:
            before = open_files()
            for limit_s in (SOON, 0.0, -1.0):
                with pytest.raises(TimeoutError):
                    await pool.connection(limit_s)
            assert open_files() == before


# ---- TLS ----


class Certificate:
    """For localhost, signed by itself."""

    def __init__(self, at: Path) -> None:
        self.file, key = at / "cert.pem", at / "key.pem"
        make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
        names = "subjectAltName=DNS:localhost,DNS:one.example"
        files = ["-keyout", str(key), "-out", str(self.file)]
        subprocess.run([*make.split(), names, *files], check=True, capture_output=True, timeout=60)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(self.file, key)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("!!! openssl is missing: NOTHING IS KNOWN ABOUT TLS")
    return Certificate(tmp_path_factory.mktemp("tls"))


def secure(up: Raw, host: str = "localhost") -> str:
    return f"https://{host}:{up.port}"


@both_loops
async def test_a_certificate_that_is_trusted_is_spoken_to(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    async with raw(answers(OK), certificate.server) as up, pool_to(secure(up)) as pool:
        for _ in range(2):
            line, body = await asked(pool)
            assert body == b"ok"
            pool.give_back(line)
        assert len(up.peers) == 1


@both_loops
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_certificate_that_is_not_trusted_or_of_another_name_is_unreachable(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    if host != "localhost":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    async with raw(answers(OK), certificate.server) as up:
        model = OpenAIModel(Upstream(secure(up, host), "m", retries=0))
        with pytest.raises(AgentError) as caught:
            await anext(model.stream(Ask(())))
        await model.close()
    assert caught.value.code == "upstream_unreachable"
    assert "SSLCertVerificationError" in caught.value.message


@both_loops
async def test_a_server_that_does_not_speak_tls_is_unreachable() -> None:
    async def plain(peer: Peer) -> None:
        peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw(plain) as up, pool_to(secure(up)) as pool:
        with pytest.raises(OSError):
            await pool.connection(SOON)


@both_loops
async def test_a_server_that_never_greets_has_a_deadline() -> None:
    async with raw() as up, pool_to(secure(up), connect_s=0.05) as pool:
        while not up.peers:  # on a busy machine the deadline may come before the server has accepted
            with pytest.raises(TimeoutError):
                await pool.connection(SOON)
            await asyncio.sleep(0)
        await (await up.peer()).gone()


@both_loops
@pytest.mark.parametrize("cut", [Peer.hang_up, Peer.reset])
async def test_a_body_until_close_ends_where_it_is_closed_and_not_where_it_is_reset(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch, cut: Callable[[Peer], None]
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    async with raw(None, certificate.server) as up, pool_to(secure(up)) as pool:
        line = await pool.connection(SOON)
        line.ask(GET)
        peer = await up.peer()
        await peer.request()
        peer.say(b"HTTP/1.1 200 OK\r\n\r\nhello")
        assert await line.more(SOON) == b"hello"
        cut(peer)
        if cut is Peer.hang_up:
            assert await line.more(SOON) == b""
        else:
            with pytest.raises(UpstreamFailed):
                await line.more(SOON)


@both_loops
async def test_whoever_is_cancelled_at_any_moment_of_a_greeting_leaves_no_socket_and_spoils_none(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    async with raw(answers(OK), certificate.server) as up:
        resolves_to(("127.0.0.1", up.port))
        before = open_files()
        for steps in range(40):
            async with pool_to(secure(up, "one.example")) as pool:
                asking = asyncio.create_task(asked(pool))
                for _ in range(steps):
                    await asyncio.sleep(0)
                asking.cancel()
                end = (await asyncio.gather(asking, return_exceptions=True))[0]
                assert not isinstance(end, Exception), f"after {steps} steps"
        async with pool_to(secure(up, "one.example")) as pool:
            await asked(pool)
        await until(lambda: open_files() <= before)


@both_loops
async def test_a_name_that_ends_in_a_dot_has_the_certificate_of_the_name(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    async with raw(answers(OK), certificate.server) as up, pool_to(secure(up, "one.example.")) as pool:
        resolves_to(("127.0.0.1", up.port))
        assert (await asked(pool))[1] == b"ok"
