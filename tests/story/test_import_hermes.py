"""ninelives import-hermes (F2): responses, conversations, sessions and settings of hermes-agent go on here."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ninelives.app.settings import load
from ninelives.cli import main
from tests.story import hermes_home
from tests.story.hermes_home import FIRST, ODD, SECOND, SESSION, UNFINISHED, make_home
from tests.story.responses import PATH, create, text_of
from tests.story.server import Upstream, start_server

pytestmark = pytest.mark.xdist_group("processes")


class Import:
    """Imports of one directory into one store."""

    def __init__(self, where: Path, home: Path) -> None:
        self.home = home
        self.data = where / "server" / "data"
        self.config = where / "made.toml"

    def result(self, *flags: str) -> Result:
        args = [str(self.home), "--data-dir", str(self.data), "--write-config", str(self.config), *flags]
        return CliRunner().invoke(main, ["import-hermes", *args], catch_exceptions=False)

    def run(self, *flags: str) -> dict[str, Any]:
        result = self.result("--json", *flags)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))


@pytest.fixture
def importing(tmp_path: Path) -> Import:
    return Import(tmp_path, make_home(tmp_path / "hermes"))


def test_f2_without_apply_the_plan_is_printed_and_nothing_is_changed(importing: Import) -> None:
    before = {path.name: path.read_bytes() for path in importing.home.iterdir()}
    plan = importing.run()
    assert (plan["applied"], plan["responses"], plan["conversations"], plan["sessions"]) == (False, 3, 1, 2)
    assert not importing.data.exists() and not importing.config.exists()
    assert {path.name: path.read_bytes() for path in importing.home.iterdir()} == before
    words = importing.result().stdout
    assert "would be imported: 3 responses" in words and "sk-or-1" not in words and "--apply" in words


def test_f2_an_import_says_what_was_taken_changed_and_left_and_can_be_repeated(importing: Import) -> None:
    first = importing.run("--apply")
    assert (first["responses"], first["conversations"], first["sessions"], first["present"]) == (3, 1, 2, 0)
    assert [line.partition(":")[0] for line in first["changed"]] == ["session cli 1", f"response {ODD}"]
    left = "\n".join(first["left"])
    for words in (
        UNFINISHED,
        "resp_broken00",
        "conversation lost",
        "session empty",
        "TELEGRAM_BOT_TOKEN",
        "agent.verbose",
    ):
        assert words in left, words
    again = importing.run("--apply")
    assert (again["responses"], again["sessions"], again["present"]) == (0, 0, 5)
    assert "already" in again["config"]
    with sqlite3.connect(importing.data / "ninelives.db") as db:
        assert db.execute("SELECT COUNT(*) FROM runs").fetchone() == (3,)
    checked = CliRunner().invoke(main, ["store", "check", "--data-dir", str(importing.data)])
    assert checked.exit_code == 0, checked.output


def test_f2_half_a_surrogate_pair_in_hermes_data_does_not_stop_an_import(importing: Import) -> None:
    half = r"wal\ud83drus"
    with sqlite3.connect(importing.home / "response_store.db") as db:
        db.execute("UPDATE responses SET data = replace(data, 'walrus', ?)", (half,))
    with sqlite3.connect(importing.home / "state.db") as db:
        db.execute("UPDATE messages SET tool_calls = replace(tool_calls, 'terminal', ?)", (half,))
        db.execute("UPDATE messages SET content = replace(content, 'giraffe', ?)", (half,))
    done = importing.run("--apply")
    assert (done["responses"], done["sessions"]) == (3, 2)


def test_f2_settings_become_a_configuration_file_that_is_never_replaced(importing: Import) -> None:
    assert "was created" in importing.run("--apply")["config"]
    assert importing.config.stat().st_mode & 0o777 == 0o600
    settings = load(importing.config, {}, {}).settings
    assert (settings.server.port, settings.server.unknown_model) == (8650, "default")
    assert (settings.model.name, settings.model.api_key) == ("some/model", "sk-or-1")
    assert settings.model.url.startswith("https://openrouter") and settings.agent.max_rounds == 70
    assert settings.tables.mcp == {"fs": {"command": "npx", "args": ["a", "b"]}}
    importing.config.write_text("# mine\n")
    assert "stays as it is" in importing.run("--apply")["config"] and importing.config.read_text() == "# mine\n"


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "newer"])
def test_f2_chains_conversations_and_sessions_of_the_old_store_go_on(
    upstream: Upstream, tmp_path: Path, legacy: bool
) -> None:
    importing = Import(tmp_path, make_home(tmp_path / "hermes", legacy=legacy))
    importing.run("--apply")
    server = start_server(tmp_path / "server", upstream.url)
    try:
        client = server.client
        old = client.get(f"{PATH}/{FIRST}")
        assert old.status == 200 and old.json()["status"] == "completed" and text_of(old.json()) == "answer 0"
        assert [item["type"] for item in old.json()["output"]][:2] == ["function_call", "function_call_output"]
        assert old.json()["created_at"] == hermes_home.AT and old.json()["usage"]["total_tokens"] == 15
        create(client, f"goes on {legacy}", previous_response_id=FIRST)
        told = [message["content"] for message in upstream.asked(f"goes on {legacy}")[-1]["messages"]]
        assert "answer 0" in told and "file-0.txt" in told and "answer 1" not in told
        shown = client.get(f"/api/sessions/{SESSION}/messages").json()["data"]
        assert f"goes on {legacy}" in [message["content"] for message in shown], "the newest branch is shown"
        create(client, f"talks on {legacy}", conversation="my-talk")
        told = [message["content"] for message in upstream.asked(f"talks on {legacy}")[-1]["messages"]]
        assert "answer 0" in told and "answer 1" in told
        create(client, f"session on {legacy}", {"x-hermes-session-id": SESSION})
        assert "answer 1" in str(upstream.asked(f"session on {legacy}")[-1]["messages"])
        sessions = {each["id"]: each for each in client.get("/api/sessions").json()["data"]}
        walrus = sessions[SESSION]
        assert (walrus["title"], walrus["source"], walrus["turns"]) == ("Walruses", "api_server", 3 + 1)
        (cli,) = (each for name, each in sessions.items() if name.startswith("cli-1-"))
        assert (cli["preview"], cli["end_reason"], cli["message_count"]) == ("look at this giraffe", "user_exit", 1)
        hits = client.get("/api/sessions?search=giraffe").json()["data"]
        assert [each["id"] for each in hits] == [cli["id"]]
        assert client.get(f"{PATH}/{SECOND}").status == 200
    finally:
        assert server.stop() == 0
    assert importing.run("--apply")["responses"] == 0


def test_f2_a_running_server_is_not_written_to(upstream: Upstream, importing: Import, tmp_path: Path) -> None:
    server = start_server(tmp_path / "server", upstream.url)
    try:
        assert importing.run()["responses"] == 3, "a plan can be made"
        refused = importing.result("--apply")
        assert refused.exit_code == 1 and "Stop the server first" in refused.output
    finally:
        assert server.stop() == 0


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(b"this is not a database, whatever its name says" * 100)


def no_messages(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE messages DROP COLUMN content")


def newer_store(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")


@pytest.mark.parametrize(
    ("name", "spoil", "reason"),
    [
        ("response_store.db", damage, "response_store.db"),
        ("state.db", cut, "not a database"),
        ("state.db", no_messages, "has no content"),
        ("response_store.db", newer_store, "schema 7"),
        ("config.yaml", lambda path: path.write_text("model: [unclosed"), "config.yaml cannot be read"),
    ],
    ids=["damaged", "no database", "columns", "newer", "yaml"],
)
def test_f2_a_damaged_or_newer_directory_is_refused_with_its_reason(
    importing: Import, name: str, spoil: Any, reason: str
) -> None:
    spoil(importing.home / name)
    refused = importing.result("--apply")
    assert refused.exit_code == 1 and "nothing was imported" in refused.output and reason in refused.output
    assert not importing.data.exists() and not importing.config.exists()


def test_f2_a_newer_state_is_refused_and_so_is_another_directory(tmp_path: Path) -> None:
    newer = Import(tmp_path, make_home(tmp_path / "newer", schema=99)).result()
    assert newer.exit_code == 1 and "schema 99" in newer.output and "Upgrade ninelives" in newer.output
    (tmp_path / "other").mkdir()
    other = Import(tmp_path, tmp_path / "other").result()
    assert other.exit_code == 1 and "of hermes-agent" in other.output
    shutil.rmtree(tmp_path / "other")
    assert "is not a directory" in Import(tmp_path, tmp_path / "other").result().output
