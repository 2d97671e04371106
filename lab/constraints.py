"""constraints.txt from the environment that runs this script. Owns: the form of the file: one exact version per line,
and no address of a registry. `make constraints` writes it. Refuses to know: which versions are right."""

from __future__ import annotations

import sys
from importlib.metadata import distributions

HEAD = """\
# Exact versions that the tests ran with. make serve, make test and deploy/Dockerfile install these.
# After a change of the dependencies in pyproject.toml: make constraints
"""
NOT_PINNED = {"ninelives", "pip", "setuptools", "wheel"}


def constraints() -> str:
    """The file."""
    found = {dist.metadata["Name"]: dist.version for dist in distributions()}
    lines = [f"{name}=={version}\n" for name, version in found.items() if name.lower() not in NOT_PINNED]
    return HEAD + "".join(sorted(lines, key=str.lower))


if __name__ == "__main__":
    sys.stdout.write(constraints())
