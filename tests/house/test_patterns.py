"""No regular expression of the package takes time that grows faster than its input. Every pattern meets 200,000
characters that make a bad one backtrack. The deadline counts CPU time of this process: a linear pattern needs a
twentieth of it, a quadratic one at least twenty times as much."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import from_regex

import ninelives
from lab import meters

PACKAGE = Path(ninelives.__file__).parent
SIZE = 200_000
CPU_S = 1.0
FILLS = (" ", "\n", "a", "a-", "=")
EXAMPLES = 4
CUTS = 5
ELSEWHERE = {
    "agents/rules.py": "the operator's [[approvals]]",
    "app/settings.py": "checks the operator's [[clients]]",
    "drill/own.py": "the operator's [[approvals]], on a fixed text",
    "dialects/clients.py": "the operator's [[clients]], on the first characters of a header",
    "tools/builtin/search.py": "the model's pattern, in a process with a time limit",
}
"""Files that compile a pattern which is not their own, and why that is safe."""

OTHER_IMPORT = re.compile(r"^ *(?:from re import|import re as)", re.MULTILINE)
AnyPattern = re.Pattern[str] | re.Pattern[bytes]


class TooSlow(Exception):
    """The deadline is over."""


def modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(ninelives.__path__, "ninelives.")
    return [importlib.import_module(each.name) for each in found if not each.name.endswith("__main__")]


def inside(value: object, seen: dict[int, object]) -> Iterator[AnyPattern]:
    """Every pattern in a value: in containers, in classes and in objects of the package."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive, so that no other value gets its id
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        yield from (found for each in (*value, *value.values()) for found in inside(each, seen))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (found for each in value for found in inside(each, seen))
    elif isinstance(value, property | staticmethod | classmethod) or inspect.isroutine(value):
        return
    elif type(value).__module__.startswith("ninelives") or (
        inspect.isclass(value) and value.__module__.startswith("ninelives")
    ):
        yield from inside({name: inspect.getattr_static(value, name, None) for name in dir(value)}, seen)


def compiled() -> dict[tuple[str | bytes, int], AnyPattern]:
    seen: dict[int, object] = {}
    found = [each for module in modules() for each in inside(dict(vars(module)), seen)]
    found += [re.compile(text) for text in declared()]
    return {(each.pattern, each.flags): each for each in found}


def calls() -> Iterator[tuple[str, ast.Call, bool]]:
    """Every call in the package: file, call, and whether it is inside a function."""
    for source in meters.package():
        pending: list[tuple[ast.AST, bool]] = [(source.tree, False)]
        while pending:
            node, within = pending.pop()
            if isinstance(node, ast.Call):
                yield source.name.removeprefix("ninelives/"), node, within
            within = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            pending += [(child, within) for child in ast.iter_child_nodes(node)]


def declared() -> list[str]:
    """The patterns of settings and arguments that msgspec checks."""
    keywords = [each for _, call, _ in calls() for each in call.keywords if each.arg == "pattern"]
    return [str(each.value.value) for each in keywords if isinstance(each.value, ast.Constant)]


def examples(pattern: AnyPattern) -> list[str]:
    """Texts that match, the same in each run."""
    found: dict[str, None] = {}
    if isinstance(pattern.pattern, bytes):  # hypothesis has no answer to some bytes patterns that ignore case
        pattern = re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(from_regex(pattern, fullmatch=True))
    def collect(text: str) -> None:
        found[text] = None

    collect()
    return list(found)


def hostile(pattern: AnyPattern) -> Iterator[str]:
    """The fills alone and behind a match, each also before an x. A match again and again. The fills behind the first
    characters of a match."""
    matching = examples(pattern)
    for begin in dict.fromkeys(["", *matching]):
        yield from (begin + fill * (SIZE // len(fill)) + end for fill in FILLS for end in ("", "x"))
    yield from (text * (SIZE // len(text)) + "x" for text in matching if text)
    for cut in range(1, min(CUTS, len(matching[0]))):
        yield from (matching[0][:cut] + fill * (SIZE // len(fill)) + "x" for fill in FILLS)


def stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def slow_input(pattern: AnyPattern) -> str | None:
    """The beginning of the first text that takes too long."""
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for text in hostile(pattern):
            whole = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
            for run in (pattern.match, pattern.search):
                signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
                try:
                    run(whole)  # type: ignore[arg-type]
                except TooSlow:
                    return f"{run.__name__} on {text[:40]!r}...{text[-2:]!r}"
                finally:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    return None


def test_every_pattern_takes_time_in_proportion_to_its_input() -> None:
    """One test for all, because to find them is dear: every worker would do it before the first test."""
    patterns = compiled()
    assert len(patterns) > 50
    assert {key: slow for key, each in patterns.items() if (slow := slow_input(each))} == {}


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile(r"\s*(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z", re.IGNORECASE),
        re.compile(r"\n*\*\*Approval needed\*\*.*\Z", re.DOTALL),
        re.compile(r"(?i)bearer\s+\S+|\S*(\b(sk|pk|key)[-_][\w*.-]{4,}|\beyJ[\w-]{8,}|\*{3,})\S*"),
        re.compile(r"\A\s*+(approve|deny)\s+([A-Z0-9]{4,16})\s*\.?\s*\Z"),
    ],
    ids=["code", "question", "secret", "only behind a match"],
)
def test_a_pattern_that_backtracks_is_found(pattern: AnyPattern) -> None:
    assert slow_input(pattern) is not None


def test_a_pattern_is_compiled_where_the_test_above_finds_it() -> None:
    """At the top of a module or a class. A function may not compile or use a pattern of its own."""
    wrong = [
        f"{file}:{call.lineno} re.{call.func.attr}"
        for file, call, within in calls()
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == "re"
        if within or call.func.attr != "compile"
        if file not in ELSEWHERE and call.func.attr != "escape"
    ]
    assert wrong == []


def test_re_is_imported_under_its_own_name() -> None:
    """So that the test above sees every call."""
    assert [path for path in PACKAGE.rglob("*.py") if OTHER_IMPORT.search(path.read_text())] == []
