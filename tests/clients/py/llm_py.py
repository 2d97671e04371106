"""llm, the command, with an OpenAI-compatible model from extra-openai-models.yaml: one command per job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from line import WEATHER, Seen, serve

FUNCTION = f'def get_weather(city: str) -> str:\n    "Weather"\n    return {WEATHER!r}\n'


def ask(job: dict[str, Any], seen: Seen) -> None:
    home = Path(job["where"]) / "llm" / job["lane"]
    home.mkdir(parents=True)
    model = {"model_id": "ninelives", "model_name": job["model"], "api_base": f"{job['base']}/v1"}
    model |= {"supports_tools": True, "api_key_name": "ninelives", "headers": job["headers"]}  # type: ignore[dict-item]
    (home / "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
    args = [sys.executable, "-m", "llm", "prompt", "-m", "ninelives", "--no-log", "--key", job["key"]]
    args += [] if job["way"] == "chat.stream" else ["--no-stream"]
    args += ["--functions", FUNCTION, "--tools-debug"] if job["case"] == "own" else []
    env = {**os.environ, "LLM_USER_PATH": str(home)}
    args.append(job["prompt"])
    # without a stdin of its own it would read the next jobs as its prompt
    done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL)
    seen.text = done.stdout.removesuffix("\n")
    seen.more["stderr"] = done.stderr[-500:]
    seen.ran += ["get_weather"] * done.stderr.count("Tool call: get_weather")
    if done.returncode:
        seen.failed("exit", done.stderr)


if __name__ == "__main__":
    serve({"chat": ask, "chat.stream": ask})
