"""Documents and code use the same words: terms of the glossary exist in the code, and cited rules exist in docs/."""

from __future__ import annotations

import ast
import re

from lab import meters

GLOSSARY = (meters.ROOT / "docs/glossary.md").read_text()


def marked_terms(page: str) -> list[str]:
    """Words in backticks in the first column of a table: classes and fields."""
    cells = re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)
    return [word for cell in cells for word in re.findall(r"`([A-Za-z_][\w.]*)`", cell)]


def names_in_the_code() -> set[str]:
    """Every class, function, method, field and option that ninelives/ defines."""
    names: set[str] = set()
    for source in meters.package():
        for node in source.nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                names.add(ast.unparse(target).removeprefix("self."))
    return names


def test_a_term_of_the_glossary_that_names_code_exists_in_the_code() -> None:
    known = names_in_the_code()
    assert [term for term in marked_terms(GLOSSARY) if term.rpartition(".")[2] not in known] == []


def test_the_first_column_is_read() -> None:
    page = "| term | meaning |\n|---|---|\n| `Entry` | `NotThis` |\n| run | a word |\n| `RunState`, `seq` | x |\n"
    assert marked_terms(page) == ["Entry", "RunState", "seq"]


def test_the_rules_that_may_be_cited_are_those_of_the_contract_the_promises_and_the_core() -> None:
    assert {"A1", "G18", "P1", "P21", "R1", "R19"} <= meters.defined_codes()
