"""What is installed: constraints.txt fits pyproject.toml, lower bounds can be read, and the wheel has every file.
`make test-lowest` and `make test-wheel` try the same with real installations."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from lab import sbom
from lab.lowest import lowest, lowest_of
from lab.wheel import problems
from ninelives import __version__

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def pinned() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.+!]*", line) for line in lines), "only name==version"
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def direct() -> list[str]:
    extras = [each for listed in PROJECT["optional-dependencies"].values() for each in listed]
    return [*PROJECT["dependencies"], *extras]


def test_constraints_pin_every_direct_dependency_to_an_exact_version() -> None:
    names = {normal(re.split(r"[\[<>=;! ]", each)[0]) for each in direct()}
    assert names - set(pinned()) == set()


def test_a_pinned_version_is_not_below_its_lower_bound() -> None:
    versions = pinned()
    for requirement in direct():
        name, bound = lowest(requirement).partition(";")[0].split("==")
        numbers = [
            tuple(map(int, re.findall(r"\d+", text))) for text in (versions[normal(name.partition("[")[0])], bound)
        ]
        assert numbers[0] >= numbers[1], requirement


@pytest.mark.parametrize(
    ("requirement", "pin"),
    [
        ("starlette>=0.45", "starlette==0.45"),
        ("uvicorn>=0.35,<0.55", "uvicorn==0.35"),
        ("openai[realtime] >= 2.8", "openai[realtime]==2.8"),
        ("uvloop>=0.21; sys_platform != 'win32'", "uvloop==0.21; sys_platform != 'win32'"),
    ],
)
def test_the_lowest_version_of_a_requirement(requirement: str, pin: str) -> None:
    assert lowest(requirement) == pin


def test_every_dependency_has_a_lower_bound() -> None:
    assert len(lowest_of(ROOT / "pyproject.toml")) >= len(PROJECT["dependencies"])
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest("starlette<2")


def test_the_package_data_covers_every_file_that_is_not_python() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["ninelives"]
    package = ROOT / "ninelives"
    covered = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others - covered == set()
    assert package / "py.typed" in covered


def test_a_wheel_that_lacks_a_file_or_has_tests_in_it_is_found() -> None:
    wheel = ["ninelives/__init__.py", "ninelives-0.1.0.dist-info/METADATA", "tests/test_x.py"]
    assert problems(wheel, ["ninelives/__init__.py", "ninelives/py.typed"]) == [
        "missing: ninelives/py.typed",
        "does not belong: tests/test_x.py",
    ]


def test_no_text_tells_users_to_install_from_an_index_that_has_no_such_package() -> None:
    """Nothing is published yet: a checkout is the only way to install."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").iterdir()]
    for path in [*(ROOT / "ninelives").rglob("*.py"), *pages]:
        assert not re.search(r"pipx? install ['\"]?ninelives", path.read_text()), path


BILL = json.loads(sbom.FILE.read_text())


def test_the_bill_of_materials_has_every_package_of_a_server_at_its_pinned_version() -> None:
    """After a change of the dependencies or the version: make sbom"""
    versions = {each["name"]: each["version"] for each in BILL["components"]}
    pins = pinned()
    assert {name: version for name, version in versions.items() if pins.get(name, version) != version} == {}
    assert set(versions) - set(pins) == {"sqlite"}
    extras = PROJECT["optional-dependencies"]
    direct = [*PROJECT["dependencies"], *(each for extra in sbom.EXTRAS for each in extras[extra])]
    assert {normal(re.split(r"[\[<>=;! ]", each)[0]) for each in direct} - set(versions) == set()
    assert BILL["metadata"]["component"]["version"] == __version__


def test_every_reference_in_the_bill_of_materials_has_its_component() -> None:
    assert (BILL["bomFormat"], BILL["specVersion"]) == ("CycloneDX", "1.6")
    refs = {each["bom-ref"] for each in BILL["components"]} | {"ninelives"}
    named = {ref for each in BILL["dependencies"] for ref in (each["ref"], *each["dependsOn"])}
    assert named == refs


def test_the_packages_of_a_server_are_followed_through_extras_and_markers() -> None:
    needs = sbom.closure("ninelives", {"mcp"})
    assert "starlette" in needs["ninelives"] and "mcp" in needs["ninelives"] and "mypy" not in needs
    assert needs.keys() >= {each for found in needs.values() for each in found}
    assert "mcp" not in sbom.closure("ninelives", set())


def test_the_source_distribution_has_the_bill_of_materials_and_the_threat_model() -> None:
    assert {"sbom.cdx.json", "SECURITY.md"} <= set((ROOT / "MANIFEST.in").read_text().split())


def test_a_test_file_outside_of_a_package_has_a_name_of_its_own() -> None:
    """Two of one name cannot be collected in one run."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    names = Counter(path.name for path in files)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps_and_repeats(backend: str) -> None:
    from ninelives.journal.queries import migrations

    numbers = [number for number, _ in migrations(backend)]
    assert numbers == list(range(1, len(numbers) + 1))
