"""An operator learns that an MCP server cannot be used: in the log, health, toolsets and doctor (A1, A3, F3)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.story.server import Upstream, start_server, wait_until

pytest.importorskip("mcp")

SERVER = Path(__file__).parents[1] / "tools" / "mcp_server.py"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    lines = ["[mcp.broken]", 'command = "/bin/sh"', 'args = ["-c", "echo cannot find s3cret-token-1 >&2; exit 3"]']
    lines += ['env = {TOKEN = "s3cret-token-1"}', "[mcp.fine]", f'command = "{sys.executable}"']
    path.write_text("\n".join([*lines, f'args = ["{SERVER}", "stdio"]']))
    return path


def test_a3_a_server_that_dies_is_in_the_log_in_health_and_in_toolsets(
    tmp_path: Path, upstream: Upstream, config: Path
) -> None:
    server = start_server(tmp_path / "server", upstream.url, NINELIVES_CONFIG=str(config))
    try:
        wait_until(lambda: server.health()["mcp"] == {"configured": 2, "connected": 1}, "both were tried", 60.0)
        assert server.health()["status"] == "degraded"
        shown = server.anonymous.get("/health/detailed").json()
        assert "exit code" not in json.dumps(shown), "without a key there are only numbers"
        admin = {each["name"]: each for each in server.client.get("/health/detailed").json()["admin"]["mcp"]}
        assert admin["broken"]["fault"] == "it ended with exit code 3" and not admin["broken"]["connected"]
        assert admin["broken"]["stderr"] == "cannot find [secret]"
        told = {each["name"]: each for each in server.client.get("/v1/toolsets").json()["mcp"]}
        assert told["fine"]["connected"] and told["fine"]["tools"] > 5 and told["fine"]["fault"] == ""
        assert not told["broken"]["connected"] and "exit code 3" in told["broken"]["fault"]
        lines = [line for line in server.log().splitlines() if "mcp_server_lost" in line]
        assert len(lines) == 1, "a fault that stays is told once"
        assert "broken" in lines[0] and "exit code 3" in lines[0] and "cannot find" in lines[0]
        assert "s3cret" not in server.log()
    finally:
        assert server.stop() == 0


def test_f3_doctor_is_red_for_an_mcp_server_that_cannot_be_used(tmp_path: Path, config: Path) -> None:
    args = [sys.executable, "-m", "ninelives", "doctor", "--json", "--config", str(config)]
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "NINELIVES_SERVER_DATA_DIR": str(tmp_path / "data")}
    result = subprocess.run(args, env=env, capture_output=True, text=True, timeout=120, check=False)
    checks = {each["name"]: each for each in json.loads(result.stdout)}
    assert result.returncode == 1
    assert not checks["mcp: broken"]["ok"] and "exit code 3" in checks["mcp: broken"]["detail"]
    assert "cannot find" in checks["mcp: broken"]["detail"] and "s3cret" not in result.stdout
    assert checks["mcp: fine"]["ok"] and "tools" in checks["mcp: fine"]["detail"]
