"""Keys that are made, limited and revoked while the server runs (A4)."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ninelives.http.edge.scopes import DEFAULT_SCOPES
from tests.story.approvals import script
from tests.story.responses import HANGS
from tests.story.server import KEY, ROOT, Answer, Client, Server, start_server, wait_until
from tests.story.wire import wire

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
END_S = 15.0
"""Within this time after its end, a key has no open stream any more."""


def make(client: Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/api/keys", {"name": "test", **fields})
    assert answer.status == 201, answer.body
    return dict(answer.json())


def caller(server: Server, made: dict[str, Any]) -> Client:
    return Client(server.port, {"authorization": f"Bearer {made['key']}"})


def ninelives(server: Server, *args: str, key: str = KEY, status: int = 0) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NINELIVES_", "API_SERVER_"))}
    done = subprocess.run(
        [sys.executable, "-m", "ninelives", *args, "--url", server.url],
        cwd=ROOT,
        env={**env, "API_SERVER_KEY": key, "HOME": str(server.data)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def refused(answer: Answer, status: int, code: str) -> bool:
    assert (answer.status, answer.error()["code"]) == (status, code), answer.body
    return True


def test_a_key_is_shown_once_and_stored_as_a_digest(server: Server, client: Client) -> None:
    made = make(client, owner="anna", name="laptop of anna")
    assert re.fullmatch(r"nl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", made["key"])
    assert made["id"] == made["key"].split("_")[1]
    assert made["scopes"] == ["chat", "responses:read", "responses:write"]
    assert caller(server, made).post(CHAT, HELLO).status == 200
    shown = client.get(f"/api/keys/{made['id']}").json()
    assert "key" not in shown and (shown["owner"], shown["status"]) == ("anna", "active")
    assert made["key"] not in client.get("/api/keys").body.decode()
    secret = made["key"].encode()
    stored = [path for path in Path(server.data).rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert stored == [] and made["key"] not in server.log()


def test_unknown_wrong_expired_and_revoked_keys_get_one_answer(server: Server, client: Client) -> None:
    made = make(client)
    revoked, expired = make(client), make(client, expires_in_s=0.05)
    client.delete(f"/api/keys/{revoked['id']}")
    secrets = [
        made["key"][:-1] + ("A" if made["key"][-1] != "A" else "B"),
        f"nl_{'0' * 12}_{'x' * 43}",
        revoked["key"],
        expired["key"],
    ]
    wait_until(lambda: caller(server, expired).get("/v1/models").status == 401, "the expiry")
    answers = [caller(server, {"key": secret}).get("/v1/models") for secret in secrets]
    assert all(refused(answer, 401, "invalid_api_key") for answer in answers)
    assert len({answer.body for answer in answers}) == 1


@pytest.mark.parametrize(
    ("scopes", "allowed", "denied"),
    [
        (["chat"], ("POST", CHAT, HELLO), ("POST", "/v1/responses", {"input": "hi"})),
        (["responses:read"], ("GET", "/v1/runs", None), ("POST", CHAT, HELLO)),
        (["responses:write"], ("POST", "/v1/responses", {"input": "hi"}), ("GET", "/v1/runs", None)),
        (["tools:approve"], ("GET", "/v1/models", None), ("GET", "/v1/approvals", None)),
        ([*DEFAULT_SCOPES, "tools:approve"], ("GET", "/v1/runs", None), ("GET", "/api/keys", None)),
    ],
)
def test_a_key_does_what_its_scopes_say(
    server: Server, client: Client, scopes: list[str], allowed: tuple[Any, ...], denied: tuple[Any, ...]
) -> None:
    own = caller(server, make(client, scopes=scopes))
    assert own.call(*allowed).status == 200
    refused(own.call(*denied), 403, "insufficient_scope")


def test_a_websocket_needs_the_scope_to_write(server: Server, client: Client) -> None:
    made = make(client, scopes=["chat", "responses:read"])
    with pytest.raises(InvalidStatus) as told, wire(server, {"authorization": f"Bearer {made['key']}"}):
        pass
    assert told.value.response.status_code == 403


def test_a_key_makes_only_keys_with_no_more_rights_than_its_own(server: Server, client: Client) -> None:
    limits = {"runs": 3, "requests_per_minute": 100}
    until = time.time() + 3600
    admin = caller(server, make(client, scopes=["admin"], limits=limits, expires_at=until))
    fits = {"name": "x", "limits": {"runs": 2, "requests_per_minute": 100}, "expires_at": until - 1}
    assert admin.post("/api/keys", fits).status == 201
    for more, param in (
        ({"limits": {"runs": 4, "requests_per_minute": 1}}, "limits"),
        ({"limits": {"runs": 1}}, "limits"),
        ({"expires_at": until + 1}, "expires_at"),
        ({"expires_at": None}, "expires_at"),
    ):
        answer = admin.post("/api/keys", {**fits, **more})
        refused(answer, 403, "rights_exceeded")
        assert answer.error()["param"] == param
    strong = make(client, scopes=["admin"])
    refused(admin.post(f"/api/keys/{strong['id']}/rotate"), 403, "rights_exceeded")
    refused(admin.call("PATCH", f"/api/keys/{strong['id']}", {"name": "mine"}), 403, "rights_exceeded")
    bad = client.post("/api/keys", {"name": "x", "scopes": ["admin"], "acts_for": "yes"})
    refused(bad, 400, "invalid_value")
    for wrong in (
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "limits": {"rnus": 1}},
        {"name": "x", "owner": "a/b"},
    ):
        assert client.post("/api/keys", wrong).status == 400


def test_rights_come_from_the_stored_key_and_never_from_the_request(server: Server, client: Client) -> None:
    own = caller(server, make(client, scopes=["chat"]))
    refused(own.post("/api/keys", {"name": "x", "scopes": ["admin"]}), 403, "insufficient_scope")
    refused(own.get("/api/keys", {"x-scopes": "admin", "x-owner": "default"}), 403, "insufficient_scope")


def test_a_change_takes_effect_at_once(server: Server, client: Client) -> None:
    made = make(client, scopes=["chat"])
    own = caller(server, made)
    refused(own.get("/v1/runs"), 403, "insufficient_scope")
    assert client.call("PATCH", f"/api/keys/{made['id']}", {"scopes": ["responses:read"]}).status == 200
    assert own.get("/v1/runs").status == 200
    refused(own.post(CHAT, HELLO), 403, "insufficient_scope")


def test_a_rotated_key_has_the_same_rights_and_the_old_one_ends(server: Server, client: Client) -> None:
    made = make(client, owner="rita", scopes=["responses:read"], limits={"runs": 2})
    new = client.post(f"/api/keys/{made['id']}/rotate").json()
    assert new["id"] != made["id"]
    assert [new[name] for name in ("owner", "scopes", "limits", "name")] == [
        "rita",
        ["responses:read"],
        {"runs": 2},
        "test",
    ]
    refused(caller(server, made).get("/v1/runs"), 401, "invalid_api_key")
    newer = client.post(f"/api/keys/{new['id']}/rotate", {"grace_s": 3600}).json()
    assert caller(server, new).get("/v1/runs").status == caller(server, newer).get("/v1/runs").status == 200
    assert 3500 < client.get(f"/api/keys/{new['id']}").json()["expires_at"] - time.time() < 3700
    refused(client.post(f"/api/keys/{made['id']}/rotate"), 409, "key_revoked")


def test_revocation_ends_open_streams_waiting_requests_and_websockets(server: Server, client: Client) -> None:
    made = make(client)
    own = caller(server, made)
    with own.stream("/v1/responses", {"input": HANGS, "stream": True}) as stream:
        stream.take(3)
        with wire(server, {"authorization": f"Bearer {made['key']}"}) as line:
            line.send(input=HANGS, store=True)
            line.next()
            waiting = own.left_waiting(CHAT, {"messages": [{"role": "user", "content": HANGS}]})
            wait_until(lambda: len(own.get("/v1/runs?status=running").json()["data"]) == 3, "all three work")
            begun = time.monotonic()
            client.delete(f"/api/keys/{made['id']}")
            stream.rest()
            assert stream.ended == "cut"
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    line.next()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
            with waiting, suppress(ConnectionResetError):
                waiting.settimeout(END_S)
                assert waiting.recv(4096) == b"", "a request that waits is cut without an answer"
            assert time.monotonic() - begun < END_S
    assert "key_ended" in server.log()


def test_expiry_ends_an_open_stream(server: Server, client: Client) -> None:
    own = caller(server, make(client, expires_in_s=1.0))
    begun = time.monotonic()
    with own.stream("/v1/responses", {"input": HANGS, "stream": True}) as stream:
        stream.rest()
        assert stream.ended == "cut"
    assert time.monotonic() - begun < 1.0 + END_S


def test_owners_do_not_meet_and_a_second_key_of_an_owner_sees_the_same(server: Server, client: Client) -> None:
    one, same, other = (caller(server, make(client, owner=name)) for name in ("uma", "uma", "vic"))
    run = one.post("/v1/responses", {"input": "hi"}).json()["id"]
    assert same.get(f"/v1/responses/{run}").status == 200
    refused(other.get(f"/v1/responses/{run}"), 404, "response_not_found")


def test_the_commands_make_list_rotate_and_revoke_keys(server: Server, client: Client) -> None:
    made = json.loads(
        ninelives(
            server, "keys", "create", "phone", "--owner", "carl", "--limit", "runs=2", "--expires", "30d", "--json"
        )
    )
    assert (made["owner"], made["limits"], made["status"]) == ("carl", {"runs": 2}, "active")
    secret = ninelives(server, "keys", "create", "tablet", "--owner", "carl", "--scope", "chat").strip()
    assert caller(server, {"key": secret}).post(CHAT, HELLO).status == 200
    listed = ninelives(server, "keys", "list")
    assert "phone" in listed and made["id"] in listed and secret not in listed
    again = ninelives(server, "keys", "rotate", made["id"]).strip()
    assert caller(server, {"key": again}).get("/v1/runs").status == 200
    assert made["id"] not in ninelives(server, "keys", "list")
    rows = {row["id"]: row for row in json.loads(ninelives(server, "keys", "list", "--all", "--json"))["data"]}
    assert rows[made["id"]]["status"] == "revoked"
    assert "revoked" in ninelives(server, "keys", "revoke", again.split("_")[1])
    assert "lacks the scope admin" in ninelives(server, "keys", "list", key=secret, status=1)
    done = [(entry["action"], entry["detail"]) for entry in audited(server, "key.rotate", target=made["id"])]
    assert done == [("key.create", "owner carl"), ("key.rotate", f"owner carl, new key {again.split('_')[1]}")]
    assert audited(server, "key.revoke", target=again.split("_")[1])
    refused = audited(server, "scope.refused", by=secret.split("_")[1])
    assert (refused[-1]["detail"], refused[-1]["remote"]) == ("admin", "127.0.0.1")
    assert "key.revoke" in ninelives(server, "audit", "tail", "-n", "10", "--action", "key")


def audited(server: Server, wanted: str, **filters: str) -> list[dict[str, Any]]:
    """Entries of the audit log, the oldest first, once one with the wanted action is among them."""
    flags = [word for name, value in filters.items() for word in (f"--{name}", value)]

    def read() -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in ninelives(server, "audit", "export", *flags).splitlines()]
        return entries if any(entry["action"] == wanted for entry in entries) else []

    return list(wait_until(read, f"{wanted} in the audit log"))


def test_the_audit_log_has_approvals_and_tools_and_no_content(server: Server, client: Client, mark: str) -> None:
    made = make(client, owner="eric")
    own = caller(server, made)
    call = script("write_file", {"path": "x.txt", "content": f"secret-{mark}"})
    run = own.post("/v1/responses", {"input": f"secret-{mark} {call}"}).json()["id"]
    own.delete(f"/v1/responses/{run}")
    entries = audited(server, "run.delete", owner="eric")
    told = [(entry["action"], entry["key"], entry["result"], entry["detail"]) for entry in entries]
    assert told == [("tool.execute", made["id"], "ok", "write_file"), ("run.delete", made["id"], "ok", "")]
    assert [entry["target"] for entry in entries] == [run.replace("resp_", "run_"), run]
    assert entries[1]["remote"] == "127.0.0.1" and f"secret-{mark}" not in json.dumps(entries)
    refused(own.post("/v1/runs/none/approval", {"choice": "once"}), 403, "insufficient_scope")
    own.post("/v1/responses", {"input": script(f"made_up_secret-{mark}", {})})

    def executed() -> list[str]:
        return [entry["detail"] for entry in audited(server, "tool.execute", owner="eric", action="tool.execute")]

    wait_until(lambda: len(executed()) == 2, "the call of a tool that there is not")
    assert executed() == ["write_file", ""]
    answers = audited(server, "run.answer", owner="eric", action="run.answer")
    assert [(entry["target"], entry["result"]) for entry in answers] == [("none", "insufficient_scope")]


def test_keys_and_last_use_survive_a_restart(server: Server, client: Client, tmp_path: Path, upstream: Any) -> None:
    first = start_server(tmp_path, upstream.url)
    made = make(first.client, owner="dora")
    assert caller(first, made).get("/v1/models").status == 200
    assert first.stop() == 0
    second = start_server(tmp_path, upstream.url)
    try:
        assert second.client.get(f"/api/keys/{made['id']}").json()["last_used_at"] > time.time() - 600
        assert caller(second, made).get("/v1/models").status == 200
    finally:
        assert second.stop() == 0


def test_no_key_is_in_any_stored_object_reply_or_receipt(
    client: Client, tmp_path: Path, upstream: Any, mark: str
) -> None:
    """Packed records too: every event, receipt, session, audit entry and key object is read back."""
    own = start_server(tmp_path, upstream.url)
    made = make(own.client, owner="canary")
    one = caller(own, made)
    seen: list[bytes] = []
    for body in (
        {"input": f"{mark} {script('terminal', {'command': 'env; cat /proc/self/environ'})}"},
        {"input": f"{mark} [[status=401 times=9]]"},
        {"input": f"{mark} [[tokens=3]]", "metadata": {"a": "b"}},
    ):
        seen.append(one.post("/v1/responses", body, {"x-hermes-session-id": "canary"}).body)
    one.get(f"/v1/models/{made['id']}?key=x")
    for run in one.get("/v1/runs?limit=100").json()["data"]:
        for more in ("", "/receipt", "/events"):
            seen.append(one.get(f"/v1/runs/{run['run_id']}{more}").body)
    for path in ("/api/sessions/canary/messages", "/api/sessions/canary/export", "/v1/approvals"):
        seen.append(one.get(path).body)
    for path in ("/api/keys", "/api/audit?limit=1000", "/health/detailed", "/v1/capabilities"):
        seen.append(own.client.get(path).body)
    assert own.stop() == 0
    exported = subprocess.run(
        [sys.executable, "-c", DUMP, str(own.data)], cwd=ROOT, capture_output=True, timeout=60, check=True
    ).stdout
    assert mark.encode() in exported and b"canary" in exported, "the records are readable here"
    for place in (*seen, exported):
        assert made["key"].encode() not in place and KEY.encode() not in place


DUMP = """
import asyncio, sys
from pathlib import Path
from ninelives.journal.sqlite.move import SqliteCarrier

async def dump():
    carrier = SqliteCarrier(Path(sys.argv[1]))
    await carrier.lend()
    async for row in carrier.rows():
        for record in getattr(row, "records", ()):
            sys.stdout.buffer.write(record.data)
        sys.stdout.buffer.write(repr(row).encode())
    await carrier.close()

asyncio.run(dump())
"""


def raw(server: Server, request: bytes) -> bytes:
    """The first bytes that come back for these."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.sendall(request)
        with suppress(OSError):
            line.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(OSError):
            while len(answer) < 4096 and (more := line.recv(4096)):
                answer += more
    return answer


def mutated(chance: random.Random, request: bytes) -> bytes:
    """The request with some bytes changed, lost, doubled or made strange."""
    data = bytearray(request)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data)) if data else 0
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.randint(1, 20)]
            case 2:
                data[place:place] = data[place : place + 40]
            case 3:
                data[place:place] = chance.choice(STRANGE)
            case _:
                del data[place:]
    return bytes(data)


STRANGE = (
    *(
        b"\\ud800",
        b"\x00",
        b"\xff\xfe",
        b"NaN",
        b"1e999",
        b"[" * 200,
        b'{"a":' * 50,
        b"\r\n\r\n",
        b": ",
        b"%00",
        b"%2e%2e/",
    ),
    *(b"~", b"-1", b"99999999999999999999", b"null", b"true", "\u202e".encode(), b"Transfer-Encoding: chunked\r\n"),
)


def test_changed_bytes_of_http_and_json_are_never_5xx(server: Server, client: Client) -> None:
    """Bounded, and the same in each run. Both keys, all kinds of bodies."""
    made = make(client, owner="fuzzed", acts_for="optional")
    chance = random.Random(18)
    bodies = [
        ("POST", CHAT, HELLO),
        ("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}),
        ("POST", "/v1/messages", {"max_tokens": 9, **HELLO}),
        ("POST", "/v1/conversations", {"items": [{"role": "user", "content": "hi"}], "metadata": {"a": "b"}}),
        (
            "POST",
            "/api/keys",
            {"name": "n", "owner": "o", "scopes": ["chat"], "limits": {"runs": 1}, "expires_in_s": 9},
        ),
        ("PATCH", f"/api/keys/{made['id']}", {"name": "m"}),
        ("GET", "/api/audit?limit=5&order=asc&after=1&owner=x", None),
        ("GET", "/v1/runs?limit=5&order=asc&status=completed", None),
    ]
    bad = []
    for n in range(400):
        method, path, body = bodies[n % len(bodies)]
        text = b"" if body is None else json.dumps(body).encode()
        key = (KEY, made["key"])[n // len(bodies) % 2]
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
            f"X-End-User-Id: anna\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        ).encode()
        if n % 2 and text:  # the body is changed, and its length is right
            text = mutated(chance, text)
            sent = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(text), head) + text
        else:
            sent = mutated(chance, head + text)
        answer = raw(server, sent)
        if answer[:12].startswith((b"HTTP/1.1 5", b"HTTP/1.0 5")):
            bad.append((sent, answer[:300]))
    assert bad == []
    assert client.get("/health").status == 200 and "request_failed" not in server.log()
