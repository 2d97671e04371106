"""The server on PostgreSQL as its operator meets it: replicas, workers, health, workspaces, moving (P15)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests import pg
from tests.golden.test_golden import GOLDEN
from tests.story.responses import HANGS, PATH, SLOW, counted, create, finished, get, started, text_of
from tests.story.server import KEY, ROOT, Client, Server, Upstream, start_server, start_worker, wait_until

WORD = "word-of-the-database"
"""A password. The sockets of the test database ask for none, and so take any."""


@pytest.fixture
def url() -> str:
    """A new database, by a URL with a password that nobody may see."""
    plain = asyncio.run(pg.server().database())
    return plain.replace("postgres@", f"postgres:{WORD}@")


class Cluster:
    """Some replicas over one database."""

    def __init__(self, where: Path, url: str, upstream: Upstream) -> None:
        self.where, self.url, self.upstream = where, url, upstream
        self.all: list[Server] = []

    def serve(self, name: str, **settings: str) -> Server:
        settings = {"NINELIVES_STORE_URL": self.url, "NINELIVES_SERVER_REPLICA": name, **settings}
        self.all.append(start_server(self.where / name, self.upstream.url, **settings))
        return self.all[-1]

    def work(self, name: str) -> Server:
        settings = {"NINELIVES_STORE_URL": self.url, "NINELIVES_SERVER_REPLICA": name}
        self.all.append(start_worker(self.where / name, self.upstream.url, **settings))
        return self.all[-1]


@pytest.fixture
def cluster(tmp_path: Path, url: str, upstream: Upstream) -> Iterator[Cluster]:
    made = Cluster(tmp_path, url, upstream)
    yield made
    for server in made.all:
        if server.process.child.poll() is None:
            assert server.stop() == 0
        said = server.log() + server.process.out.read_text()
        assert WORD not in said, "no password is ever logged or printed"


def ninelives(*args: str, status: int = 0, **env: str) -> str:
    """What a command says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NINELIVES_", "API_SERVER_"))}
    done = subprocess.run(
        [sys.executable, "-m", "ninelives", *args],
        cwd=ROOT,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert WORD not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_replicas_are_one_server(cluster: Cluster) -> None:
    one, two = cluster.serve("one"), cluster.serve("two")
    made = create(one.client, "hello", conversation="shared")
    assert get(two.client, made["id"]) == made
    assert (
        create(two.client, "again", {"Idempotency-Key": "k"})["id"]
        == create(one.client, "again", {"Idempotency-Key": "k"})["id"]
    )
    create(two.client, "more", conversation="shared")
    told = cluster.upstream.asked("more")[-1]["messages"]
    assert [m["content"] for m in told if m["role"] == "user"] == ["hello", "more"]
    chat = {"messages": [{"role": "user", "content": "same"}]}
    sessions = {s.client.post("/v1/chat/completions", chat).headers["x-hermes-session-id"] for s in (one, two)}
    assert len(sessions) == 1, "derived names come from the secret in the database"
    health = one.health()
    assert (health["store"]["kind"], health["store"]["reachable"]) == ("postgres", True)
    assert health["replicas"] == {"alive": 2, "working": 2} and "admin" not in health
    said = ninelives("status", "--url", two.url, "--key", KEY)
    assert "one" in said and "two" in said and "works" in said
    admin = json.dumps(two.client.get("/health/detailed").json()["admin"])
    assert WORD not in admin and "********" in admin


def test_a_run_goes_on_elsewhere_when_its_replica_is_killed(cluster: Cluster) -> None:
    lease = {"NINELIVES_STORE_LEASE_S": "3"}  # a database that is young says nothing about locks: the lease must end
    one, two = cluster.serve("one", **lease), cluster.serve("two", **lease)
    run = started(one.client, "[[tokens=100 pace=0.02]]")
    one.kill()
    with two.client.stream(f"{PATH}/{run}?stream=true") as stream:
        frames = stream.rest()
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert text_of(get(two.client, run)) == counted(100)


def test_g13_a_retry_at_another_replica_right_after_a_kill_goes_on_with_the_run_of_the_first_try(
    cluster: Cluster, mark: str
) -> None:
    lease = {"NINELIVES_STORE_LEASE_S": "4"}  # so long after its start a database says nothing about locks
    one, two = cluster.serve("one", **lease), cluster.serve("two", **lease)
    young = "SELECT 1 FROM (SELECT now() - pg_postmaster_start_time() AS age) a WHERE age < interval '5 s'"
    wait_until(lambda: not asyncio.run(pg.server().run(cluster.url, young)), "the database is not young any more")
    body = {"model": "hermes-agent", "input": f"{mark} [[hang=3 times=1]] [[tokens=5]]"}
    with (
        openai.OpenAI(base_url=f"{one.url}/v1", api_key=KEY, max_retries=0) as first,
        openai.OpenAI(base_url=f"{two.url}/v1", api_key=KEY, max_retries=0) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(lambda: first.responses.create(**body))
        wait_until(lambda: cluster.upstream.asked(mark), "the first is at work")
        one.kill()
        with pytest.raises(openai.APIConnectionError):
            waiting.result(30)
        wait_until(lambda: len(asyncio.run(pg.server().run(cluster.url, pg.LOCKS))) == 1, "its connection has ended")
        made = second.responses.create(**body, extra_headers={"x-stainless-retry-count": "1"})
    assert made.status == "completed" and made.output_text == counted(5)
    (run,) = two.client.get("/v1/runs").json()["data"]
    assert made.id.removeprefix("resp_") == run["run_id"].removeprefix("run_")


def test_a_replica_without_work_leaves_stored_runs_to_workers_that_show_only_their_health(cluster: Cluster) -> None:
    front = cluster.serve("front", NINELIVES_SERVER_WORKER="false", NINELIVES_AGENT_STORE_FALSE="memory")
    queued = front.client.post(PATH, {"input": "later", "background": True}).json()
    body = {"messages": [{"role": "user", "content": "now"}], "store": False}
    chat = front.client.post("/v1/chat/completions", body)
    assert chat.status == 200, "what is in memory is carried out where its connection ends"
    assert get(front.client, queued["id"])["status"] == "queued"
    worker = cluster.work("worker")
    assert finished(front.client, queued["id"])["status"] == "completed"
    assert worker.anonymous.get("/health").status == 200
    assert worker.health()["replicas"] == {"alive": 2, "working": 1}
    for path in ("/v1/models", PATH, "/docs", "/v1/runs"):
        assert worker.client.get(path).status == 404


def test_p15_health_says_when_the_database_is_away_and_when_it_is_back(tmp_path: Path, upstream: Upstream) -> None:
    own = pg.Server()
    try:
        cluster = Cluster(tmp_path, asyncio.run(own.database()), upstream)
        server = cluster.serve("one", NINELIVES_STORE_HOLD_S="0.5")
        assert server.anonymous.get("/readyz").status == 200
        own.stop()
        away = wait_until(lambda: (a := server.anonymous.get("/readyz")).status == 503 and a, "it is not ready")
        assert away.json()["status"] == "degraded" and away.json()["reason"] and away.headers["retry-after"]
        assert server.anonymous.get("/livez").status == 200, "whatever the store does"
        health = server.anonymous.get("/health")
        assert (health.status, health.json()["status"]) == (200, "degraded")
        detailed = server.anonymous.get("/health/detailed")
        assert detailed.status == 200 and detailed.json()["store"]["reachable"] is False
        own.start()
        wait_until(lambda: server.anonymous.get("/readyz").status == 200, "it is back")
        wait_until(lambda: server.health()["status"] == "ok", "all is well")
        assert create(server.client, "hello")["status"] == "completed"
        assert server.stop() == 0
    finally:
        own.destroy()


def test_files_are_used_on_one_machine_only_or_on_a_volume_that_is_shared(cluster: Cluster, tmp_path: Path) -> None:
    write = '[[tools=write_file:{"path":"a.txt","content":"one"}]]'
    read = '[[tools=read_file:{"path":"a.txt"}]]'
    one, two = cluster.serve("one"), cluster.serve("two")
    create(one.client, f"begin {write}")
    create(two.client, f"elsewhere {read}")
    told = json.dumps(cluster.upstream.asked("elsewhere")[-1]["messages"])
    assert "on another machine" in told
    assert not list((two.data / "workspaces").glob("*/*")), "nothing was begun there"
    shared = cluster.serve("shared", NINELIVES_SERVER_DATA_DIR=str(one.data))
    create(shared.client, f"same volume {read}")
    assert cluster.upstream.asked("same volume")[-1]["messages"][-1]["content"] == "1\tone\n"


def test_a_directory_with_unfinished_runs_moves_to_postgresql_and_back(
    cluster: Cluster, tmp_path: Path, url: str, upstream: Upstream
) -> None:
    archive = GOLDEN[-1]
    seen = json.loads(archive.with_name(archive.name[:11] + ".json").read_text())
    data = tmp_path / "old"
    with tarfile.open(archive) as tar:
        tar.extractall(data, filter="data")
    assert "checksum of both sides" in ninelives("migrate", "--from", str(data), "--to", url)
    assert "was moved to PostgreSQL" in ninelives("serve", "--port", "0", "--data-dir", str(data), status=1)
    server = cluster.serve("one")
    refused = ninelives("migrate", "--from", url, "--to", str(tmp_path / "back" / "data"), status=1)
    assert "replicas use the database: one" in refused
    _as_it_was(server, seen)
    running = started(server.client, f"again {SLOW}")
    server.kill()
    # as if its lease were over: what is killed counts as there until then
    asyncio.run(pg.server().run(url, "UPDATE replicas SET dead = true"))
    assert "no damage" in ninelives("store", "check", NINELIVES_STORE_URL=url)
    told = json.loads(ninelives("migrate", "--from", url, "--to", str(tmp_path / "back" / "data"), "--json"))
    assert len(told["checksum"]) == 64 and told["counts"]["runs"] > 9
    assert "no damage" in ninelives("store", "check", "--data-dir", str(tmp_path / "back" / "data"))
    back = start_server(tmp_path / "back", upstream.url)
    try:
        assert text_of(finished(back.client, running)) == counted(40), "what was unfinished goes on"
        _as_it_was(back, seen)
    finally:
        assert back.stop() == 0


def _as_it_was(server: Server, seen: dict[str, object]) -> None:
    """What clients of the golden directory saw then, they see now."""
    bodies, cut = seen["bodies"], str(seen["cut"])
    assert isinstance(bodies, list)
    for body in bodies:
        assert get(server.client, body["id"]) == body
    with server.client.stream(f"{PATH}/{bodies[0]['id']}?stream=true") as stream:
        assert [frame.data for frame in stream.rest()] == seen["frames"]
    assert text_of(finished(server.client, cut)) == counted(40)
    ask = PATH, {"input": "keyed"}, {"Idempotency-Key": "golden-key"}
    # 503: a machine so busy that the database is late; clients try again, and so do we
    again = wait_until(lambda: (got := server.client.post(*ask)).status != 503 and got, "the store is there", 30, 0.5)
    assert again.json().get("id") == bodies[3]["id"], again.body
    assert server.client.get(f"{PATH}/{seen['deleted']}").status == 404


def test_a_replica_that_cannot_keep_its_lease_says_so(cluster: Cluster) -> None:
    server = cluster.serve("one", NINELIVES_STORE_LEASE_S="1")
    rename = "ALTER TABLE replicas RENAME COLUMN {} TO {}"
    asyncio.run(pg.server().run(cluster.url, rename.format("beat_at", "gone")))
    wait_until(lambda: server.anonymous.get("/health").json()["status"] == "degraded", "health says so")
    assert "beat_failed" in server.log()
    asyncio.run(pg.server().run(cluster.url, rename.format("gone", "beat_at")))
    wait_until(lambda: server.anonymous.get("/health").json()["status"] == "ok", "all is well")


# What is refused at the start


def test_a_database_that_is_down_is_waited_for_and_then_told_in_one_line(tmp_path: Path) -> None:
    away = f"postgresql://me:{WORD}@127.0.0.1:1/db"
    flags = ("--store", away, "--wait-store", "1", "--port", "0", "--data-dir", str(tmp_path))
    said = ninelives("serve", *flags, status=1, API_SERVER_KEY=KEY).splitlines()
    assert "store_awaited" in said[0]
    assert said[-1].startswith("ninelives: postgresql://me:********@127.0.0.1:1/db") and "--wait-store" in said[-1]


def test_a9_a_server_that_waits_for_its_database_stops_when_it_is_told_to(tmp_path: Path) -> None:
    flags = ["--store", "postgresql://me@127.0.0.1:1/db", "--wait-store", "600", "--port", "0"]
    child = subprocess.Popen(
        [sys.executable, "-m", "ninelives", "serve", *flags, "--data-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "API_SERVER_KEY": KEY},
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    try:
        assert b"store_awaited" in child.stderr.readline()
        child.terminate()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


def test_a_url_that_cannot_be_read_is_told_without_its_password(tmp_path: Path) -> None:
    flags = ("--store", f"postgresql://me:{WORD}/@host/db", "--port", "0", "--data-dir", str(tmp_path))
    assert "%2F" in ninelives("serve", *flags, status=1, API_SERVER_KEY=KEY)


def test_a_role_that_may_not_make_tables_is_told_what_it_needs(tmp_path: Path) -> None:
    """A database that somebody else owns: since PostgreSQL 15 its schema is not everybody's."""
    asyncio.run(pg.server().run("postgres", "CREATE DATABASE theirs TEMPLATE template0 STRATEGY file_copy"))
    asyncio.run(pg.server().run("postgres", "CREATE ROLE stranger LOGIN"))
    theirs = pg.server().url("theirs").replace("postgres@", f"stranger:{WORD}@")
    flags = ("--store", theirs, "--port", "0", "--data-dir", str(tmp_path))
    said = ninelives("serve", *flags, status=1, API_SERVER_KEY=KEY)
    assert said.count("\n") == 1 and "permission denied" in said and "GRANT ALL ON SCHEMA public" in said
    with tarfile.open(GOLDEN[-1]) as tar:
        tar.extractall(tmp_path / "old", filter="data")
    said = ninelives("migrate", "--from", str(tmp_path / "old"), "--to", theirs, status=1)
    assert "nothing was moved: permission denied" in said and "GRANT ALL ON SCHEMA public" in said


def test_no_key_is_made_for_one_replica_of_many(tmp_path: Path, url: str) -> None:
    flags = ("--store", url, "--port", "0", "--data-dir", str(tmp_path))
    assert "same key" in ninelives("serve", *flags, status=1)
    assert not (tmp_path / "key").exists()


def test_a_driver_that_is_missing_is_named_in_one_line(tmp_path: Path) -> None:
    program = "import sys; sys.modules['asyncpg'] = None; from ninelives.cli import main; main()"
    flags = ["serve", "--store", f"postgresql://me:{WORD}@h/db", "--port", "0", "--data-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *flags],
        cwd=ROOT,
        env={**os.environ, "API_SERVER_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "pip install asyncpg" in done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("worker",), "a worker needs a store that servers share"),
        (("serve", "--no-worker"), "no process would execute stored runs"),
        (("serve", "--store", f"mysql://me:{WORD}@h/db"), "store.url cannot be mysql://me:********@h/db"),
        (("migrate", "--from", "a", "--to", "a"), "source and target are the same"),
        (("migrate", "--from", "/nonexistent", "--to", "b"), "there is no store in /nonexistent"),
    ],
)
def test_what_makes_no_sense_is_refused(args: tuple[str, ...], says: str, tmp_path: Path) -> None:
    assert says in ninelives(*args, status=1, HOME=str(tmp_path))


@pytest.mark.parametrize(
    ("command", "tool"),
    [("backup", "pg_dump"), ("restore", "pg_restore"), ("compact", "VACUUM"), ("set-aside", "ALTER DATABASE")],
)
def test_what_postgresql_does_better_is_named(command: str, tool: str, tmp_path: Path) -> None:
    argument = (str(tmp_path),) if command in ("backup", "restore") else ()
    said = ninelives("store", command, *argument, status=1, NINELIVES_STORE_URL=f"postgresql://me:{WORD}@h/db")
    assert tool in said


def test_a_key_that_one_replica_makes_and_revokes_counts_on_the_others(cluster: Cluster) -> None:
    one, two = cluster.serve("one"), cluster.serve("two")
    made = one.client.post("/api/keys", {"name": "n", "owner": "anna"}).json()
    there = Client(two.port, {"authorization": f"Bearer {made['key']}"})
    with there.stream(PATH, {"input": HANGS, "stream": True}) as stream:
        stream.take(3)
        begun = time.monotonic()
        assert one.client.delete(f"/api/keys/{made['id']}").status == 200
        stream.rest()
        assert stream.ended == "cut"
        assert time.monotonic() - begun < 15.0
    assert there.get("/v1/models").status == 401
