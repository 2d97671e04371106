"""Codex CLI: `codex exec --json` with a provider of its own in config.toml: one command per job. Its own tool is the
shell that it brings along; it must end by itself, after one request per turn."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from line import Seen, serve

CODEX = Path(__file__).parents[1] / "node" / "node_modules" / ".bin" / "codex"
CONFIG = """
model = "{model}"
model_provider = "holdfast"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.holdfast]
name = "Holdfast"
base_url = "{base}/v1"
env_key = "HOLDFAST_KEY"
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
    elif got["type"] == "turn.failed":
        seen.failed(got["type"], got["error"]["message"])


def ask(job: dict[str, Any], seen: Seen) -> None:
    home = Path(job["where"]) / "codex" / job["lane"]
    (home / "work").mkdir(parents=True)
    headers = ", ".join(f'"{name}" = "{value}"' for name, value in job["headers"].items())
    (home / "config.toml").write_text(CONFIG.format(**{**job, "headers": headers}))
    env = {**os.environ, "CODEX_HOME": str(home), "HOLDFAST_KEY": job["key"]}
    prompt = job["prompt"].replace('get_weather:{"city":"Oslo"}', 'exec_command:{"cmd":"echo sunny in Oslo"}')
    args = [str(CODEX), "exec", "--json", "--skip-git-repo-check", "-C", str(home / "work"), prompt]
    done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            event(line, seen)
    seen.text = "".join(seen.more.get("messages", []))
    seen.more["stderr"] = done.stderr[-500:]
    if done.returncode and seen.error is None:
        seen.failed("exit", done.stderr[-500:])


if __name__ == "__main__":
    serve({"responses.stream": ask})
