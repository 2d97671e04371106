"""The wheel, as users get it. Owns: building it, checking which files it holds, and a smoke test of it in a clean
environment for each interpreter: `python lab/wheel.py PYTHON ...`. Refuses to know: what the server does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def problems(inside: Iterable[str], sources: Iterable[str]) -> list[str]:
    """What is wrong with the files in a wheel. `sources` are the files of the package in the repository."""
    have = set(inside)
    missing = [f"missing: {each}" for each in sorted(set(sources) - have)]
    outside = [each for each in sorted(have) if not each.startswith(("ninelives/", "ninelives-"))]
    return missing + [f"does not belong: {each}" for each in outside]


def source_files() -> list[str]:
    """The files of the package that git knows."""
    listed = subprocess.run(["git", "ls-files", "ninelives"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def build(folder: Path) -> Path:
    """Build the wheel from a clean copy of the tracked files, so that no leftover of an earlier build gets in."""
    copy = folder / "source"
    subprocess.run(["git", "checkout-index", "--all", f"--prefix={copy}/"], cwd=ROOT, check=True)
    subprocess.run([sys.executable, *PIP, "wheel", str(copy), "--no-deps", "-w", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_out(wheel: Path, python: str, folder: Path) -> int:
    """Install the wheel in a new environment and run the smoke test. Returns the exit code."""
    venv = folder / "venv"
    subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True)
    version = subprocess.run([venv / "bin/python", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{wheel.name} on {version}", flush=True)
    constraints = ROOT / "constraints.txt"
    subprocess.run([venv / "bin/python", *PIP, "install", "-c", str(constraints), str(wheel)], check=True)
    return subprocess.run(
        [sys.executable, str(ROOT / "lab/smoke.py"), str(venv / "bin/ninelives")], check=False
    ).returncode


def main(pythons: list[str]) -> int:
    """Print what was found. Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="ninelives-wheel-") as folder:
        wheel = build(Path(folder))
        names = ZipFile(wheel).namelist()
        wrong = problems(names, source_files())
        print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size // 1024} KiB", *wrong, sep="\n  ")
        return max(bool(wrong), *(try_out(wheel, python, Path(folder)) for python in pythons))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [sys.executable]))
