"""The documents are true of the code: what `make docs` makes, and the words of the glossary."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lab import docs

ROOT = Path(__file__).parents[1]


def classes() -> set[str]:
    found = (node for path in (ROOT / "ninelives").rglob("*.py") for node in ast.parse(path.read_text()).body)
    return {node.name for node in found if isinstance(node, ast.ClassDef)}


def test_every_class_of_the_glossary_exists() -> None:
    page = (ROOT / "docs/glossary.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert len(named) > 20
    assert sorted(set(named) - classes()) == []


def test_a_term_stands_in_the_glossary_once() -> None:
    terms = re.findall(r"^\| `?([\w -]+?)`? \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    known = [term.lower() for term in terms if term != "term"]
    assert sorted({term for term in known if known.count(term) > 1}) == []


def test_a_made_part_is_replaced_and_the_prose_around_it_stays() -> None:
    places = "\n".join(f"<!-- made:{name} -->\nstale text\n<!-- /made -->" for name in docs.MADE_PARTS)
    made = docs.architecture_page(f"Before.\n{places}\nAfter.\n")
    assert made.startswith("Before.\n<!-- made:rooms -->\n```mermaid\n")
    assert made.endswith("<!-- /made -->\nAfter.\n")
    assert "stale text" not in made
    assert docs.architecture_page(made) == made


def test_a_page_without_a_place_for_a_made_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="no place <!-- made:"):
        docs.architecture_page("No places here.\n")


def test_a_stale_page_is_named_and_not_written_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "architecture.md"
    page.write_text((ROOT / "docs/architecture.md").read_text())
    assert docs.main([str(tmp_path)]) == 0
    assert docs.main(["--check", str(tmp_path)]) == 0
    stale = page.read_text().replace("flowchart TD", "flowchart LR")
    page.write_text(stale)
    assert docs.main(["--check", str(tmp_path)]) == 1
    assert "architecture.md" in capsys.readouterr().err
    assert page.read_text() == stale


def test_the_diagram_of_rooms_shows_every_room_and_only_downward_arrows() -> None:
    order = [room for row in docs.layers() for room in row]
    arrows = re.findall(r"^ +(\w+) --> (\w+)$", docs.rooms_diagram(), re.MULTILINE)
    assert {room for arrow in arrows for room in arrow} == set(order)
    assert [arrow for arrow in arrows if order.index(arrow[0]) >= order.index(arrow[1])] == []


def rooms_tree() -> dict[str, list[str]]:
    """The files and folders that docs/architecture.md lists for each room."""
    page = (ROOT / "docs/architecture.md").read_text()
    found = re.search(r"^```\n(ninelives/\n.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    rooms: dict[str, list[str]] = {}
    for line in found[1].splitlines():
        if room := re.match(r"  (\w+)/", line):
            rooms[room[1]] = []
        elif names := re.match(r"    (\S+(?: \S+)*)  ", line):
            rooms[list(rooms)[-1]] += names[1].split()
    return rooms


def test_every_file_that_the_rooms_tree_names_exists() -> None:
    tree = rooms_tree()
    assert {"engine", *(room for row in docs.layers() for room in row)} <= set(tree)
    named = [f"{room}/{name}" for room, names in tree.items() for name in names]
    assert len(named) > 80
    assert [name for name in named if not (ROOT / "ninelives" / name).exists()] == []


def test_every_module_of_a_room_is_in_the_rooms_tree() -> None:
    whole = {room: set(names) for room, names in rooms_tree().items() if names}
    assert {"engine", "core", "dialects", "journal", "http", "app", "tools"} <= set(whole)
    for room, names in whole.items():
        modules = {path.name for path in (ROOT / "ninelives" / room).glob("*.py")} - {"__init__.py"}
        packages = {f"{path.parent.name}/" for path in (ROOT / "ninelives" / room).glob("*/__init__.py")}
        assert (room, sorted((modules | packages) - names)) == (room, [])


def test_every_file_that_a_rule_of_the_core_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rules = page[page.index("## Rules of the core") : page.index("## Rules for the code")]
    places = re.findall(r"^\(([^()]*(?:\(\w+\)[^()]*)*)\)$", rules, re.MULTILINE)
    assert len(places) == 19
    files = [name for place in places for name in re.findall(r"`([\w/]+/\w+\.py)`", place)]
    folders = [name for place in places for name in re.findall(r"tests/\w+", place)]
    assert [name for name in files if not (ROOT / "ninelives" / name).exists()] == []
    assert [name for name in folders if not (ROOT / name).is_dir()] == []


def test_the_index_of_decisions_lists_every_decision() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("0*.md"))


def test_documents_cite_only_what_a_reader_can_open() -> None:
    absent = re.compile(r"house rule|house\.md|requirements\.md|facts/\w+\.md", re.IGNORECASE)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if absent.search(page.read_text())] == []


def test_every_path_that_contributing_names_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:ninelives|tests|docs|lab|deploy)/[\w./-]*)`", page)
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_target_that_a_page_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert len(named) > 10
    assert sorted(named - targets) == []


def test_every_test_that_a_page_names_exists() -> None:
    pages = [page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md")]
    named = {found for page in pages for found in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)}
    missing = [f"{file}::{name}" for file, name in sorted(named) if f"def {name}(" not in (ROOT / file).read_text()]
    assert len(named) > 20 and missing == []
