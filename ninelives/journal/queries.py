"""Named SQL. Owns: reading the .sql files of a backend, where each query has a name and a comment with its purpose.
Refuses to know: databases."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def _folder(backend: str) -> Traversable:
    return files(f"ninelives.journal.{backend}") / "sql"


def load(backend: str, name: str) -> dict[str, str]:
    """The queries of one file of a backend ("sqlite" or "postgres"), by name."""
    queries: dict[str, str] = {}
    for block in (_folder(backend) / f"{name}.sql").read_text().split("-- name: ")[1:]:
        head, _, rest = block.partition("\n")
        lines = [line for line in rest.splitlines() if not line.startswith("--")]
        queries[head.strip()] = " ".join(line.strip() for line in lines if line.strip()).rstrip(";")
    return queries


def migrations(backend: str) -> list[tuple[int, str]]:
    """The numbered migrations of a backend, in order."""
    found = sorted((_folder(backend) / "migrations").iterdir(), key=lambda path: path.name)
    return [(int(path.name[:4]), path.read_text()) for path in found if path.name.endswith(".sql")]
