"""Runs that may ask a person. Owns: scripts that call one tool, starting a run until it asks or ends, and answering.
Refuses to know: what any test wants."""

from __future__ import annotations

import json
from typing import Any

from tests.story.server import Client, Server, wait_until

RUNS, CHAT, GRANTS = "/v1/runs", "/v1/chat/completions", "/v1/approvals"
ASKED, DONE = "waiting_for_approval", "completed"


def script(tool: str, arguments: str | dict[str, Any]) -> str:
    """A message that makes the fake upstream call a tool. Text is passed on as it is, escapes included."""
    return f"[[tools={tool}:{arguments if isinstance(arguments, str) else json.dumps(arguments)}]]"


def begin(client: Client, text: str, model: str = "careful", **more: Any) -> tuple[str, str]:
    """Start a run, and wait until it asks or ends."""
    run = str(client.post(RUNS, {"input": text, "model": model, **more}).json()["run_id"])

    def settled() -> Any:
        status = client.get(f"{RUNS}/{run}").json()["status"]
        return status if status in (ASKED, DONE, "failed", "incomplete") else None

    return run, wait_until(settled, "a question or an end", 60.0)


def finish(client: Client, run: str, choice: str) -> None:
    given = client.post(f"{RUNS}/{run}/approval", {"choice": choice})
    assert given.status == 200, given.body
    wait_until(lambda: client.get(f"{RUNS}/{run}").json()["status"] == DONE, "the end", 60.0)


def made(server: Server, name: str) -> bool:
    return any(True for _ in (server.data / "workspaces").rglob(name))
