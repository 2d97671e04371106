"""Model calls in the custody of the supervisor (server.keep_calls): the server is killed in the middle of a message,
and the message goes on. The model is asked once, and no text is dropped, repeated or lost."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.story.server import Server, Upstream, start_supervised, start_upstream, wait_until
from tests.story.test_tls import certificate
from tests.supervisor.test_supervisor import has_spare, kill_server

pytestmark = pytest.mark.xdist_group("processes")
TOOL = 'terminal:{"command": "echo out"}'


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    made = start_upstream(tmp_path_factory.mktemp("upstream"))
    yield made
    made.process.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Server]:
    made = start_supervised(tmp_path_factory.mktemp("server"), upstream.url, NINELIVES_SERVER_KEEP_CALLS="true")
    yield made
    assert made.stop() == 0, made.log()


def begun(server: Server, asked: str) -> str:
    made = server.client.post("/v1/responses", {"input": asked, "background": True, "store": True}).json()
    return str(made["id"])


def events(server: Server, response: str) -> list[dict[str, object]]:
    stream = server.client.stream(f"/v1/responses/{response}?stream=true")
    seen = [frame.data for frame in stream.rest()]
    stream.leave()
    return seen


def ended(server: Server, response: str) -> dict[str, object]:
    def look() -> dict[str, object] | None:
        shown = dict(server.client.get(f"/v1/responses/{response}").json())
        return shown if shown["status"] not in ("queued", "in_progress") else None

    return dict(wait_until(look, "the run to end", 60))


def receipt(server: Server, response: str) -> dict[str, object]:
    return dict(server.client.get(f"/v1/runs/run_{response.removeprefix('resp_')}/receipt").json())


def deltas(seen: list[dict[str, object]], kind: str = "response.output_text.delta") -> str:
    return "".join(str(each["delta"]) for each in seen if each["type"] == kind)


def wait_for_deltas(server: Server, response: str, count: int) -> None:
    stream = server.client.stream(f"/v1/responses/{response}?stream=true")
    seen = 0
    for frame in stream:
        seen += frame.data["type"] == "response.output_text.delta"
        if seen >= count:
            break
    stream.leave()


@pytest.mark.parametrize("kills", [1, 2])
def test_a_message_goes_on_after_a_kill_and_the_model_is_asked_once(
    server: Server, upstream: Upstream, kills: int
) -> None:
    tag = f"kept-{kills}"
    wait_until(lambda: has_spare(server), "a spare", 60)
    response = begun(server, f"{tag} [[tokens=150 pace=0.02]]")
    for number in range(kills):
        wait_for_deltas(server, response, 10 + 20 * number)
        kill_server(server)
    shown = ended(server, response)
    assert shown["status"] == "completed", (shown, server.log()[-2000:])
    seen = events(server, response)
    assert len(upstream.asked(tag)) == 1
    text = shown["output"][-1]["content"][0]["text"]  # type: ignore[index]
    assert deltas(seen) == text and len(text.split()) == 150
    assert [each["sequence_number"] for each in seen] == list(range(len(seen)))
    assert not any(each.get("item", {}).get("status") == "incomplete" for each in seen)  # type: ignore[attr-defined]
    attempts = receipt(server, response)["attempts"]
    assert isinstance(attempts, list) and len(attempts) == 1 + kills
    assert all(each.get("kept_model_call") for each in attempts[1:])
    assert shown["usage"]["output_tokens"] == 150  # type: ignore[index]


def test_a_chat_stream_that_comes_back_sees_no_restart(server: Server, upstream: Upstream) -> None:
    """The journal has one message, so the replay of a chat has it too: stream_restarted is gone."""
    wait_until(lambda: has_spare(server), "a spare", 60)
    said = {"role": "user", "content": "kept-chat [[tokens=80 pace=0.02]]"}
    asked = {"model": "m", "stream": True, "store": True, "messages": [said]}
    headers = {"idempotency-key": "kept-chat"}
    stream = server.client.stream("/v1/chat/completions", asked, headers)
    stream.take(12)
    kill_server(server)
    stream.leave()
    again = server.client.stream("/v1/chat/completions", asked, headers)
    frames = again.rest()
    again.leave()
    choices = [frame.data["choices"][0] for frame in frames if frame.data.get("choices")]
    assert len("".join(each["delta"].get("content") or "" for each in choices).split()) == 80
    assert "stream_restarted" not in str(frames) and again.done
    assert len(upstream.asked("kept-chat")) == 1


def test_random_kills_in_reasoning_text_arguments_and_tools_ask_the_model_as_often_as_none(
    server: Server, upstream: Upstream
) -> None:
    chance = random.Random(21)
    for number in range(6):
        tag = f"kept-mix-{number}"
        wait_until(lambda: has_spare(server), "a spare", 60)
        response = begun(server, f"{tag} [[tools={TOOL}]] [[tokens=60 pace=0.02]]")
        time.sleep(chance.uniform(0.0, 1.0))
        kill_server(server)
        shown = ended(server, response)
        assert shown["status"] == "completed", (number, shown)
        assert len(upstream.asked(tag)) == 2, (number, receipt(server, response))
        seen = events(server, response)
        assert [each["sequence_number"] for each in seen] == list(range(len(seen)))


def test_a_cancelled_run_ends_its_call_at_the_upstream(server: Server, upstream: Upstream) -> None:
    response = begun(server, "kept-cancel [[tokens=4000 pace=0.02]]")
    wait_for_deltas(server, response, 5)
    before = upstream.stats()["closed_early"]
    assert server.client.post(f"/v1/responses/{response}/cancel").status == 200
    wait_until(lambda: upstream.stats()["closed_early"] > before, "the upstream to see the end")


@contextmanager
def encrypted(upstream: Upstream, folder: Path) -> Iterator[tuple[str, Path]]:
    """The upstream behind TLS: its URL, and the certificate to trust."""
    cert, key = certificate(folder, "upstream")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    loop = asyncio.new_event_loop()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int(upstream.url.rpartition(":")[2].partition("/")[0])
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, back), pipe(there, writer))

    async def close() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(accepted, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", cert
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_message_over_tls_goes_on_after_kills_and_a_cancel_ends_its_call(tmp_path: Path, upstream: Upstream) -> None:
    """The keys of the connection live in the supervisor."""
    with encrypted(upstream, tmp_path) as (url, cert):
        made = start_supervised(tmp_path, url, NINELIVES_SERVER_KEEP_CALLS="true", SSL_CERT_FILE=str(cert))
        try:
            wait_until(lambda: has_spare(made), "a spare", 60)
            response = begun(made, "kept-tls [[reason=5]] [[tokens=150 pace=0.02]]")
            for number in range(2):
                wait_for_deltas(made, response, 10 + 20 * number)
                kill_server(made)
            shown = ended(made, response)
            assert shown["status"] == "completed", (shown, made.log()[-2000:])
            assert len(deltas(events(made, response)).split()) == 150
            assert len(upstream.asked("kept-tls")) == 1
            before = upstream.stats()["closed_early"]
            response = begun(made, "kept-tls-cancel [[tokens=4000 pace=0.02]]")
            wait_for_deltas(made, response, 5)
            assert made.client.post(f"/v1/responses/{response}/cancel").status == 200
            wait_until(lambda: upstream.stats()["closed_early"] > before, "the upstream to see the end")
        finally:
            assert made.stop() == 0, made.log()


def test_where_the_supervisor_died_too_the_message_is_asked_for_again(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream
) -> None:
    where = tmp_path_factory.mktemp("lost")
    first = start_supervised(where, upstream.url, NINELIVES_SERVER_KEEP_CALLS="true")
    response = begun(first, "kept-not [[tokens=60 pace=0.02]]")
    wait_for_deltas(first, response, 10)
    first.kill()
    time.sleep(0.5)
    second = start_supervised(where, upstream.url, NINELIVES_SERVER_KEEP_CALLS="true")
    try:
        assert ended(second, response)["status"] == "completed"
        assert len(upstream.asked("kept-not")) == 2
    finally:
        assert second.stop() == 0
