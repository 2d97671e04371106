"""aider: `aider --message` in the mode that only answers, streamed and not."""

from __future__ import annotations

import re
import sys
from typing import Any

import cli
from line import Seen, serve

ALONE = ("--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-show-model-warnings")
PLAIN = ("--no-pretty", "--no-fancy-input", "--no-suggest-shell-commands", "--no-detect-urls", "--chat-mode", "ask")


def ask(job: dict[str, Any], seen: Seen) -> None:
    home = cli.room(job, "aider")
    args = [sys.executable, "-m", "aider", *ALONE, *PLAIN, "--model", f"openai/{job['model']}"]
    args += ["--openai-api-base", f"{job['base']}/v1", "--openai-api-key", job["key"]]
    args += ["--stream" if job["way"].endswith(".stream") else "--no-stream", "--message", job["prompt"]]
    done = cli.run(args, {"HOME": str(home)}, home / "work")
    seen.text = re.sub(r"\n+Tokens: [^\n]*\n*\Z", "", done.out)
    seen.more["stderr"] = done.err[-500:]
    if done.code:
        seen.failed("exit", done.err[-500:])


if __name__ == "__main__":
    serve({"chat": ask, "chat.stream": ask})
