"""Meters of the code and its documents. Owns: what is measured and how. tests/house/test_meters.py holds the goals.
`python -m lab.meters` prints all meters with their findings. Refuses to know: what a good value is."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler),
    *(ast.BoolOp, ast.comprehension, ast.match_case),
)
FOLDER_FILES = 16
SENTENCE_WORDS = 35
OWN_NAMES = ("testing", "drill")
"""Folders of ninelives/ whose class names may repeat others: they imitate the package from outside."""
CODE = r"[A-GPR]\d{1,2}"
ELSEWHERE = re.compile(r"house rule|(?<!docs/)\b(?:house|requirements|promises)\.md|\bfacts/\w+\.md")
"""Documents that a reader of the repository cannot open."""
COMMENT = re.compile(r"#.*(?:[A-GPR]\d|house|\.md)")
"""A line that may have a citation in its comment. To tokenize all files takes seconds."""


class Source(NamedTuple):
    """One module."""

    name: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All nodes of the tree, walked once for all meters."""


@cache
def package(root: Path = ROOT) -> list[Source]:
    """The modules of ninelives/."""
    return [read_source(path, root) for path in sorted((root / "ninelives").rglob("*.py"))]


@cache
def tests(root: Path = ROOT) -> list[Source]:
    """The modules of tests/."""
    return [
        read_source(path, root) for path in sorted((root / "tests").rglob("*.py")) if "node_modules" not in path.parts
    ]


def read_source(path: Path, root: Path) -> Source:
    """A module, parsed."""
    return parse_source(str(path.relative_to(root)), path.read_text("utf-8"))


def parse_source(name: str, text: str) -> Source:
    """A module of which the text is at hand."""
    tree = ast.parse(text)
    return Source(name, text, tree, tuple(ast.walk(tree)))


def functions(sources: list[Source]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method, with its place."""
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{source.name}:{node.lineno} {node.name}", node


def long_functions(sources: list[Source]) -> list[tuple[int, str]]:
    """(lines, place) of all functions, longest first."""
    sizes = [((node.end_lineno or node.lineno) - node.lineno + 1, place) for place, node in functions(sources)]
    return sorted(sizes, reverse=True)


def percentile(values: list[int], share: float) -> int:
    """The value that this share of all values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def complex_functions(sources: list[Source]) -> list[tuple[int, str]]:
    """(complexity, place) of all functions, worst first. The complexity is one more than the number of branches."""
    found = [
        (1 + sum(isinstance(each, BRANCHES) for each in ast.walk(node)), place) for place, node in functions(sources)
    ]
    return sorted(found, reverse=True)


def silent_excepts(sources: list[Source]) -> list[str]:
    """Handlers that only pass or continue."""
    return [
        f"{source.name}:{node.lineno}"
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.ExceptHandler) and all(isinstance(each, ast.Pass | ast.Continue) for each in node.body)
    ]


def repeated_classes(sources: list[Source]) -> dict[str, list[str]]:
    """Class names that two modules define, with the modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        if Path(source.name).parts[1] not in OWN_NAMES:
            for node in source.nodes:
                if isinstance(node, ast.ClassDef):
                    places[node.name].add(source.name)
    return {name: sorted(where) for name, where in places.items() if len(where) > 1}


def big_folders(sources: list[Source]) -> dict[str, int]:
    """Folders with more than FOLDER_FILES modules."""
    counts = Counter(str(Path(source.name).parent) for source in sources)
    return {folder: count for folder, count in counts.items() if count > FOLDER_FILES}


def callback_slots(sources: list[Source]) -> list[str]:
    """Attributes that hold an empty callback at construction, to be replaced from outside later."""
    found = []
    for source in sources:
        empty = _functions_that_do_nothing(source.tree)
        for node in source.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_slot(node, empty):
                found.append(f"{source.name}:{node.lineno} {ast.unparse(_target(node))}")
    return found


def set_from_outside(sources: list[Source], room: str) -> list[str]:
    """Assignments to an attribute of another object, in the files of one room."""
    found = []
    nodes = [(source, node) for source in sources if source.name.startswith(room) for node in source.nodes]
    for source, node in nodes:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = _target(node)
        own = isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls")
        if isinstance(target, ast.Attribute) and not own:
            found.append(f"{source.name}:{node.lineno} {ast.unparse(target)}")
    return found


def shared_branches(sources: list[Source], room: str) -> list[str]:
    """Branches on whether other processes use the store too, in the files of one room."""
    return [
        f"{source.name}:{node.lineno}"
        for source in sources
        if source.name.startswith(room)
        for node in source.nodes
        if isinstance(node, ast.If | ast.IfExp) and re.search(r"\b_?shared\b", ast.unparse(node.test))
    ]


def _target(node: ast.Assign | ast.AnnAssign) -> ast.expr:
    return node.targets[0] if isinstance(node, ast.Assign) else node.target


def _is_slot(node: ast.Assign | ast.AnnAssign, empty: set[str]) -> bool:
    target = _target(node)
    if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"):
        return False
    if isinstance(node.value, ast.Lambda):
        return True
    none = node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None)
    nothing = none or (isinstance(node.value, ast.Name) and node.value.id in empty)
    return isinstance(node, ast.AnnAssign) and nothing and "Callable" in ast.unparse(node.annotation)


def _functions_that_do_nothing(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len(node.body) <= 2
        and all(isinstance(each, ast.Pass | ast.Expr | ast.Return) for each in node.body)
    }


@cache
def prose(source: Source) -> str:
    """The comments and docstrings of a module."""
    parts = []
    if COMMENT.search(source.text):
        tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
        parts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            parts.append(node.value.value)
    return "\n".join(parts)


def cited_codes(source: Source) -> set[str]:
    """Numbers of rules (A1 ... R19) in comments, docstrings and names of tests."""
    codes = set(re.findall(rf"\b{CODE}\b(?![-_./\w])", prose(source)))
    names = [node.name for _, node in functions([source])]
    return codes | {found[1].upper() for name in names if (found := re.match(rf"test_({CODE})_", name, re.I))}


def defined_codes(root: Path = ROOT) -> set[str]:
    """Numbers of rules that begin a line or a table row in docs/."""
    pages = "\n".join(path.read_text("utf-8") for path in (root / "docs").rglob("*.md"))
    return set(re.findall(rf"^[\W_]*({CODE})[.:) |*]", pages, re.MULTILINE))


def absent_citations(sources: list[Source], root: Path = ROOT) -> list[str]:
    """Citations of documents and rules that are not in docs/. A line break inside a citation does not hide it."""
    known = defined_codes(root)
    documents = [f"{each.name}: {word}" for each in sources for word in ELSEWHERE.findall(_on_one_line(prose(each)))]
    return documents + [f"{each.name}: {code}" for each in sources for code in sorted(cited_codes(each) - known)]


def _on_one_line(text: str) -> str:
    return re.sub(r"[\s#]+", " ", text)


def long_sentences(root: Path = ROOT) -> list[tuple[int, str]]:
    """(words, beginning) of sentences in README, CHANGELOG and docs/ with more than SENTENCE_WORDS words. Code, tables,
    headings, decisions and benchmark reports are left out."""
    pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
    found = []
    for page in pages:
        if {"decisions", "performance"} & set(page.parts):
            continue
        for sentence in sentences(page.read_text("utf-8")):
            words = len(re.findall(r"[A-Za-z']+", sentence))
            if words > SENTENCE_WORDS:
                found.append((words, f"{page.relative_to(root)}: {' '.join(sentence.split())[:70]}"))
    return sorted(found, reverse=True)


def sentences(text: str) -> list[str]:
    """The sentences of a Markdown text, without code blocks, tables, headings and comments."""
    plain = re.sub(r"```.*?```|^\|[^\n]*$|^#[^\n]*$|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])|\n\s*\n|\n[-*] ", plain)


def main() -> None:
    """Print all meters."""
    code, both = package(), [*package(), *tests()]
    sizes = long_functions(code)
    print(f"{len(code)} modules, {len(sizes)} functions, p99 {percentile([size for size, _ in sizes], 0.99)} lines")
    findings: dict[str, list[object]] = {
        "longest functions": list(sizes[:5]),
        "worst complexity": list(complex_functions(code)[:5]),
        "silent excepts": list(silent_excepts(code)),
        "class names with two meanings": list(repeated_classes(code).items()),
        "big folders": list(big_folders(code).items()),
        "callback slots": list(callback_slots(code)),
        "absent citations": list(absent_citations(both)),
        "long sentences": list(long_sentences()),
    }
    for name, found in findings.items():
        print(f"{name}: {len(found)}", *found, sep="\n  ")


if __name__ == "__main__":
    main()
