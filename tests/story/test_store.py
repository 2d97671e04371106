"""The store as its operator meets it: retention, room, and the commands that look after it (P14, P20, G7)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.responses import PATH, SLOW, create, finished, started
from tests.story.server import ROOT, Server, Upstream, start_server, wait_until

KEEP = {"NINELIVES_STORE_MAX_RESPONSES": "3", "NINELIVES_STORE_RETENTION_S": "0.1"}


@pytest.fixture
def keeping(tmp_path: Path, upstream: Upstream) -> Iterator[Server]:
    server = start_server(tmp_path / "keeping", upstream.url, **KEEP)
    yield server
    assert server.stop() == 0


def ninelives(*args: str, status: int = 0) -> str:
    """What a command says."""
    done = subprocess.run(
        [sys.executable, "-m", "ninelives", *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_p20_the_responses_used_longest_ago_expire_and_say_so(keeping: Server) -> None:
    client = keeping.client
    pinned = create(client, "pinned")["id"]
    assert client.post(f"/v1/runs/{pinned}/pin").json()["pinned"] is True
    first, second = create(client, "first", {"Idempotency-Key": "k"})["id"], create(client, "second")["id"]
    last = [create(client, f"more {n}")["id"] for n in range(3)]
    wait_until(lambda: keeping.health()["expired"] == 2, "two go")  # looking at them would be using them
    expired = client.get(f"{PATH}/{first}")
    assert expired.error()["code"] == "response_not_found" and "expired" in expired.error()["message"]
    assert client.get(f"{PATH}/{second}").status == 404
    for kept in (pinned, *last):
        assert client.get(f"{PATH}/{kept}").status == 200
    followed = client.post(PATH, {"input": "hi", "previous_response_id": first})
    assert followed.status == 404 and "expired" in followed.error()["message"]
    assert create(client, "first", {"Idempotency-Key": "k"})["id"] != first, "its key is free"
    assert client.call("DELETE", f"/v1/runs/{pinned}/pin").json()["pinned"] is False


def test_p20_an_active_run_does_not_expire(keeping: Server) -> None:
    client = keeping.client
    active = started(client, f"active {SLOW}")
    for n in range(5):
        create(client, f"other {n}")
    assert finished(client, active)["status"] == "completed"


def test_a_short_disk_refuses_new_runs_says_so_and_serves_what_is_there(tmp_path: Path, upstream: Upstream) -> None:
    where = tmp_path / "short"
    server = start_server(where, upstream.url)
    kept = create(server.client, "before")["id"]
    assert server.stop() == 0
    server = start_server(where, upstream.url, NINELIVES_STORE_LOW_WATER_BYTES=str(1 << 50))
    try:
        wait_until(lambda: server.health()["status"] == "degraded", "the server notices")
        refused = server.client.post(PATH, {"input": "hi"})
        assert (refused.status, refused.error()["code"]) == (503, "storage_full")
        assert refused.headers["retry-after"] and "MiB are free" in refused.error()["message"]
        assert server.client.get(f"{PATH}/{kept}").status == 200
        assert server.client.post(PATH, {"input": "hi", "store": False}).status == 503, "it is journaled too (B6)"
        detailed = server.anonymous.get("/health/detailed")
        assert detailed.status == 200 and "MiB are free" in detailed.json()["store"]["trouble"]
        assert str(where) not in detailed.body.decode()
        assert "degraded" in ninelives("status", "--url", server.url, status=1)
    finally:
        assert server.stop() == 0


@pytest.fixture
def used(tmp_path: Path, upstream: Upstream) -> Path:
    """A data directory with a few runs, and no server on it."""
    server = start_server(tmp_path / "used", upstream.url)
    tools = '[[tools=write_file:{"path":"a.txt","content":"one"}]]'
    for n in range(3):
        create(server.client, f"turn {n} {tools}", conversation="talk")
    create(server.client, "keyed", {"Idempotency-Key": "k"})
    assert server.stop() == 0
    return server.data


def damage(db: sqlite3.Connection) -> int:
    """Spoil the log of the second run, wherever it lies; how many rows."""
    packed = db.execute("UPDATE segments SET data = x'00' WHERE run = 2").rowcount
    return packed + db.execute("UPDATE entries SET data = x'00' WHERE run = 2 AND seq = 3").rowcount


def test_store_check_finds_a_whole_store_whole(used: Path) -> None:
    report = json.loads(ninelives("store", "check", "--data-dir", str(used), "--json"))
    assert report["ok"] and report["runs"] == 4 and report["entries"] > 20 and report["problems"] == []


def test_p14_store_check_names_what_is_damaged_and_changes_nothing(used: Path) -> None:
    with sqlite3.connect(used / "ninelives.db") as db:
        assert damage(db)
        db.execute("UPDATE conversations SET active = 'nobody'")
    db.close()
    before = (used / "ninelives.db").read_bytes()
    said = ninelives("store", "check", "--data-dir", str(used), status=1)
    assert "2 problems" in said and "run " in said and "its active run nobody is not active" in said
    assert (used / "ninelives.db").read_bytes() == before


def test_a_backup_of_a_running_server_is_whole_and_can_be_restored(tmp_path: Path, upstream: Upstream) -> None:
    server = start_server(tmp_path / "live", upstream.url)
    kept = create(server.client, "kept")
    running = started(server.client, f"running {SLOW}")
    copy = tmp_path / "backup"
    assert "no damage" in ninelives("store", "backup", str(copy), "--data-dir", str(server.data))
    assert "exists already" in ninelives("store", "backup", str(copy), "--data-dir", str(server.data), status=1)
    lost = create(server.client, "after the backup")["id"]
    assert "in use" in ninelives("store", "restore", str(copy), "--data-dir", str(server.data), status=1)
    assert server.stop() == 0
    assert "--replace" in ninelives("store", "restore", str(copy), "--data-dir", str(server.data), status=1)
    said = ninelives("store", "restore", str(copy), "--replace", "--data-dir", str(server.data))
    assert "replaced-" in said and len(list(server.data.glob("replaced-*/ninelives.db"))) == 1
    server = start_server(tmp_path / "live", upstream.url)
    try:
        assert server.client.get(f"{PATH}/{kept['id']}").json() == kept
        assert server.client.get(f"{PATH}/{lost}").status == 404
        assert finished(server.client, running)["status"] == "completed", "a run that was under way goes on"
    finally:
        assert server.stop() == 0


def test_a_damaged_backup_is_not_restored(used: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backup"
    ninelives("store", "backup", str(copy), "--data-dir", str(used))
    with sqlite3.connect(copy / "ninelives.db") as db:
        assert damage(db)
    db.close()
    assert "damaged" in ninelives("store", "restore", str(copy), "--replace", "--data-dir", str(used), status=1)
    assert not list(used.glob("replaced-*"))


def test_p14_a_damaged_store_is_refused_can_be_set_aside_and_is_never_deleted(used: Path, upstream: Upstream) -> None:
    (used / "ninelives.db").write_bytes(b"\0" * 4096 + (used / "ninelives.db").read_bytes()[4096:])
    with pytest.raises(AssertionError, match="ninelives store set-aside"):
        start_server(used.parent, upstream.url)
    said = ninelives("store", "set-aside", "--data-dir", str(used))
    (aside,) = used.glob("aside-*")
    assert str(aside) in said and (aside / "ninelives.db").exists() and (aside / "ninelives.tip").exists()
    server = start_server(used.parent, upstream.url)
    assert server.client.get("/v1/runs").json()["data"] == []
    assert server.stop() == 0


def test_compact_gives_room_back(used: Path, upstream: Upstream) -> None:
    server = start_server(used.parent, upstream.url)
    big = create(server.client, "[[big=2000000 messages=1]]")["id"]
    server.client.delete(f"{PATH}/{big}")
    assert server.stop() == 0
    before = (used / "ninelives.db").stat().st_size
    ninelives("store", "compact", "--data-dir", str(used))
    assert (used / "ninelives.db").stat().st_size <= before
    assert "no damage" in ninelives("store", "check", "--data-dir", str(used))
    shutil.rmtree(used)
    assert "there is no store" in ninelives("store", "check", "--data-dir", str(used), status=1)
