"""Data directories of every schema version open, go on where they were, and show what their clients saw (P21, P1)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.story.responses import PATH, counted, finished, get, text_of
from tests.story.server import start_server, start_upstream

HERE = Path(__file__).parent
GOLDEN = sorted(HERE.glob("schema_*.tar.gz"))


def test_the_first_and_the_newest_schema_have_a_golden_directory() -> None:
    """Schemas 2 and 3 were never given to anybody."""
    from ninelives.journal.queries import migrations

    kept = [int(path.name[7:11]) for path in GOLDEN]
    assert kept[0] == 1 and kept[-1] == migrations("sqlite")[-1][0], "run python -m tests.golden.make"


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name[:11])
def test_p21_a_data_directory_of_a_released_schema_opens_and_its_runs_go_on(archive: Path, tmp_path: Path) -> None:
    seen = json.loads(archive.with_name(archive.name[:11] + ".json").read_text())
    upstream = start_upstream(tmp_path / "upstream")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "server" / "data", filter="data")
    server = start_server(tmp_path / "server", upstream.url)
    try:
        client = server.client
        for body in seen["bodies"]:
            assert get(client, body["id"]) == body
        with client.stream(f"{PATH}/{seen['bodies'][0]['id']}?stream=true") as stream:
            assert [frame.data for frame in stream.rest()] == seen["frames"], "byte for byte what was seen then (G1)"
        assert text_of(finished(client, seen["cut"])) == counted(40), "an unfinished run goes on"
        with client.stream(f"{PATH}/{seen['cut']}?stream=true") as stream:
            replay = [frame.data for frame in stream.rest()]
        assert replay[: len(seen["seen"])] == seen["seen"], "what was seen is a prefix of the replay (P1)"
        assert client.get(f"/v1/chat/completions/{seen['chat']}").status == 200
        assert client.get(f"{PATH}/{seen['deleted']}").status == 404
        sessions = {each["id"]: each for each in client.get("/api/sessions").json()["data"]}
        assert (sessions["golden-session"]["turns"], sessions["golden-session"]["preview"]) == (1, "fourth")
        talk = seen["bodies"][0]["conversation"]["id"]
        assert talk in sessions and client.get("/api/sessions?search=second").json()["data"][0]["id"] == talk
        again = client.post(PATH, {"input": "keyed"}, {"Idempotency-Key": "golden-key"}).json()
        assert again["id"] == seen["bodies"][3]["id"]
        client.post(PATH, {"input": "third turn", "conversation": "golden"}).json()
        told = upstream.asked("third turn")[-1]["messages"]
        assert [m["role"] for m in told if m["role"] in ("user", "tool")] == ["user", "tool", "tool", "user", "user"]
    finally:
        assert server.stop() == 0
        upstream.process.stop()
