"""The clients under test, installed. Owns: their exact versions in Python (those in JavaScript stand in
node/package.json), one environment per client under .venv-clients, and node_modules beside the scripts. Refuses to
know: what is done with them. What cannot be installed is told and left out, never an end of everything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VENVS = ROOT / ".venv-clients"
NODE = HERE / "node"
MINUTES = 10
PINS = {
    "openai": ("openai==3.49.0", "websockets==17.4"),
    "openai2": ("openai==2.54.0",),
    "langchain": ("langchain-openai==1.7.3",),
    "agents": ("openai-agents==0.24.0",),
    "litellm": ("litellm==1.106.2", "mcp==2.3.0"),
    "llm": ("llm==0.36",),
    "anthropic": ("anthropic==2.8.0",),
    "aider": ("aider-chat==0.86.2",),
}
COMMANDS = {
    "pi": ("@mariozechner/pi-coding-agent@0.73.1",),
    "opencode": ("opencode-ai@1.18.33",),
    "claude": ("@anthropic-ai/claude-code@2.1.326",),
}
"""Commands from npm, each in a folder of its own: one that cannot be installed takes no other along."""


def python_of(place: str) -> Path:
    return VENVS / place / "bin" / "python"


def node() -> str | None:
    """The newest Node there is: clients of today want 22, which the manifest brings along."""
    own = NODE / "node_modules" / ".bin" / "node"
    return str(own) if own.exists() else shutil.which("node")


def _said(args: list[str]) -> str:
    """Why a command failed; nothing when it did not."""
    try:
        done = subprocess.run(args, cwd=NODE, capture_output=True, text=True, timeout=MINUTES * 60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{args[0]}: {error}"
    lines = (done.stderr + done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"{args[0]} ended with {done.returncode}")


def install_python(place: str) -> str:
    """An environment with exactly these versions; made again when they change. Why not, if not."""
    pins, stamp = PINS[place], VENVS / place / ".pins"
    wanted = " ".join(pins)
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(VENVS / place, ignore_errors=True)
    pip = [str(python_of(place)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins]
    why = _said([sys.executable, "-m", "venv", str(VENVS / place)]) or _said(pip)
    if not why:
        stamp.write_text(wanted)
    return why


def install_node() -> str:
    """node_modules as in the manifest, without a lock file."""
    if shutil.which("npm") is None:
        return "npm is missing: install Node.js with npm to test the clients in JavaScript"
    stamp, wanted = NODE / "node_modules" / ".pins", (NODE / "package.json").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    why = _said(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--legacy-peer-deps"])
    if not why:
        stamp.write_text(wanted)
    return why


def install_command(place: str) -> str:
    """A command and what it needs, without a lock file. Why not, if not."""
    if shutil.which("npm") is None:
        return f"npm is missing: install Node.js with npm to test {place}"
    where, wanted = VENVS / place, " ".join(COMMANDS[place])
    if (stamp := where / ".pins").exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    why = _said(
        ["npm", "install", "--prefix", str(where), "--no-package-lock", "--no-audit", "--no-fund", *COMMANDS[place]]
    )
    if not why:
        stamp.write_text(wanted)
    return why


def install(place: str) -> str:
    """Fill a place. Why not, if not."""
    if place == "node":
        return install_node()
    return install_command(place) if place in COMMANDS else install_python(place)


def version_of(place: str, package: str) -> str:
    """The version that is really there."""
    if place == "node" or place in COMMANDS:
        where = NODE if place == "node" else VENVS / place
        return str(json.loads((where / "node_modules" / package / "package.json").read_text())["version"])
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python_of(place), "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()
