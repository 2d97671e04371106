"""Every command and snippet of README.md and docs/ does what its page says, or is marked `not-run` and listed."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from shutil import copytree, rmtree, which

import click
import pytest
import yaml

from ninelives.app.settings import load
from ninelives.cli import main
from tests import pg
from tests.documents.blocks import MARKS, ROOT, Block, blocks, blocks_of, by_page
from tests.documents.shell import Reader, Shell
from tests.story.hermes_home import make_home
from tests.story.server import wait_until
from tests.terminal.tmux import Terminal

LANGUAGES = {"sh", "bash", "python", "toml", "json", "yaml", "mermaid", "text", "nginx", "ini", "js", "sql"}
SHELL, PYTHON = by_page("sh", "bash", "sql"), by_page("python")
TESTED_ELSEWHERE = {
    "docs/api/python.md": "tests/test_public_api.py",
    "docs/durability.md": "tests/agents/test_durability.py",
    "docs/examples.md": "make test-agents",
}
SAID = {
    "README.md": [
        "demo model of Ninelives",
        "Both tools have finished.",
        "1 crash survived",
        "accepted",
        "steer, read by the model: be brief",
        "A person must approve this call: ninelives approvals approve run_",
        "Answered: once.",
    ],
    "docs/front-ends/terminal.md": ["completed"],
    "docs/postgres.md": ["2 processes", "Both tools have finished.", "1 crash survived"],
    "docs/hermes.md": ["sessions"],
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


@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "sh" and not block.runs], ids=str)
def test_commands_that_are_not_run_exist_with_these_options(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        match shlex.split(line, comments=True):
            case ["ninelives", *words]:
                parse(list(takewhile(lambda word: word not in (">", "|", "&", "&&"), words)))
            case ["make", *words]:
                subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)


def parse(words: list[str]) -> None:
    """Read the words of a command as click does. Raises where one is wrong."""
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    command.make_context("ninelives", words, resilient_parsing=False)


def test_a_command_with_a_wrong_option_is_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["drill", "--kill", "3", "--maybe"])


def test_a_broken_block_is_found() -> None:
    (block,) = blocks_of("x.md", "```sh not-run\nif true; then\n```\n")
    assert not block.runs
    with pytest.raises(subprocess.CalledProcessError):
        lint(block)


@pytest.mark.parametrize("page", SHELL)
def test_the_commands_of_a_page_work(page: str, reader: Reader) -> None:
    put_files(page, reader)
    if before := BEFORE.get(page):
        before(reader)
    shell, said = Shell(reader), ""
    try:
        said = "".join(worked(block, reader, shell) for block in SHELL[page])
    finally:
        shell.close()
        reader.places = {}
    assert [text for text in SAID.get(page, ()) if text not in said] == []


def put_files(page: str, reader: Reader) -> None:
    """The files of a page: blocks of Python that begin with their name."""
    for block in PYTHON.get(page, []):
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (reader.folder / named[1]).write_text(block.text)


def worked(block: Block, reader: Reader, shell: Shell) -> str:
    """Run a block as its marks say. Returns what it printed."""
    if block.language == "sql":
        asyncio.run(pg.server().run("ninelives", block.text))
    elif "serves" in block.marks:
        lines = [line for line in block.text.strip().splitlines() if not line.startswith("#")]
        for command in lines if all(" serve" in line for line in lines) else ["\n".join(lines)]:
            until_it_listens(command, block, reader)
    elif "chats" in block.marks:
        chat_in(block, reader)
    elif "stopped" in block.marks:
        reader.stop()
        try:
            return shell.run(block.text)
        finally:
            rmtree(reader.home / ".config", ignore_errors=True)  # an import writes settings
            reader.serve()
    elif "asks" in block.marks:
        reader.stop()
        reader.serve("--approval", "on-write")
        try:
            return shell.run(block.text)
        finally:
            reader.stop()
            reader.serve()
    else:
        return shell.run(block.text)
    return ""


def until_it_listens(command: str, block: Block, reader: Reader) -> None:
    """Run the server of a block, on another port and data directory, and stop it."""
    out = reader.home / "other.out"
    env = reader.env | {"NINELIVES_SERVER_PORT": "0", "NINELIVES_SERVER_DATA_DIR": str(reader.home / "other")}
    del env["NINELIVES_MODEL_URL"]  # it would hide the file and the variables of a block
    env.setdefault("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")  # no search for model servers on this machine
    *first, last = command.replace("--port 8642", "--port 0").splitlines()
    assigned = re.match(r"(\w+=\S+ )+", last)
    last = f"exec env {last}" if assigned else f"exec {last}"  # the signal is for the server
    with out.open("w") as stdout:
        script = ["bash", "-ec", "\n".join([*first, last])]
        child = subprocess.Popen(script, cwd=reader.folder, env=env, stdout=stdout, stderr=stdout)
    try:
        listens = re.compile("(listening|running) on http")
        wait_until(lambda: bool(listens.search(out.read_text())) or child.poll() is not None, str(block), 60, 0.05)
        assert listens.search(out.read_text()), out.read_text()
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def chat_in(block: Block, reader: Reader) -> None:
    """Talk in a terminal, and leave."""
    if which("tmux") is None:
        pytest.skip("tmux is missing")
    window = Terminal(reader.home)
    try:
        command = f"export PATH='{reader.env['PATH']}'; cd {reader.folder}; {block.text.split('#')[0].strip()}"
        window.run(command, reader.env | {"LANG": "C.UTF-8"})  # its shell sets a search path of its own
        window.see("Ninelives at")
        window.type("hello", "Enter")
        window.see("scripted demo model")
        window.type("C-d")
        window.see("exit code 0")
    finally:
        window.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def replicas(reader: Reader) -> None:
    """A PostgreSQL, free ports and a store of nobody, for the page about many machines."""
    reader.stop()
    copytree(reader.data, reader.home / "store")
    reader.serve()
    database = pg.server()
    asyncio.run(database.run("postgres", "CREATE DATABASE moved"))
    reader.env["TEST_POSTGRES"] = database.url()
    reader.places = {
        "postgresql://me:password@127.0.0.1/ninelives": f"'{database.url('ninelives')}'",
        "postgresql://owner:password@host/ninelives": f"'{database.url('ninelives')}'",
        "postgresql://me:password@host/ninelives": f"'{database.url('moved')}'",
        "~/.local/share/ninelives": str(reader.home / "store"),
        "/var/lib/ninelives": str(reader.home / "moved"),
        "/tmp/ninelives-": f"{reader.home}/replica-",
        **{str(port): str(free_port()) for port in (8651, 8652, 8653)},
    }


def codex_file(reader: Reader) -> None:
    """The settings of Codex, where its page says that they belong."""
    (block,) = [block for block in blocks() if block.page == "docs/front-ends/codex.md" and block.language == "toml"]
    (reader.home / ".codex").mkdir()
    (reader.home / ".codex/config.toml").write_text(reader.as_here(block.text))


BEFORE: dict[str, Callable[[Reader], object]] = {
    "docs/postgres.md": replicas,
    "docs/front-ends/codex.md": codex_file,
    "docs/hermes.md": lambda reader: make_home(reader.home / ".hermes"),
}
"""What must be there before a page is read."""


@pytest.mark.parametrize("page", [page for page in PYTHON if page not in TESTED_ELSEWHERE])
def test_the_python_of_a_page_runs(page: str, reader: Reader) -> None:
    put_files(page, reader)
    code = "\n".join(block.text for block in PYTHON[page])
    if "client." in code and "client = " not in code:
        code = CLIENT + code
    command = [sys.executable, "-c", reader.as_here(code)]
    done = subprocess.run(command, env=reader.env, cwd=reader.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


NODE = ROOT / "tests/clients/node/node_modules"
NAMES = {"ai": "ai7", "@ai-sdk/openai": "ai7-openai"}
"""The packages of a page, as make test-clients names them there: it has several versions of each."""


@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "js"], ids=str)
def test_the_javascript_of_a_page_runs(block: Block, reader: Reader, tmp_path: Path) -> None:
    for name in re.findall(r'from "([^"]+)"', block.text):
        if which("node") is None or not (NODE / NAMES[name]).exists():
            pytest.skip(f"node or its package {name} is missing: make test-clients installs it")
        link = tmp_path / "node_modules" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(NODE / NAMES[name])
    (tmp_path / "page.mjs").write_text(reader.as_here(block.text))
    env = reader.env | {"NINELIVES_KEY": (reader.data / "key").read_text().strip()}
    done = subprocess.run(["node", "page.mjs"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "demo model" in done.stdout, done.stderr


FOREIGN = ("[project", "[model_providers")
"""Settings of other programs."""
SETTINGS = [
    block
    for block in blocks()
    if block.language == "toml" and block.runs and not any(mark in block.text for mark in FOREIGN)
]


@pytest.mark.parametrize("block", SETTINGS, ids=str)
def test_the_settings_of_a_page_are_valid(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "ninelives.toml"
    file.write_text(block.text)
    load(file, {"HOME": str(tmp_path)}, {})
