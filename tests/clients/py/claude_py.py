"""Claude Code: `claude -p --output-format stream-json`, set up by environment variables alone."""

from __future__ import annotations

import json
from typing import Any

import cli
from line import Seen, serve


def event(line: str, seen: Seen) -> None:
    got = json.loads(line)
    if got["type"] == "assistant":
        for block in got["message"]["content"]:
            if block["type"] == "text":
                seen.text += block["text"]
            elif block["type"] == "tool_use":
                seen.ran.append(block["name"])
    elif got["type"] == "result":
        seen.more["result"] = got.get("result")
        if got["is_error"]:
            seen.failed(got["subtype"], got.get("result") or "")
    elif got["type"] == "system" and got.get("subtype") == "api_retry":
        seen.more.setdefault("retries", []).append(got.get("error"))


def ask(job: dict[str, Any], seen: Seen) -> None:
    home, model = cli.room(job, "claude"), job["model"]
    env = {
        "CLAUDE_CONFIG_DIR": str(home),
        "ANTHROPIC_BASE_URL": job["base"],
        "ANTHROPIC_AUTH_TOKEN": job["key"],
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    args = [cli.of("claude", "claude"), "-p", "--verbose", "--output-format", "stream-json", job["prompt"]]
    done = cli.run(args, env, home / "work")
    for line in done.out.splitlines():
        if line.startswith("{"):
            event(line, seen)
    seen.more["stderr"] = done.err[-500:]
    if done.code and seen.error is None:
        seen.failed("exit", done.err[-500:])


if __name__ == "__main__":
    serve({"messages.stream": ask})
