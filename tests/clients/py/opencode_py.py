"""opencode: `opencode run --format json`, with a provider of its own in opencode.json, over each of the three APIs for
which it brings a package of the Vercel AI SDK along."""

from __future__ import annotations

import json
from typing import Any

import cli
from line import Seen, serve

PACKAGES = {
    "chat.stream": "@ai-sdk/openai-compatible",
    "responses.stream": "@ai-sdk/openai",
    "messages.stream": "@ai-sdk/anthropic",
}


def event(line: str, seen: Seen) -> None:
    got = json.loads(line)
    if got["type"] == "text":
        seen.text += got["part"]["text"]
    elif got["type"] == "tool_use":
        seen.more.setdefault("shown", []).append(got["part"]["tool"])  # also those of the server
    elif got["type"] == "error":
        seen.failed(got["error"].get("name", "error"), json.dumps(got["error"].get("data", {})))


def ask(job: dict[str, Any], seen: Seen) -> None:
    """With a title of its own, since opencode asks the same model for one otherwise, with the same words. The prompt
    comes by stdin: as an argument it would be quoted."""
    home, model = cli.room(job, "opencode"), f"ninelives/{job['model']}"
    provider = {
        "npm": PACKAGES[job["way"]],
        "options": {"baseURL": f"{job['base']}/v1", "apiKey": job["key"]},
        "models": {job["model"]: {}},
    }
    config = {"provider": {"ninelives": provider}, "model": model, "small_model": model, "autoupdate": False}
    (home / "opencode.json").write_text(json.dumps(config))
    env = {
        "OPENCODE_CONFIG": str(home / "opencode.json"),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
    }
    args = [cli.of("opencode", "opencode"), "run", "--format", "json", "--title", "a title", "-m", model]
    done = cli.run(args, env, home / "work", job["prompt"])
    for line in done.out.splitlines():
        if line.startswith("{"):
            event(line, seen)
    seen.more["stderr"] = done.err[-500:]
    if done.code and seen.error is None:
        seen.failed("exit", done.err[-500:])


if __name__ == "__main__":
    serve(dict.fromkeys(PACKAGES, ask))
