"""What the tests of the docker sandbox share: podman with a store of its own, an image made of files of this machine
(nothing is pulled), and a loud skip where there is no podman."""

from __future__ import annotations

import atexit
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ninelives.tools.sandbox.docker import DockerOptions

IMAGE = "localhost/ninelives-test:1"
_PROGRAMS = (
    *("sh", "cat", "env", "echo", "id", "ls", "mkdir", "mkfifo", "ps", "rm", "setsid", "sleep", "seq", "head", "tail"),
    *("touch", "true", "pwd", "printf", "nproc", "tr", "grep", "kill", "bash", "python3", "date", "mktemp", "stat"),
    "bwrap",
)


class Podman:
    """podman over a folder. `program` is a script, because the server knows one word only."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.program = top / "podman"
        self.program.write_text(
            f"#!/bin/sh\nexport CONTAINERS_CONF={top}/containers.conf\n"
            f"exec {shutil.which('podman')} --storage-driver vfs --root {top}/store --runroot {top}/run "
            f'--tmpdir {top}/tmp --log-level error "$@"\n'
        )
        self.program.chmod(0o755)
        runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
        (top / "containers.conf").write_text(
            f'[engine]\n{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
        )

    def __call__(self, *words: str, check: bool = True) -> str:
        ran = subprocess.run([self.program, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if check and ran.returncode != 0:
            raise OSError(f"podman {' '.join(words)}: {ran.stderr.strip()}")
        return ran.stdout

    def options(self, folder: Path, **more: object) -> DockerOptions:
        environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        known: dict[str, object] = {"image": IMAGE, "folder": folder, "program": str(self.program), "environ": environ}
        return DockerOptions(**known | more)  # type: ignore[arg-type]

    def containers(self) -> list[str]:
        """The names of all containers, running or not."""
        return self("ps", "--all", "--format", "{{.Names}}").split()

    def processes(self, name: str) -> list[str]:
        """What runs in a container, as the machine sees it, but for its first process and that one's child."""
        top = self("top", name, "args", check=False).splitlines()[1:]
        return [line for line in top if "sleep 86400" not in line and line.strip()]

    def remove_all(self) -> None:
        self("rm", "--all", "--force", "--time", "0", check=False)


@functools.cache
def podman() -> Podman:
    """It works, and has the image. The test is skipped, loudly, where it does not."""
    why = "apt-get install podman runc" if shutil.which("podman") is None else ""
    if not why:
        top = Path(tempfile.mkdtemp(prefix="ninelives-podman-", dir="/var/tmp"))
        made = Podman(top)
        atexit.register(_remove, made, top)
        try:
            _import(made, top)
            limits = ("--ulimit", "nofile=99:99", "--ulimit", "nproc=99:99")
            made("run", "--rm", "--network", "none", *limits, IMAGE, "true")
            return made
        except OSError as error:
            why = str(error)
    sys.__stderr__ and sys.__stderr__.write(f"\n!!! DOCKER SANDBOX NOT TESTED: {why}\n")
    pytest.skip(f"DOCKER SANDBOX NOT TESTED: {why}")


def _remove(made: Podman, top: Path) -> None:
    made.remove_all()
    shutil.rmtree(top, ignore_errors=True)


def _import(made: Podman, top: Path) -> None:
    root = top / "root"
    for folder in ("usr/bin", "usr/lib", "etc", "tmp", "proc", "dev", "sys", "run"):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/lib64").mkdir()
    (root / "tmp").chmod(0o1777)
    programs = [path for name in _PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))]
    for path in programs:
        shutil.copy(os.path.realpath(path), root / "usr/bin" / Path(path).name)
    library = Path(glob.glob("/usr/lib/python3.[0-9]*")[0])
    left_out = shutil.ignore_patterns("test", "__pycache__", "dist-packages")
    shutil.copytree(library, root / str(library)[1:], ignore=left_out)
    for module in library.glob("lib-dynload/*.so"):
        programs.append(str(module))
    _copy_libraries(programs, root)
    archive = top / "root.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    made("import", str(archive), IMAGE)
    shutil.rmtree(root)
    archive.unlink()


def _copy_libraries(programs: list[str], root: Path) -> None:
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    for path in {found for found in re.findall(r"(/\S+\.so\S*)", said) if os.path.exists(found)}:
        real = Path("/usr" + path if not path.startswith("/usr") else path)
        target = root / str(real)[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)
