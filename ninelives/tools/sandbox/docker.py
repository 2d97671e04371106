"""Containers. Owns: one container per workspace, made and kept by docker or podman, the guardian inside it, and the way
of a command into it. Refuses to know: what runs inside, and who owns a workspace.

Theory of operation. The container of a workspace outlives calls and servers. It is found again by its name. Processes
are told apart by their group id: each call has its own, and inside nobody can change it, because there is no capability
and no set-id program. So the processes of a call are found whatever they did: a new session, an empty environment.

The guardian is a shell of root inside the container, with the right to send signals and no other. This server holds its
stdin. A group id on a line ends all processes of that call. The end of stdin, also by kill -9 of this server, ends all
processes in the container. At its start it does the same, so a new server inherits nothing from an old one.

The gate is outside: a command enters the container only with permission (launch.py). Killing the client of `docker
exec` does not end the command, and the engine may even start it afterwards. So each call has a file that says it is
alive. It goes before its processes are ended. A command that begins without its file ends at once."""

from __future__ import annotations

import hashlib
import itertools
import os
import select
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ninelives.tools.base import ToolRefused
from ninelives.tools.sandbox.base import (
    SHELL,
    Bounds,
    CallFile,
    CallGroups,
    Holds,
    Kind,
    Launch,
    Start,
    dropped_uid,
)
from ninelives.tools.sandbox.reaper import CALL
from ninelives.tools.sandbox.seccomp import docker_profile

CALL_FILES = "/run/ninelives"
SCOPE, WORKSPACE, MADE_BY = "ninelives.scope", "ninelives.workspace", "ninelives.options"
_GROUPS = range(20_000, 60_000)
"""Group ids of calls. Rootless engines map ids up to 65,535."""
_PROCESSES = 256
_RUN_S = 60.0
_READY_S = 30.0
_GUARDIANS = 3
"""How often a guardian is started. The one of a server that just ended may end the first one with all others."""
_END_S = 10.0
_STAY = "trap 'exit 0' TERM; while :; do sleep 86400 & wait $!; done"
"""The first process of a container. It only waits, and reaps orphans."""
_ALIVE = '[ -e "$1" ] || exit 125; shift; '
_GUARDIAN = """exec 2>/dev/null
of() {
  for folder in /proc/[0-9]*; do
    state=
    while read -r key value rest; do
      case $key in
        State:) state=$value;;
        Gid:) [ "$value" = "$1" ] && case $state$2 in Z*|X*|Tr|tr) ;; *) echo "${folder#/proc/}";; esac; break;;
      esac
    done <"$folder/status"
  done
}
end() {
  n=0
  while left=$(of "$1" r); [ -n "$left" ] && [ $n -lt 500 ]; do kill -STOP $left; n=$((n+1)); done
  n=0
  while left=$(of "$1" a); [ -n "$left" ] && [ $n -lt 500 ]; do kill -9 $left; n=$((n+1)); done
  [ -z "$left" ]
}
kill -9 -1
echo ready
while read -r group; do if end "$group"; then echo "ended $group"; else echo "left $group"; fi; done
rm -f /run/ninelives/live-*
for n in 1 2 3; do kill -9 -1; sleep 1; done
"""


class DockerOptions(Struct, frozen=True):
    """How containers are made."""

    image: str
    folder: Path
    """Where the files of calls are, below the data directory. It tells the containers of this server from others."""
    program: str = ""
    """docker or podman, or a path. Empty: the first that is installed."""
    network: str = "none"
    memory_bytes: int = 2 << 30
    environ: Mapping[str, str] = {}
    """The environment of the program."""


class Docker:
    """The sandbox made of containers."""

    kind: Kind = "docker"
    contained = False
    groups: CallGroups | None = None
    gate_outside = True

    def __init__(self, program: str, options: DockerOptions, rootless: bool) -> None:
        self.uid = dropped_uid()
        self.bounds: Bounds | None = Bounds(processes=None)
        self._run = _Engine(program, options, rootless)
        online = options.network != "none"
        self.holds = Holds(
            network=online,
            memory_bytes=Bounds().memory_bytes,
            call_memory_bytes=options.memory_bytes,
            processes=_PROCESSES,
            seccomp=True,
            nothing_survives=True,
        )
        network = f"network {options.network}" if online else "no network"
        by = Path(program).name
        self.says = f"containers of {options.image} by {by}: {network}, only the workspace can be written"
        self._containers: dict[Path, _Container] = {}
        self._lock = threading.Lock()

    def ready(self, workspace: Path) -> None:
        """See Sandbox.ready: the container runs and has a guardian."""
        with self._lock:
            container = self._containers.setdefault(workspace, _Container(self._run, workspace))
        container.ready()

    def call_folder(self, workspace: Path) -> Path | None:
        """See Sandbox.call_folder."""
        return self._run.call_folder(workspace)

    def path_inside(self, file: CallFile) -> str:
        """See Sandbox.path_inside."""
        return f"{CALL_FILES}/{file.path.name}"

    def wrap(self, argv: Sequence[str], launch: Launch) -> Start:
        """See Sandbox.wrap."""
        container = self._containers.get(launch.workspace)
        if container is None:
            raise ToolRefused("The container of this workspace does not run.")
        group = container.begin()
        live = f"{CALL_FILES}/live-{group}"
        words = (SHELL, "-c", f'{_ALIVE}exec "$@"', "sh", live, *argv)
        entry = self._run.enter(container.name, f"{self._run.uid}:{group}", *words)
        environ = {**self._run.options.environ, CALL: launch.call_id}
        return Start(entry, environ, sweep=lambda: container.end(group))

    def close(self) -> None:
        """See Sandbox.close. The containers stay, without a process of ours, but for those that nobody owns."""
        with self._lock:
            for container in self._containers.values():
                container.close()
        with suppress(ToolRefused):  # the engine is gone: the next start removes them
            self._run.remove_ownerless()


class _Engine:
    """The command line of docker or podman."""

    def __init__(self, program: str, options: DockerOptions, rootless: bool) -> None:
        self.options = options
        self.uid = os.geteuid() if dropped_uid() is None else dropped_uid()
        self._program = program
        self._rootless = rootless
        self.profile = options.folder / "seccomp.json"
        self._scope = hashlib.sha256(os.path.realpath(options.folder).encode()).hexdigest()[:12]

    def name(self, workspace: Path) -> str:
        """The name of the container of a workspace."""
        return f"ninelives-{self._scope}-{workspace.name}"

    def call_folder(self, workspace: Path) -> Path:
        """The folder with the files of calls, which the container sees too."""
        return self.options.folder / self.name(workspace)

    def enter(self, name: str, user: str, *words: str, stdin: bool = False) -> tuple[str, ...]:
        """The words that run a program in a container."""
        return (self._program, "exec", *(["-i"] if stdin else []), "--user", user, name, *words)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the program. Raises ToolRefused if it does not answer. Podman leaves a file `oom` in its working folder
        when a container runs out of memory, so that is a folder of ours."""
        try:
            self.options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return subprocess.run(
                (self._program, *words),
                cwd=self.options.folder,
                env=dict(self.options.environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_RUN_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolRefused(f"The container could not be reached: {error}.") from error

    def guardian(self, name: str) -> subprocess.Popen[bytes]:
        """Start the guardian of a container."""
        return subprocess.Popen(
            self.enter(name, "0:0", SHELL, "-c", _GUARDIAN, stdin=True),
            cwd=self.options.folder,
            env=dict(self.options.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def make(self, workspace: Path) -> subprocess.CompletedProcess[str]:
        """Make and start the container of a workspace."""
        return self.call("run", "--detach", *self.description(workspace), self.options.image, "-c", _STAY)

    def description(self, workspace: Path) -> list[str]:
        """Everything about a container but its image."""
        options, name = self.options, self.name(workspace)
        memory, here = str(options.memory_bytes), str(workspace)
        mapped = ["--userns", "keep-id"] if self._rootless and "podman" in Path(self._program).name else []
        return [
            *("--name", name, "--hostname", "ninelives", "--pull", "never", "--entrypoint", SHELL),
            *("--label", f"{SCOPE}={self._scope}", "--label", f"{WORKSPACE}={here}"),
            *("--label", f"{MADE_BY}={self.digest(workspace)}"),
            *("--user", f"{self.uid}:{self.uid}", *mapped, "--workdir", "/"),
            *("--cap-drop", "ALL", "--cap-add", "KILL", "--security-opt", "no-new-privileges"),
            *("--security-opt", f"seccomp={self.profile}"),
            *("--network", options.network, "--read-only", "--tmpfs", "/tmp:rw,nosuid,nodev,size=256m,mode=1777"),
            *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(_PROCESSES), "--oom-score-adj", "1000"),
            *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--ulimit", "core=0:0"),
            *("--volume", f"{here}:{here}", "--volume", f"{self.call_folder(workspace)}:{CALL_FILES}"),
        ]

    def digest(self, workspace: Path) -> str:
        """Changes with everything that a container is made of."""
        options = self.options
        made_of = (options.image, options.network, options.memory_bytes, str(workspace), self.uid, _STAY)
        return hashlib.sha256(repr(made_of).encode() + docker_profile()).hexdigest()[:12]

    def remove_ownerless(self) -> list[str]:
        """Remove the containers of this data directory whose workspace is gone. Their names."""
        shown = self.call("ps", "--all", "--filter", f"label={SCOPE}={self._scope}", "--format", "{{.Names}}")
        gone = []
        for name in shown.stdout.split():
            workspace = self.call("inspect", "--type", "container", "--format", _WORKSPACE_OF, name)
            if workspace.returncode == 0 and not Path(workspace.stdout.strip()).is_dir():
                self.call("rm", "--force", name)
                gone.append(name)
        return gone


_WORKSPACE_OF = '{{index .Config.Labels "ninelives.workspace"}}'
_STATE = '{{.State.Running}} {{index .Config.Labels "ninelives.options"}}'


class _Container:
    """The container of one workspace, as this server uses it. All methods block."""

    def __init__(self, engine: _Engine, workspace: Path) -> None:
        self.name = engine.name(workspace)
        self._engine = engine
        self._workspace = workspace
        self._guardian: _Guardian | None = None
        self._numbers = itertools.count()
        self._active: set[int] = set()
        self._lock = threading.Lock()

    def ready(self) -> None:
        """Make, start or adopt the container. Raises ToolRefused."""
        with self._lock:
            if self._guardian is not None:
                if self._guardian.alive:
                    return
                self._guardian.close()
                self._guardian = None
            self._prepare_folders()
            for _ in range(_GUARDIANS):
                self._start()
                guardian = _Guardian(self._engine.guardian(self.name))
                if guardian.wait_ready():
                    self._guardian = guardian
                    return
            raise ToolRefused(f"The container {self.name} could not be used: its guardian did not start.")

    def begin(self) -> int:
        """The group id of a new call, whose file says that it is alive."""
        with self._lock:
            numbers = (_GROUPS[next(self._numbers) % len(_GROUPS)] for _ in _GROUPS)
            group = next(each for each in numbers if each not in self._active)
            self._active.add(group)
        self._live(group).touch(mode=0o644)
        return group

    def end(self, group: int) -> None:
        """End all processes of a call. If the guardian cannot, the container is restarted, which ends all."""
        self._live(group).unlink(missing_ok=True)
        guardian = self._guardian
        if guardian is None or not guardian.end(group):
            with self._lock:
                if guardian is not None:
                    guardian.close()
                self._guardian = None
                self._engine.call("restart", "-t", "0", self.name)
        self._active.discard(group)

    def close(self) -> None:
        """Let the guardian go. It ends all processes first."""
        with self._lock:
            if self._guardian is not None:
                self._guardian.close()
                self._guardian = None

    def _live(self, group: int) -> Path:
        return self._engine.call_folder(self._workspace) / f"live-{group}"

    def _prepare_folders(self) -> None:
        """The folder of calls is empty. New files in the workspace have its group and not that of the call."""
        folder = self._engine.call_folder(self._workspace)
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                path.unlink()
        found = os.stat(self._workspace)
        os.chmod(self._workspace, stat.S_IMODE(found.st_mode) | stat.S_ISGID)

    def _start(self) -> None:
        shown = self._engine.call("inspect", "--type", "container", "--format", _STATE, self.name)
        running, _, made_by = shown.stdout.strip().partition(" ")
        same = shown.returncode == 0 and made_by == self._engine.digest(self._workspace)
        if same and (running == "true" or self._engine.call("start", self.name).returncode == 0):
            return
        # It is not there, is made of something else, or was left half made by a server that was killed.
        self._engine.call("rm", "--force", self.name)
        made = self._engine.make(self._workspace)
        if made.returncode != 0:
            raise ToolRefused(f"The container {self.name} could not be started: {made.stderr.strip()[-300:]}")


class _Guardian:
    """The shell that ends processes in a container. It ends all of them when this server is gone."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def wait_ready(self) -> bool:
        """Whether it has ended what was left of earlier servers."""
        ready = self._answer(_READY_S) == "ready"
        if not ready:
            self.close()
        return ready

    def end(self, group: int) -> bool:
        """End all processes of a group id. False if that is not certain."""
        with self._lock:
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(f"{group}\n".encode())
                ended = self._answer(_END_S) == f"ended {group}"
            except OSError:
                ended = False
            if not ended:
                self.close()
            return ended

    def _answer(self, seconds: float) -> str:
        assert self._process.stdout is not None
        fd, deadline, line = self._process.stdout.fileno(), time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return ""
            data = os.read(fd, 1)
            if not data:
                return ""
            line += data
        return line.decode("ascii", "replace").strip()

    def close(self) -> None:
        """End its client. Inside, the end of its stdin makes it end all processes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def find_docker(options: DockerOptions) -> Docker | str:
    """Whether containers can be made of the image. If not: the reason, which follows "tools.sandbox is docker, but".
    Removes containers that nobody owns. Blocks."""
    names = (options.program,) if options.program else ("docker", "podman")
    program = next(filter(None, (shutil.which(name) for name in names)), None)
    if program is None:
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not installed"
    engine = _Engine(program, options, rootless=False)
    try:
        info = engine.call("info", "--format", "{{json .}}")
        if info.returncode != 0:
            return f"{Path(program).name} does not work: {info.stderr.strip()[-300:]}"
        if engine.call("image", "inspect", options.image).returncode != 0:
            return f"there is no image {options.image}: {Path(program).name} pull {options.image}"
        engine.remove_ownerless()
        options.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        engine.profile.write_bytes(docker_profile())
    except ToolRefused as refused:
        return str(refused)
    except OSError as error:
        return f"{options.folder} cannot be written: {error.strerror}"
    rootless = '"rootless":true' in info.stdout.replace(" ", "") or "name=rootless" in info.stdout
    return Docker(program, options, rootless)
