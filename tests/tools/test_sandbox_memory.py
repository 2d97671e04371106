"""A command that takes all the memory that it can ends itself and not the server. Tried in a small virtual machine with
400 MB (user-mode Linux, which needs no rights): its kernel has cgroups of version 2, and nothing else is hurt (P17)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs tmp /run; mount -t tmpfs tmp /mnt
export PYTHONPATH={root} PYTHONDONTWRITEBYTECODE=1 PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
export TMPDIR=/mnt
cd {root}
for part in {parts}; do {python} -m tests.tools.in_vm $part; done
halt -f
"""


def _in_vm(folder: Path, *parts: str) -> list[dict[str, Any]]:
    """What the parts of in_vm.py say in a fresh machine. It sees the files of this one."""
    kernel = shutil.which("linux.uml")
    if kernel is None or shutil.which("bwrap") is None:
        why = "apt-get install user-mode-linux bubblewrap"
        sys.__stderr__ and sys.__stderr__.write(f"\n!!! MEMORY BOUNDS NOT TESTED: {why}\n")
        pytest.skip(f"MEMORY BOUNDS NOT TESTED: {why}")
    init = folder / "init.sh"
    init.write_text(_INIT.format(root=ROOT, python=sys.executable, parts=" ".join(parts)))
    init.chmod(0o755)
    words = ["mem=400M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", f"init={init}", "quiet"]
    ran = subprocess.run(
        [kernel, *words, "con=null", "con0=null,fd:1", "con1=fd:0,fd:1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)},
    )
    lines = [line.partition("VM ")[2] for line in ran.stdout.splitlines() if line.startswith("VM ")]
    assert lines, ran.stdout[-4000:]
    return [json.loads(line) for line in lines]


@pytest.mark.long
def test_p17_a_command_that_takes_all_memory_kills_itself_and_not_the_server(tmp_path: Path) -> None:
    for part, cgroup in (("cgroup", True), ("order", False)):
        score, said = _in_vm(tmp_path, part)
        assert score == {"score": -500}
        assert said["kind"] == "bwrap" and said["cgroup"] is cgroup and said["error"], said
        assert said["after"] == "alive\n", said


@pytest.mark.long
def test_with_cgroups_the_doctor_proves_the_bound_of_a_call_and_leaves_none_behind(tmp_path: Path) -> None:
    *findings, end = _in_vm(tmp_path, "doctor")
    assert len(findings) == 14 and all(finding["ok"] for finding in findings), findings
    memory = next(finding for finding in findings if "more memory" in finding["name"])
    assert memory["detail"] == "a call with 64 MiB was killed"
    assert end == {"holds": 2 << 30, "left": []}


@pytest.mark.long
def test_the_cgroup_that_a_killed_server_left_goes_at_the_next_start(tmp_path: Path) -> None:
    made, *_, end = _in_vm(tmp_path, "killed", "doctor")
    assert made == {"made": True} and end["left"] == []
