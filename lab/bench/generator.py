"""The load generator: which of the two there is. load.c, compiled on first use, costs so little that the server between
its two ends is what is measured; where no C compiler is found, slow.py has the same face and says so. Refuses to know:
what it is used for."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "load.c"
COMPILERS = ("cc", "gcc", "clang")
SLOW = (
    "no C compiler (cc, gcc or clang) was found: the load is made in Python, which reaches about a tenth of it. "
    "Loads that it cannot carry are void. Install a compiler for the whole picture."
)


@dataclass(frozen=True)
class Generator:
    """A command that takes `upstream` or `client` and their options; `wrap` goes before a server's own command."""

    argv: tuple[str, ...]
    wrap: tuple[str, ...] = ()
    warning: str = ""


def find(folder: Path, compilers: tuple[str, ...] = COMPILERS) -> Generator:
    """The one in C, built into the folder unless it is there; else the one in Python."""
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        return Generator((sys.executable, "-m", "lab.bench.slow"), warning=SLOW)
    sources = b"".join(path.read_bytes() for path in sorted([SOURCE, *HERE.glob("load_*.h")]))
    binary = folder / f"load-{hashlib.sha256(sources).hexdigest()[:12]}"
    if not binary.exists():
        made = binary.with_suffix(".new")
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", str(made), str(SOURCE)], check=True)
        made.replace(binary)
    return Generator((str(binary),), (str(binary), "exec"))
