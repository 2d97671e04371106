"""Installs packages with pip and shows how far it is. Owns: one line of progress, and the output of pip if it fails.
Refuses to know: what is installed. Run it with the Python of the environment: python lab/install.py ARGUMENTS OF PIP"""

from __future__ import annotations

import re
import subprocess
import sys
import time

STEPS = re.compile(r"^ *(?:(Collecting|Building|Preparing|Installing) )([\w.-]+)")


def main(args: list[str]) -> int:
    begun, packages, lines = time.monotonic(), 0, list[str]()
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            if step := STEPS.match(line):
                packages += step[1] == "Collecting"
                _show(f"  {packages} packages, {time.monotonic() - begun:.0f} s: {step[1].lower()} {step[2]}")
    if pip.returncode:
        _show("")
        sys.stderr.writelines(lines)
        return pip.returncode
    _show("")
    print(f"  {packages} packages in {time.monotonic() - begun:.0f} s", flush=True)
    return 0


def _show(text: str) -> None:
    """One line that is written over and over; nothing where nobody watches."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[K{text[:78]}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
