"""Named SQL. Owns: reading the .sql files beside it, each query with a name and one line that says what for. Refuses
to know: databases."""

from __future__ import annotations

from importlib.resources import files

_HERE = files("holdfast.journal") / "sql"


def load(name: str) -> dict[str, str]:
    """The queries of one file, by name."""
    queries: dict[str, str] = {}
    for block in (_HERE / name).read_text().split("-- name: ")[1:]:
        head, _, rest = block.partition("\n")
        lines = [line for line in rest.splitlines() if not line.startswith("--")]
        queries[head.strip()] = " ".join(line.strip() for line in lines if line.strip()).rstrip(";")
    return queries


def migrations(folder: str = "migrations") -> list[tuple[int, str]]:
    """The numbered migrations of a backend, in order."""
    found = sorted((_HERE / folder).iterdir(), key=lambda path: path.name)
    return [(int(path.name[:4]), path.read_text()) for path in found if path.name.endswith(".sql")]
