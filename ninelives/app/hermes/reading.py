"""The data directory of hermes-agent. Owns: reading response_store.db in both schemas, state.db, config.yaml and .env,
and the reasons why one is refused. Everything is opened for reading only. Refuses to know: what becomes of it."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from ninelives.core.history import paired
from ninelives.core.spec import Message

RESPONSES, STATE = "response_store.db", "state.db"
STATE_SCHEMA = 22
"""The newest schema of state.db that is known, that of hermes-agent 0.19."""
LATEST = ("latest_completed_response_id", "latest_completed", "response_id")
"""Columns of `conversations` that name the last response of one. The last is that of older releases."""
_JSON = "\0json:"
"""How hermes-agent marks content that is not plain text."""
_ENV = re.compile(r"\A(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)\Z")
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
ROLES = ("user", "assistant", "tool", "system")


class ImportRefused(Exception):
    """The directory cannot be imported. The text says why, and nothing was changed."""


class HermesResponse(Struct, frozen=True):
    """A stored response. `said` is everything from the first turn on, its own answer included."""

    id: str
    body: dict[str, Any]
    said: list[Message]
    instructions: str | None
    session: str


class HermesSession(Struct, frozen=True, kw_only=True):
    """A session. `turns` are its messages, each turn with the time of its last message in milliseconds."""

    id: str
    title: str
    source: str
    model: str
    end_reason: str
    started_at: int
    input_tokens: int
    output_tokens: int
    turns: list[tuple[int, list[Message]]]


class HermesData(Struct):
    """All that was read."""

    responses: list[HermesResponse] = []
    conversations: dict[str, str] = {}
    """The id of the last response, by the name of a conversation."""
    sessions: list[HermesSession] = []
    config: dict[str, Any] = {}
    env: dict[str, str] = {}
    left: list[str] = []
    """What could not be read, a sentence each."""


def read_hermes(home: Path) -> HermesData:
    """Read a data directory, such as ~/.hermes. Raises ImportRefused."""
    if not home.is_dir():
        raise ImportRefused(f"{home} is not a directory")
    if not any((home / name).exists() for name in (RESPONSES, STATE, "config.yaml", ".env")):
        raise ImportRefused(f"{home} has no {RESPONSES}, {STATE}, config.yaml or .env of hermes-agent")
    data = HermesData()
    if (home / RESPONSES).exists():
        with _opened(home / RESPONSES) as db:
            _read_responses(db, data)
    if (home / STATE).exists():
        with _opened(home / STATE) as db:
            _read_state(db, data)
    _read_config(home / "config.yaml", data)
    _read_env(home / ".env", data)
    return data


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A database, checked, in one read transaction. Raises ImportRefused where it is damaged."""
    try:
        db = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
        try:
            db.row_factory = sqlite3.Row
            db.execute("BEGIN")
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise ImportRefused(f"{path} is damaged: {found}. Repair it with hermes-agent first")
            yield db
        finally:
            db.close()
    except sqlite3.DatabaseError as error:
        raise ImportRefused(f"{path} cannot be read: {error}") from error


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in db.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def _need(found: set[str], wanted: set[str], where: str) -> None:
    if missing := sorted(wanted - found):
        words = f"{where} has no {', '.join(missing)}: it is of another release than those that are known"
        raise ImportRefused(f"{words}. Upgrade ninelives")


def _read_responses(db: sqlite3.Connection, data: HermesData) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > 1:
        raise ImportRefused(f"{RESPONSES} has schema {version}, which is newer than this release. Upgrade ninelives")
    _need(_columns(db, "responses"), {"response_id", "data"}, f"{RESPONSES}: responses")
    names = _columns(db, "conversations")
    latest = next((name for name in LATEST if name in names), None)
    if names and latest is None:
        _need(names, {"response_id"}, f"{RESPONSES}: conversations")
    for row in db.execute("SELECT response_id, data FROM responses ORDER BY rowid"):
        response = _response(row["response_id"], row["data"])
        if response is None:
            data.left.append(f"response {row['response_id']}: its content is not readable")
        else:
            data.responses.append(response)
    if latest is not None:
        # the column is one of LATEST
        rows = db.execute(f"SELECT name, {latest} AS latest FROM conversations WHERE {latest} IS NOT NULL")
        data.conversations = {row["name"]: row["latest"] for row in rows}


def _response(name: str, stored: object) -> HermesResponse | None:
    try:
        found = _loads(str(stored))
        body, said = found["response"], found["conversation_history"]
        if not isinstance(body, dict) or not isinstance(said, list):
            return None
        instructions = found.get("instructions")
        messages = messages_of([each for each in said if isinstance(each, dict)])
        words = instructions if isinstance(instructions, str) and instructions else None
        return HermesResponse(name, body, messages, words, str(found.get("session_id") or ""))
    except (ValueError, KeyError, TypeError):
        return None


def _read_state(db: sqlite3.Connection, data: HermesData) -> None:
    if _columns(db, "schema_version"):
        version = int((db.execute("SELECT MAX(version) AS n FROM schema_version").fetchone() or {"n": 0})["n"] or 0)
        if version > STATE_SCHEMA:
            words = f"{STATE} has schema {version}, and this release knows up to {STATE_SCHEMA}"
            raise ImportRefused(f"{words}. Upgrade ninelives")
    _need(_columns(db, "sessions"), {"id", "source", "started_at"}, f"{STATE}: sessions")
    wanted = {"id", "session_id", "role", "content", "tool_calls", "tool_call_id", "timestamp"}
    columns = _columns(db, "messages")
    _need(columns, wanted, f"{STATE}: messages")
    live = " AND active = 1" if "active" in columns else ""
    for row in db.execute("SELECT * FROM sessions ORDER BY started_at, id"):
        said = db.execute(f"SELECT * FROM messages WHERE session_id = ?{live} ORDER BY id", (row["id"],))
        data.sessions.append(_session(dict(row), [dict(message) for message in said]))


def _session(row: dict[str, Any], messages: list[dict[str, Any]]) -> HermesSession:
    return HermesSession(
        id=str(row["id"]),
        title=str(row.get("title") or ""),
        source=str(row["source"] or ""),
        model=str(row.get("model") or ""),
        end_reason=str(row.get("end_reason") or ""),
        started_at=int(float(row["started_at"]) * 1000),
        input_tokens=int(row.get("input_tokens") or 0),
        output_tokens=int(row.get("output_tokens") or 0),
        turns=_turns(messages),
    )


def _turns(rows: list[dict[str, Any]]) -> list[tuple[int, list[Message]]]:
    """The messages of a session in turns. Each begins with what the user says."""
    times = [int(float(row["timestamp"]) * 1000) for row in rows]
    read = [_message(row) for row in rows]
    kept = {id(message): at for message, at in zip(read, times, strict=True) if message is not None}
    turns: list[tuple[int, list[Message]]] = []
    last_role = ""
    for message in read:
        if message is None:
            continue
        if not turns or (message["role"] == "user" and last_role != "user"):
            turns.append((0, []))
        turns[-1][1].append(message)
        turns[-1] = (kept[id(message)], turns[-1][1])
        last_role = str(message["role"])
    whole = [(at, list(paired(messages, ()))) for at, messages in turns]
    return [(at, messages) for at, messages in whole if messages]


def messages_of(rows: list[dict[str, Any]]) -> list[Message]:
    """Messages in the form of Chat Completions, without calls that have no result."""
    return list(paired([message for row in rows if (message := _message(row)) is not None], ()))


def _message(row: dict[str, Any]) -> Message | None:
    role = row.get("role")
    if role not in ROLES:
        return None
    content = row.get("content")
    if isinstance(content, str) and content.startswith(_JSON):
        content = _json(content[len(_JSON) :])
    message: Message = {"role": role, "content": content if isinstance(content, str | list) else ""}
    calls = row.get("tool_calls")
    calls = _json(calls) if isinstance(calls, str) else calls
    if role == "assistant" and isinstance(calls, list) and (whole := [c for each in calls if (c := _call(each))]):
        message["tool_calls"] = whole
    if role == "tool":
        if not row.get("tool_call_id"):
            return None
        message["tool_call_id"] = str(row["tool_call_id"])
    return message


def _call(each: object) -> dict[str, Any] | None:
    if not isinstance(each, dict) or not isinstance(each.get("function"), dict):
        return None
    name, arguments = each["function"].get("name"), each["function"].get("arguments")
    if not each.get("id") or not isinstance(name, str):
        return None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": str(each["id"]), "type": "function", "function": {"name": name, "arguments": text}}


def _json(text: str) -> Any:
    try:
        return _loads(text)
    except ValueError:
        return text


def _loads(text: str) -> Any:
    """What the JSON says. Half of a surrogate pair becomes a question mark: no store can hold it."""
    found = json.loads(text)
    if not _HALF_PAIR.search(text):
        return found
    return json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))


def _read_config(path: Path, data: HermesData) -> None:
    if not path.exists():
        return
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError:
        data.left.append(f"{path}: reading it needs the package PyYAML. Run: pip install pyyaml")
        return
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ImportRefused(f"{path} cannot be read: {error}") from error
    if isinstance(found, dict):
        data.config = found


def _read_env(path: Path, data: HermesData) -> None:
    if not path.exists():
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ImportRefused(f"{path} cannot be read: {error}") from error
    for line in lines:
        if found := _ENV.match(line.strip()):
            data.env[found.group(1)] = found.group(2).strip().strip("'\"")
