"""Data directories of hermes-agent for tests, written with SQL of our own. Owns: the tables that an import reads, in
the two forms of `conversations`, and one story in them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

RESPONSES = """
CREATE TABLE responses (response_id TEXT PRIMARY KEY, data TEXT NOT NULL, accessed_at REAL NOT NULL);
"""
LEGACY = "CREATE TABLE conversations (name TEXT PRIMARY KEY, response_id TEXT NOT NULL);"
NEWER = """
CREATE TABLE conversations (name TEXT PRIMARY KEY, latest_completed_response_id TEXT, active_response_id TEXT);
"""
STATE = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model TEXT, system_prompt TEXT,
  started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, input_tokens INTEGER, output_tokens INTEGER, title TEXT);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT,
  tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, active INTEGER NOT NULL DEFAULT 1);
"""
FIRST, SECOND, UNFINISHED = (f"resp_{digit * 28}" for digit in "12f")
ODD = "resp_with-a-dash-0000"
SESSION = "20261101_120000_abcdef"
AT = 1_790_000_000


def turn(n: int, **more: Any) -> list[dict[str, Any]]:
    """A turn with a tool call."""
    call = {"id": f"call_{n}", "type": "function", "function": {"name": "terminal", "arguments": '{"command":"ls"}'}}
    return [
        {"role": "user", "content": f"question {n} about a walrus"},
        {"role": "assistant", "content": None, "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": f"call_{n}", "content": f"file-{n}.txt"},
        {"role": "assistant", "content": f"answer {n}"},
    ]


def make_home(home: Path, *, legacy: bool = True, schema: int = 22) -> Path:
    """A chain of two responses in a named conversation, an unfinished one, and three sessions."""
    home.mkdir()
    with sqlite3.connect(home / "response_store.db") as db:
        db.executescript(RESPONSES + (LEGACY if legacy else NEWER))
        said: list[dict[str, Any]] = []
        for n, name in enumerate((FIRST, SECOND, ODD)):
            said = [*said, *turn(n)]
            _put(db, name, "completed", said, AT + n)
        _put(db, UNFINISHED, "in_progress", said[:1], AT + 9)
        db.execute("INSERT INTO responses VALUES ('resp_broken00', '{', 0)")
        columns = "(name, response_id)" if legacy else "(name, latest_completed_response_id)"
        db.execute(f"INSERT INTO conversations {columns} VALUES ('my-talk', ?), ('lost', 'resp_gone0000')", (SECOND,))
    with sqlite3.connect(home / "state.db") as db:
        db.executescript(STATE)
        db.execute("INSERT INTO schema_version VALUES (?)", (schema,))
        _session(db, SESSION, "api_server", "Walruses", [*turn(0), *turn(1)])
        parts = "\0json:" + json.dumps([{"type": "text", "text": "look at this giraffe"}])
        _session(
            db, "cli 1", "cli", None, [{"role": "user", "content": parts}, {"role": "assistant", "content": "tall"}]
        )
        _session(db, "empty", "cli", None, [])
        db.execute("UPDATE messages SET active = 0 WHERE content = 'tall'")
        db.execute("UPDATE sessions SET end_reason = 'user_exit' WHERE id = 'cli 1'")
    (home / ".env").write_text(
        "# keys\nexport API_SERVER_PORT='8650'\nOPENROUTER_API_KEY=sk-or-1\nTELEGRAM_BOT_TOKEN=x\n"
    )
    (home / "config.yaml").write_text(
        "model:\n  default: some/model\n  provider: openrouter\nagent:\n  max_turns: 70\n  verbose: true\n"
        "mcp_servers:\n  fs:\n    command: npx\n    args: [a, b]\n_config_version: 12\n"
    )
    return home


def _put(db: sqlite3.Connection, name: str, status: str, said: list[dict[str, Any]], at: int) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    body = {
        "id": name,
        "object": "response",
        "status": status,
        "created_at": at,
        "model": "hermes-agent",
        "usage": usage,
    }
    data = {"response": body, "conversation_history": said, "instructions": "Be brief.", "session_id": SESSION}
    db.execute("INSERT INTO responses VALUES (?, ?, ?)", (name, json.dumps(data), at))


def _session(db: sqlite3.Connection, name: str, source: str, title: str | None, said: list[dict[str, Any]]) -> None:
    values = (name, source, "hermes-agent", "You are helpful.", AT, 100, 50, title)
    columns = "(id, source, model, system_prompt, started_at, input_tokens, output_tokens, title)"
    db.execute(f"INSERT INTO sessions {columns} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    for n, message in enumerate(said):
        calls = json.dumps(message["tool_calls"]) if message.get("tool_calls") else None
        row = (name, message["role"], message["content"], message.get("tool_call_id"), calls, AT + n)
        columns = "(session_id, role, content, tool_call_id, tool_calls, timestamp)"
        db.execute(f"INSERT INTO messages {columns} VALUES (?, ?, ?, ?, ?, ?)", row)
