"""The public Python API (docs/api/python.md): small, lazy, typed, and every example on its page runs."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

import ninelives

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/api/python.md").read_text()
SECTIONS = {
    heading.replace("\\", ""): re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for heading, text in re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
}
EXAMPLES = [(name, number) for name, blocks in SECTIONS.items() for number in range(len(blocks)) if name != "serve"]
KEY = "public-key-0123456789abcdef"


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOME": str(cwd), "API_SERVER_KEY": KEY, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_public_api_has_at_most_15_names_and_all_of_them_exist() -> None:
    assert len(ninelives.__all__) <= 15
    assert dir(ninelives) == sorted(ninelives.__all__)
    for name in ninelives.__all__:
        assert getattr(ninelives, name) is not None


def test_every_public_name_is_documented_with_an_example_and_nothing_else_is() -> None:
    assert sorted(SECTIONS) == sorted(ninelives.__all__)
    for name, blocks in SECTIONS.items():
        assert any(name in block for block in blocks), f"{name} has no example"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ninelives.nothing


def test_import_ninelives_loads_no_other_module(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import ninelives; print(sorted(set(sys.modules) - before))"
    assert python(code, tmp_path).stdout.strip() == "['ninelives']"


@pytest.mark.parametrize("name", ["tool", "Agent", "Turn", "events", "Model", "Place", "StartError", "Settings"])
def test_a_name_for_authors_of_extensions_loads_no_server(name: str, tmp_path: Path) -> None:
    code = f"import sys; from ninelives import {name}; print(*sys.modules)"
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not {"starlette", "uvicorn", "aiohttp", "apsw", "asyncpg", "click"} & set(done.stdout.split())


@pytest.mark.parametrize(("name", "number"), EXAMPLES)
def test_every_example_of_the_page_runs(name: str, number: int, tmp_path: Path) -> None:
    done = python(SECTIONS[name][number], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_examples_pass_a_strict_type_check(tmp_path: Path) -> None:
    files = []
    for name, number in [*EXAMPLES, ("serve", 0)]:
        files.append(tmp_path / f"example_{name.strip('_')}_{number}.py")
        files[-1].write_text(SECTIONS[name][number])
    command = [sys.executable, "-m", "mypy", *map(str, files)]  # strict, with the cache of `make check`
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def until_it_listens(child: subprocess.Popen[str], pattern: str, log: Path) -> int:
    deadline = time.monotonic() + 30
    while (found := re.search(pattern, log.read_text())) is None:
        assert child.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    return int(found[1])


def chat(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    body = {"model": "hermes-agent", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text


def run_server(command: list[str], pattern: str, where: Path, code: int) -> str:
    """Start a server, ask it for a chat, stop it with SIGTERM and expect an exit code. Returns the answer."""
    env = {**os.environ, "HOME": str(where), "API_SERVER_KEY": KEY, "PYTHONPATH": str(ROOT)}
    env |= {"NINELIVES_TOOLS_SANDBOX": "off", "NINELIVES_SERVER_DATA_DIR": str(where / "data")}
    log = where / "log"
    with log.open("w") as out:
        child = subprocess.Popen(command, cwd=where, env=env, stdout=out, stderr=out, text=True)
    try:
        return chat(until_it_listens(child, pattern, log))
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == code, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()


def test_serve_runs_a_server_from_python_and_stops_it_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "my_server.py").write_text(SECTIONS["serve"][0])
    said = run_server([sys.executable, "my_server.py"], r"listening on http://127\.0\.0\.1:(\d+)", tmp_path, 0)
    assert "demo model of Ninelives" in said


def test_uvicorn_runs_the_application_of_create_app(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(SECTIONS["create_app"][0])
    command = [sys.executable, "-m", "uvicorn", "my_app:app", "--port", "0", "--timeout-graceful-shutdown", "10"]
    said = run_server(command, r"running on http://127\.0\.0\.1:(\d+)", tmp_path, -signal.SIGTERM)
    assert "demo model of Ninelives" in said


def test_inside_the_package_only_the_version_is_imported_from_the_public_api() -> None:
    """The import rules ignore what ninelives/__init__.py imports, so nothing may use it as a way around them."""
    for path in (ROOT / "ninelives").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "ninelives" and node.level == 0:
                assert [alias.name for alias in node.names] == ["__version__"], path
