"""schemathesis over /openapi.json against a real server process with the built-in demo model. Owns: starting both and
telling what was found: a 5xx, a status, a content type or a body that the document does not have. As a program
(`make test-schema`) it takes its time; as a test it is bounded. Refuses to know: any one route."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.story.server import KEY, start_demo

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def fuzz(where: Path, phases: str, examples: int, seconds: int) -> str:
    """Run it; the report, where it found nothing. An assertion with the report where it did."""
    server = start_demo(where, HOLDFAST_LIMITS_CONCURRENT_RUNS="64")
    try:
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"),
                *("--header", f"Authorization: Bearer {KEY}", "--checks", CHECKS, "--phases", phases, "--seed", "7"),
                *("--max-examples", str(examples), "--max-time", str(seconds), "--request-timeout", "30"),
                *("--workers", "2", "--warnings", "off", "--generation-database", "none", "--continue-on-failure"),
            ],
            cwd=where,
            capture_output=True,
            text=True,
            timeout=seconds * 3 + 60,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
        assert "request_failed" not in server.log(), server.log()[-3000:]
        assert server.anonymous.get("/health").status == 200
    finally:
        code = server.stop()
    assert code == 0
    return ran.stdout


def main() -> int:
    """All phases, for some minutes."""
    with tempfile.TemporaryDirectory() as where:
        print(fuzz(Path(where), "examples,coverage,fuzzing,stateful", 20, 240))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
