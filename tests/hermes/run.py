"""`make test-hermes WEBUI_GATEWAY=/path/to/hermes-webui`: the gateway client of hermes-webui against a server, as a
table. It downloads nothing: the checkout is given. Owns: the server, its upstream, and the environment of that client.
Refuses to know: what the client asks (client.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.story.server import KEY, ROOT, start_server, start_upstream

CONFIG = '[profiles.careful]\napproval = "on-write"\n'
LIMIT_S = 600


def client_rows(webui: Path, python: str, url: str, home: Path) -> list[dict[str, object]]:
    """What the client saw, row by row."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HERMES_HOME": str(home / ".hermes"),
        "PYTHONPATH": str(webui),
        "HERMES_WEBUI_CHAT_BACKEND": "gateway",
        "HERMES_WEBUI_GATEWAY_BASE_URL": url,
        "HERMES_WEBUI_GATEWAY_API_KEY": KEY,
        "GATEWAY_HEALTH_URL": url,
        "HERMES_WEBUI_STATE_DIR": str(home / "state"),
        "HERMES_WEBUI_WORKSPACE": str(home / "workspace"),
    }
    for folder in ("workspace", "state/sessions"):
        (home / folder).mkdir(parents=True)
    words = [python, str(Path(__file__).with_name("client.py"))]
    done = subprocess.run(words, cwd=webui, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if not rows:
        raise SystemExit(f"hermes-webui's client did not start:\n{done.stderr[-2000:]}")
    return rows


def main() -> int:
    """Print the table; 1 where a row failed."""
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "api" / "gateway_chat.py").is_file():
        raise SystemExit("Name a checkout of hermes-webui: make test-hermes WEBUI_GATEWAY=/path/to/hermes-webui")
    webui, python = Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else sys.executable
    with tempfile.TemporaryDirectory() as made:
        where = Path(made)
        (where / "ninelives.toml").write_text(CONFIG)
        upstream = start_upstream(where / "upstream")
        server = start_server(where / "server", upstream.url, NINELIVES_CONFIG=str(where / "ninelives.toml"))
        try:
            rows = client_rows(webui, python, server.url, where / "home")
        finally:
            server.stop()
            upstream.process.stop()
    print("| route | hermes-webui |\n|---|---|")
    for row in rows:
        print(f"| {row['route']} | {'ok' if row['ok'] else 'FAILED'}: {row['saw']} |")
    print(f"\n{sum(bool(row['ok']) for row in rows)} of {len(rows)} rows are green; the server is in {ROOT}.")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
