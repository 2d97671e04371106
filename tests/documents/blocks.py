"""The code blocks of README.md and docs/. Owns: finding them, and what the words behind the language mean. Refuses to
know: how a block is run.

A block is ```LANGUAGE MARKS. The mark `not-run` is for what a test cannot do (run Docker or systemd, work for an hour):
such a block is only read for mistakes, and docs/testing.md says why. The mark `serves` is for a command that runs a
server: it is stopped once it listens. `stopped` is run while the server of the page is stopped, `asks` while it asks
a person before it writes, and `chats` is typed into by a person."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKS = {"not-run", "serves", "stopped", "chats", "asks"}
_BLOCK = re.compile(r"^ *```([^\n`]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    marks: frozenset[str]
    text: str

    @property
    def runs(self) -> bool:
        return "not-run" not in self.marks

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    made = ROOT / "docs/reference"
    return [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if made not in page.parents)]


def blocks_of(page: str, text: str) -> list[Block]:
    found = []
    for each in _BLOCK.finditer(text):
        language, *marks = each[1].split() or ["text"]
        line = text.count("\n", 0, each.start()) + 1
        found.append(Block(page, line, language, frozenset(marks), textwrap.dedent(each[2])))
    return found


def blocks() -> list[Block]:
    """All blocks, page by page, in their order."""
    return [block for page in pages() for block in blocks_of(str(page.relative_to(ROOT)), page.read_text())]


def by_page(*languages: str) -> dict[str, list[Block]]:
    """The blocks of these languages that are run."""
    found: dict[str, list[Block]] = {}
    for block in blocks():
        if block.language in languages and block.runs:
            found.setdefault(block.page, []).append(block)
    return found
