"""Everything that a caller can make the server keep counts towards store.owner_bytes, and goes or is refused (P20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.story.server import Server, Upstream, start_server, wait_until

RESPONSES, CHAT, CONVERSATIONS = "/v1/responses", "/v1/chat/completions", "/v1/conversations"
BOUND = 1_000_000


@pytest.fixture
def server(tmp_path: Path, upstream: Upstream) -> Iterator[Server]:
    bounds = {"NINELIVES_STORE_OWNER_BYTES": str(BOUND), "NINELIVES_STORE_RETENTION_S": "0.2"}
    started = start_server(tmp_path / "server", upstream.url, **bounds)
    yield started
    assert started.stop() == 0


def call(name: str, **arguments: object) -> str:
    return f"[[tools={name}:{json.dumps(arguments)}]]"


def output(server: Server, text: str) -> str:
    answer = server.client.post(RESPONSES, {"input": text}, {"x-tool-items": "function_call"}).json()
    assert answer["status"] == "completed", answer
    return "\n".join(str(item["output"]) for item in answer["output"] if item["type"] == "function_call_output")


def test_p20_sessions_are_bounded_in_bytes(server: Server) -> None:
    for n in range(20):
        body = {"model": "hermes-agent", "messages": [{"role": "user", "content": f"{n} " + "x" * 100_000}]}
        assert server.client.post(CHAT, body, {"x-hermes-session-id": f"s{n}"}).status == 200

    def kept() -> list[str]:
        return [each["id"] for each in server.client.get("/api/sessions?limit=100").json()["data"]]

    wait_until(lambda: len(kept()) <= 10, "old sessions are evicted", 60.0)
    assert "s19" in kept(), "the one used last stays"


def test_p20_conversations_are_bounded_by_age_and_bytes(server: Server) -> None:
    for _ in range(200):
        made = {"metadata": {f"k{n}": "v" * 500 for n in range(16)}}
        assert server.client.post(CONVERSATIONS, made).status == 200

    def kept() -> int:
        first = server.client.get(f"{CONVERSATIONS}?limit=100").json()
        rest = server.client.get(f"{CONVERSATIONS}?limit=100&after={first['last_id']}").json()
        return len(first["data"]) + len(rest["data"])

    wait_until(lambda: kept() * 8_000 <= BOUND, "old conversations are evicted", 60.0)


def test_p20_long_outputs_are_bounded_in_bytes_and_the_oldest_go(server: Server) -> None:
    for n in range(30):
        output(server, call("terminal", command=f"echo {n}; head -c 60000 /dev/zero | tr '\\0' x"))

    def kept() -> Iterator[str]:
        for each in (server.data / "workspaces").glob("*/.ninelives/outputs/*"):
            with suppress(FileNotFoundError):
                yield each.read_text()

    def has_room() -> bool:
        """More than fits is not written at all, until older ones have gone."""
        output(server, call("terminal", command="echo last; head -c 60000 /dev/zero | tr '\\0' x"))
        return any(each.startswith("last") for each in kept())

    wait_until(has_room, "old outputs are deleted", 60.0)
    assert 0 < sum(map(len, kept())) <= BOUND


def test_p20_whatever_a_command_names_its_files_the_rounds_go_on(server: Server) -> None:
    """A name that is not UTF-8 ended the server, and every server after it."""
    name = ".ninelives/outputs/$(printf '\\377').txt"
    traps = f"mkdir -p .ninelives/outputs $(printf '\\376'); echo x > {name}; mkdir .ninelives/outputs/d.txt"
    output(server, call("terminal", command=traps))
    for n in range(30):
        output(server, call("terminal", command=f"echo {n}; head -c 60000 /dev/zero | tr '\\0' x"))

    def bytes_kept() -> int:
        return sum(each.stat().st_size for each in (server.data / "workspaces").glob("*/.ninelives/outputs/c*"))

    wait_until(lambda: 0 < bytes_kept() <= BOUND, "old outputs are deleted", 60.0)
    assert "retention_failed" not in server.log()


def test_p20_a_workspace_counts_and_is_never_evicted(server: Server) -> None:
    output(server, call("terminal", command="head -c 900000 /dev/urandom > big"))

    def refused() -> bool:
        return "store.owner_bytes" in output(server, call("write_file", path="more", content="text"))

    wait_until(refused, "more is refused with the reason", 60.0)
    assert "big" in output(server, call("terminal", command="ls"))
    said = output(server, call("write_file", path="more", content="text"))
    assert "750000 bytes" in said and "Delete" in said
    output(server, call("terminal", command="rm big"))
    wait_until(lambda: not refused(), "there is room again", 60.0)


def test_p20_logs_of_background_processes_count_and_go(server: Server) -> None:
    for _ in range(8):  # `start` must not see their output: it would be a long output in the workspace
        said = output(server, call("process", action="start", command="sleep 2; head -c 262144 /dev/zero | tr '\\0' x"))
        assert "proc_" in said, said

    def listed() -> int:
        return output(server, call("process", action="list")).count("proc_")

    wait_until(lambda: 0 < listed() <= 4, "old logs go", 60.0, 0.3)
