"""Codex CLI: `codex exec --json` with a provider of its own in config.toml: one command per job. Its own tool is the
shell that it brings along; it must end by itself, after one request per turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cli
from line import Seen, serve

CODEX = Path(__file__).parents[1] / "node" / "node_modules" / ".bin" / "codex"
CONFIG = """
model = "{model}"
model_provider = "ninelives"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.ninelives]
name = "Ninelives"
base_url = "{base}/v1"
env_key = "NINELIVES_KEY"
wire_api = "responses"
http_headers = {{ {headers} }}
[analytics]
enabled = false
"""


def event(line: str, seen: Seen) -> None:
    got = json.loads(line)
    item = got.get("item", {})
    if got["type"] == "item.completed" and item.get("type") == "agent_message":
        seen.more.setdefault("messages", []).append(item["text"])
    elif got["type"] == "item.completed" and item.get("type") == "reasoning":
        seen.reasoning += item["text"]
    elif got["type"] == "item.completed" and item.get("type") == "command_execution":
        seen.ran.append("exec_command")
    elif got["type"] == "error":
        seen.more.setdefault("retries", []).append(got["message"])
    elif got["type"] == "turn.failed":
        seen.failed(got["type"], got["error"]["message"])


def ask(job: dict[str, Any], seen: Seen) -> None:
    home = cli.room(job, "codex")
    headers = ", ".join(f'"{name}" = "{value}"' for name, value in job["headers"].items())
    (home / "config.toml").write_text(CONFIG.format(**{**job, "headers": headers}))
    prompt = job["prompt"].replace('get_weather:{"city":"Oslo"}', 'exec_command:{"cmd":"echo sunny in Oslo"}')
    args = [str(CODEX), "exec", "--json", "--skip-git-repo-check", "-C", str(home / "work"), prompt]
    done = cli.run(args, {"CODEX_HOME": str(home), "NINELIVES_KEY": job["key"]}, home / "work")
    for line in done.out.splitlines():
        if line.startswith("{"):
            event(line, seen)
    seen.text = "".join(seen.more.get("messages", []))
    seen.more["stderr"] = done.err[-500:]
    if done.code and seen.error is None:
        seen.failed("exit", done.err[-500:])


if __name__ == "__main__":
    serve({"responses.stream": ask})
