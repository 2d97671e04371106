"""pi: `pi -p --mode json`, with a provider of its own in models.json, over each of the three APIs that it speaks."""

from __future__ import annotations

import json
from typing import Any

import cli
from line import Seen, serve

APIS = {
    "chat.stream": "openai-completions",
    "responses.stream": "openai-responses",
    "messages.stream": "anthropic-messages",
}


def event(line: str, seen: Seen) -> None:
    """One event; of an answer that broke off, what came of it."""
    got = json.loads(line)
    if got["type"] == "message_end" and got["message"]["role"] == "assistant":
        message = got["message"]
        seen.text = "".join(part["text"] for part in message["content"] if part["type"] == "text")
        seen.ran += [part["name"] for part in message["content"] if part["type"] == "toolCall"]
        seen.error = None
        if message["stopReason"] in ("error", "aborted"):
            seen.failed(message["stopReason"], message.get("errorMessage", ""))
    elif got["type"] == "auto_retry_start":
        seen.more.setdefault("retries", []).append(got["errorMessage"])


def ask(job: dict[str, Any], seen: Seen) -> None:
    home, api = cli.room(job, "pi"), APIS[job["way"]]
    provider = {
        "baseUrl": job["base"] if "messages" in job["way"] else f"{job['base']}/v1",
        "api": api,
        "apiKey": job["key"],
        "models": [{"id": job["model"]}],
    }
    (home / "models.json").write_text(json.dumps({"providers": {"ninelives": provider}}))
    args = ["-p", "--mode", "json", "--no-session", "--provider", "ninelives", "--model", job["model"], job["prompt"]]
    done = cli.run([cli.of("pi", "pi"), *args], {"PI_CODING_AGENT_DIR": str(home), "PI_OFFLINE": "1"}, home / "work")
    for line in done.out.splitlines():
        if line.startswith("{"):
            event(line, seen)
    seen.more["stderr"] = done.err[-500:]
    if done.code and seen.error is None:
        seen.failed("exit", done.err[-500:])


if __name__ == "__main__":
    serve(dict.fromkeys(APIS, ask))
