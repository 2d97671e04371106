"""schemathesis over /openapi.json against a real server process with the built-in demo model. Owns: starting both and
telling what was found: a 5xx, a status, a content type or a body that the document does not have. As a program
(`make test-schema`) it takes its time; as a test it is bounded. Refuses to know: any one route."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.story.server import KEY, start_demo

INTERPRETER_BUG = "SystemError: AST constructor recursion depth mismatch"
"""CPython 3.11 counts the depth of ast.parse per process, so two threads of schemathesis, or a collection in one,
can break the count (gh-106905). This says nothing about the server: the run is made again."""

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


class Extent(NamedTuple):
    """How much is tried."""

    phases: str
    examples: int
    paths: str = ""
    """A pattern of the paths that are called. Empty: all."""
    seconds: int | None = None
    """For each key. None: until all was tried, however slow the machine is."""


def fuzz(where: Path, extent: Extent) -> str:
    """Run it; the report, where it found nothing. An assertion with the report where it did."""
    for _ in range(3):
        code, report = _run(where, extent)
        if code == 0 or INTERPRETER_BUG not in report:
            break
    assert code == 0, report[-8000:]
    return report


def _run(where: Path, extent: Extent) -> tuple[int, str]:
    """Exit code and output of schemathesis with two keys, an admin's and that of another owner, against a server of
    its own that must survive it."""
    server = start_demo(where, NINELIVES_LIMITS_CONCURRENT_RUNS="64")
    try:
        made = server.client.post("/api/keys", {"name": "fuzz", "owner": "other", "acts_for": "optional"}).json()
        runs = [_call(server.url, key, where, extent) for key in (KEY, made["key"])]
        assert "request_failed" not in server.log(), server.log()[-3000:]
        assert server.anonymous.get("/health").status == 200
    finally:
        code = server.stop()
    assert code == 0
    return max(ran.returncode for ran in runs), "".join(ran.stdout + ran.stderr for ran in runs)


def _call(url: str, key: str, where: Path, extent: Extent) -> subprocess.CompletedProcess[str]:
    paths = ["--include-path-regex", extent.paths] if extent.paths else []
    bound = ["--max-time", str(extent.seconds)] if extent.seconds else []
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--no-color"),
            *("--header", f"Authorization: Bearer {key}", "--checks", CHECKS, "--phases", extent.phases, "--seed", "7"),
            *("--max-examples", str(extent.examples), "--request-timeout", "60", *paths, *bound),
            *("--workers", "1", "--warnings", "off", "--generation-database", "none", "--continue-on-failure"),
        ],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> int:
    """All phases, for some minutes."""
    with tempfile.TemporaryDirectory() as where:
        print(fuzz(Path(where), Extent("examples,coverage,fuzzing,stateful", 20, seconds=120)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
