"""Every command and snippet of README.md and docs/ does what its page says, or is marked `not-run` and listed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ninelives.app.settings import load
from tests.documents.blocks import MARKS, ROOT, Block, blocks, blocks_of, by_page
from tests.documents.shell import Reader, Shell
from tests.story.server import wait_until

LANGUAGES = {"sh", "bash", "python", "toml", "json", "yaml", "mermaid", "text", "nginx", "ini", "js", "sql"}
SHELL, PYTHON = by_page("sh", "bash"), by_page("python")
TESTED_ELSEWHERE = {
    "docs/api/python.md": "tests/test_public_api.py",
    "docs/durability.md": "tests/agents/test_durability.py",
    "docs/examples.md": "make test-agents",
}
SAID = {
    "README.md": [
        "demo model of Ninelives",
        "The server is away. Waiting; nothing is lost.",
        "Both tools have finished.",
        "1 crash survived",
        "accepted",
    ],
    "docs/front-ends/terminal.md": ["completed"],
}
"""What a page must have printed, beside working."""
CLIENT = """\
from pathlib import Path
from openai import OpenAI
key = Path("~/.local/share/ninelives/key").expanduser().read_text().strip()
client = OpenAI(base_url="http://127.0.0.1:8642/v1", api_key=key)
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("reader"))
    yield made
    made.stop()


def lint(block: Block) -> None:
    """Raises where a block cannot be read."""
    match block.language:
        case "sh" | "bash":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True, capture_output=True)
        case "python":
            compile(block.text, str(block), "exec")
        case "toml":
            tomllib.loads(block.text)
        case "json":
            json.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)
        case "nginx":
            assert block.text.count("{") == block.text.count("}")


def test_every_block_has_a_known_language_and_known_marks_and_can_be_read() -> None:
    found = blocks()
    assert len(found) > 60
    for block in found:
        assert block.language in LANGUAGES and block.marks <= MARKS, f"{block}: {block.language} {set(block.marks)}"
        lint(block)


def test_blocks_that_are_not_run_are_listed_with_the_reason() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    section = page[page.index("## The documents") :]
    listed = {name: int(count) for name, count in re.findall(r"^\| `([\w./-]+)` \| (\d+) \|", section, re.MULTILINE)}
    assert listed == Counter(block.page for block in blocks() if not block.runs)


def test_a_broken_block_is_found() -> None:
    (block,) = blocks_of("x.md", "```sh not-run\nif true; then\n```\n")
    assert not block.runs
    with pytest.raises(subprocess.CalledProcessError):
        lint(block)


@pytest.mark.parametrize("page", SHELL)
def test_the_commands_of_a_page_work(page: str, reader: Reader) -> None:
    for block in PYTHON.get(page, []):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (reader.folder / named[1]).write_text(block.text)
    shell, said = Shell(reader), ""
    try:
        for block in SHELL[page]:
            if "serves" in block.marks:
                until_it_listens(block, reader)
            else:
                said += shell.run(block.text)
    finally:
        shell.close()
    assert [text for text in SAID.get(page, ()) if text not in said] == []


def until_it_listens(block: Block, reader: Reader) -> None:
    """Run the server of a block, on another port and data directory, and stop it."""
    out = reader.home / "other.out"
    env = reader.env | {"NINELIVES_SERVER_PORT": "0", "NINELIVES_SERVER_DATA_DIR": str(reader.home / "other")}
    with out.open("w") as stdout:
        command = ["bash", "-c", block.text.strip()]  # bash lets a single command take its place
        child = subprocess.Popen(command, cwd=reader.folder, env=env, stdout=stdout, stderr=stdout)
    try:
        wait_until(lambda: "listening on" in out.read_text() or child.poll() is not None, str(block), 60, 0.05)
        assert "listening on" in out.read_text(), out.read_text()
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


@pytest.mark.parametrize("page", [page for page in PYTHON if page not in TESTED_ELSEWHERE])
def test_the_python_of_a_page_runs(page: str, reader: Reader) -> None:
    code = "\n".join(block.text for block in PYTHON[page])
    if "client." in code and "client = " not in code:
        code = CLIENT + code
    command = [sys.executable, "-c", reader.as_here(code)]
    done = subprocess.run(command, env=reader.env, cwd=reader.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


SETTINGS = [block for block in blocks() if block.language == "toml" and block.runs and "[project" not in block.text]


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_the_settings_of_a_page_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "ninelives.toml"
    file.write_text(block.text)
    load(file, {"HOME": str(tmp_path)}, {})
