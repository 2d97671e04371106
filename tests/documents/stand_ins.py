"""Programs that a page names and that are not here. Owns: a small program in the place of each, which checks what it
was given. Refuses to know: pages.

`claude`, `codex`, `caddy` and `open-webui` make the request that the real one would make first, with the address and
the key that the page gave them (the real ones: make test-clients, make test-openwebui). `pip` and `pipx` install
nothing: the package is here. `make` and `python` are those of this checkout. `createdb` makes a database on the
PostgreSQL of the tests."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which

ROOT = Path(__file__).parents[2]
CLAUDE = """\
curl -sS --fail-with-body "$ANTHROPIC_BASE_URL/v1/messages" -H "Authorization: Bearer $ANTHROPIC_AUTH_TOKEN" \\
  -H "Content-Type: application/json" -H "anthropic-version: 2023-06-01" \\
  -d '{"model": "claude", "max_tokens": 500, "messages": [{"role": "user", "content": "hello"}]}'
"""
CADDY = """\
[ "$1" = reverse-proxy ] && [ "$4" = --to ] && curl -sS --fail "http://$5/health"
"""
OPEN_WEBUI = """\
[ "$1" = serve ] && curl -sS --fail "$OPENAI_API_BASE_URL/models" -H "Authorization: Bearer $OPENAI_API_KEY"
"""
PIP = """\
[ "$1" = install ]
"""
CODEX = """\
import json, os, pathlib, sys, tomllib, urllib.request
config = tomllib.loads(pathlib.Path("~/.codex/config.toml").expanduser().read_text())
provider = config["model_providers"][config["model_provider"]]
body = json.dumps({"model": config["model"], "input": sys.argv[2], "stream": True}).encode()
head = {"Authorization": "Bearer " + os.environ[provider["env_key"]], "Content-Type": "application/json"}
url = provider["base_url"] + "/" + provider["wire_api"]
said = urllib.request.urlopen(urllib.request.Request(url, body, head)).read()
sys.exit(b"response.completed" not in said)
"""
CREATEDB = """\
import asyncio, os, sys
import asyncpg

async def create():
    connection = await asyncpg.connect(os.environ["TEST_POSTGRES"])
    await connection.execute(f"CREATE DATABASE {sys.argv[1]}")
    await connection.close()

asyncio.run(create())
"""


def put_stand_ins(folder: Path) -> None:
    """Put all of them into a folder of the search path."""
    python = f"#!{sys.executable}\n"
    shell = "#!/bin/sh\nset -e\n"
    programs = {
        "ninelives": f'{shell}exec {sys.executable} -m ninelives "$@"\n',
        "python": f'{shell}exec {sys.executable} "$@"\n',
        "uvicorn": f'{shell}exec {sys.executable} -m uvicorn "$@"\n',
        "make": f'{shell}exec {which("make")} -C {ROOT} "$@"\n',
        "claude": shell + CLAUDE,
        "caddy": shell + CADDY,
        "open-webui": shell + OPEN_WEBUI,
        "pip": shell + PIP,
        "pipx": shell + PIP,
        "codex": python + CODEX,
        "createdb": python + CREATEDB,
    }
    for name, text in programs.items():
        file = folder / name
        file.write_text(text)
        file.chmod(0o755)
