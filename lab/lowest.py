"""The lowest version of each direct dependency, as pip requirements. Owns: reading the lower bounds in pyproject.toml.
`python lab/lowest.py` prints them for `make test-lowest`. Refuses to know: what is installed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("mcp", "postgres")
"""The optional dependencies that users install. `dev` is left out."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(\[[^]]*\])?\s*([^;]*)(;.*)?")


def lowest(requirement: str) -> str:
    """`name>=1.2,<2; marker` as `name==1.2; marker`. Raises ValueError where there is no lower bound."""
    found = _REQUIREMENT.fullmatch(requirement.strip())
    bound = re.search(r">=\s*([0-9][0-9A-Za-z.]*)", found[3]) if found else None
    if found is None or bound is None:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound (>=).")
    return f"{found[1]}{found[2] or ''}=={bound[1]}{found[4] or ''}"


def lowest_of(pyproject: Path) -> list[str]:
    """The requirements of a project and of its extras for users."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [lowest(each) for each in (*project["dependencies"], *(each for name in EXTRAS for each in extras[name]))]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest_of(Path(__file__).parents[1] / "pyproject.toml")) + "\n")
