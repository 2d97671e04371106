"""How much a workspace may hold. Owns: measuring it at a bounded cost, the reserve of the disk, and the words for both.
Refuses to know: what is in the files, and who reads the words.

Theory of operation. A file system has no quota that a server without rights could set. So three things bound what a
command writes. One file cannot be larger than the room that is left (RLIMIT_FSIZE). A watcher ends the command when
the workspace has passed its bound. And when the disk has less than the reserve, it ends the commands whose workspace
has grown, and after some seconds all others. That also covers what a measurement cannot see: files without a name, and
files outside of the workspace if there is no sandbox.

Measuring a small workspace takes a millisecond in a thread. A big one is left to du(1), a process of its own. A result
is used again for twenty times as long as it took, unless the disk has lost more space since than the workspace has
room. So a watcher mostly looks at one number, the free space, and more often the less room there is. What is written
between two looks is not bounded: at 2 GB/s a command passes a bound by some tens of megabytes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import Struct

from ninelives.core.holding import Holding, fixed_limit
from ninelives.tools.base import Threads
from ninelives.tools.sandbox.child import spawn

LOOK_S = 0.25
SHORTEST_LOOK_S = 0.01
"""How often a watcher looks at the free space. It looks more often when there is little room."""
FASTEST = 2 << 30
"""Bytes per second that a command writes at most. A faster disk lets it pass a bound by more."""
SHARE = 20
"""A measurement is used for this many times as long as it took."""
LONGEST_S = 60.0
WALK_ENTRIES = 2_000
WALK_DEPTH = 64
DU_S = 60.0
SLACK_BYTES = 1_048_576
"""What a workspace that is full may grow by while files are deleted: folders, and names that are moved."""
GRACE_S = 5.0
"""How long a command whose workspace did not grow goes on while the disk is short."""
UNBOUNDED = 1 << 60
OLD_S = 600.0
MOST_KNOWN = 10_000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DU = 'nice -n 10 du -skx -- "$1" 2>&1 | tail -n 50'


class QuotaLimits(Struct, frozen=True):
    """0 means no bound."""

    workspace_bytes: int = 0
    owner_bytes: int = 0
    total_bytes: int = 0
    reserve_bytes: int = 0
    """Free space of the disk that tools leave alone."""


class Measured(Struct, frozen=True):
    """How much a folder holds on the disk."""

    bytes: int
    unreadable: bool = False
    """Something in it could not be measured."""
    at: float = 0.0
    cost_s: float = 0.0
    free: int = 0
    """The free space of the disk at that time."""


class Bound(Struct, frozen=True):
    """A bound, and how much of it is used."""

    setting: str
    limit: int
    used: int
    what: str
    """What holds these bytes, and what to delete."""

    def words(self) -> str:
        """The state of the bound, and what to do."""
        return f"{self.what} holds {self.used} bytes, and {self.setting} allows {self.limit} bytes"


class Quotas:
    """The bounds of all workspaces on this machine."""

    def __init__(self, limits: QuotaLimits, threads: Threads) -> None:
        self._limits = limits
        self._threads = threads
        self._known: dict[Path, Measured] = {}
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._changed: set[Path] = set()
        self._fixed: Counter[str] = Counter()
        self._free = 0
        self._free_at = 0.0

    def is_changed(self, folder: Path) -> bool:
        """Whether a call used it since it was measured, or that was long ago or never."""
        known = self._known.get(folder)
        return folder in self._changed or known is None or time.monotonic() - known.at > OLD_S

    def last_bytes(self, folder: Path) -> int:
        """Its size when it was measured last."""
        known = self._known.get(folder)
        return known.bytes if known is not None else 0

    def note_fixed(self, fixed: Iterable[Holding]) -> None:
        """Note what counts and is never evicted, of all owners: the result of a survey."""
        self._fixed = Counter()
        for each in fixed:
            self._fixed[each.owner] += each.bytes

    async def bounds(self, workspace: Path, owner: str) -> list[Bound]:
        """The bounds of a workspace, with what is used now."""
        own = await self._own_bounds(workspace)
        self._changed.add(workspace)  # who asks is about to write
        return [*own, *self._shared_bounds(workspace, owner)]

    def _shared_bounds(self, workspace: Path, owner: str) -> Iterator[Bound]:
        """The bounds that workspaces share, by the last survey or what this one holds."""
        held = self.last_bytes(workspace)
        if self._limits.owner_bytes:
            used = max(held, self._fixed[owner])
            what = "What this user keeps in workspaces"
            yield Bound("store.owner_bytes", fixed_limit(self._limits.owner_bytes), used, what)
        if self._limits.total_bytes:
            used = max(held, self._fixed.total())
            yield Bound("store.total_bytes", fixed_limit(self._limits.total_bytes), used, "What all workspaces keep")

    async def _own_bounds(self, workspace: Path) -> list[Bound]:
        limits = [self._limits.workspace_bytes, self._limits.owner_bytes, self._limits.total_bytes]
        if not any(limits):
            return []
        found = await self.measured(workspace, min(each for each in limits if each))
        limit = self._limits.workspace_bytes
        if not limit:
            return []
        if found.unreadable:
            what = "The workspace has a folder that cannot be read (use chmod, or delete it), so it counts as full: it"
            return [Bound("tools.workspace_bytes", limit, max(limit, found.bytes), what)]
        return [Bound("tools.workspace_bytes", limit, found.bytes, "The workspace")]

    async def measured(self, folder: Path, limit: int) -> Measured:
        """The size of a folder. An earlier result is used if it is recent, considering how long it took, and the folder
        cannot have reached `limit` since by the free space of the disk."""
        lock = self._locks.setdefault(folder, asyncio.Lock())
        async with lock:
            known = self._known.get(folder)
            if known is None or time.monotonic() - known.at > min(LONGEST_S, known.cost_s * SHARE):
                return await self.measure(folder)
            grown = max(0, known.free - await self.free(folder))
            return known if known.bytes + grown < limit and not known.unreadable else await self.measure(folder)

    async def measure(self, folder: Path) -> Measured:
        """Measure a folder now."""
        began, free = time.monotonic(), await self.free(folder)
        found = await self._threads.run(_walk, folder)
        if found is None:
            found = await _ask_du(folder)
        cost = time.monotonic() - began
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        measured = Measured(*found, time.monotonic(), cost, free)
        self._changed.discard(folder)
        self._known[folder] = measured
        return measured

    async def free(self, folder: Path) -> int:
        """The free space of the disk, as of some milliseconds ago: all watchers share it."""
        if time.monotonic() - self._free_at > SHORTEST_LOOK_S / 2:
            self._free = await self._threads.run(free_bytes, folder)
            self._free_at = time.monotonic()
        return self._free

    async def room(self, workspace: Path, bounds: Sequence[Bound]) -> int:
        """How many bytes may be written before a bound or the reserve is reached. A short disk leaves some: the store
        decides whether runs go on."""
        rooms = [bound.limit - bound.used for bound in bounds]
        if self._limits.reserve_bytes:
            rooms.append(max(SLACK_BYTES, await self.free(workspace) - self._limits.reserve_bytes))
        return max(0, min(rooms, default=UNBOUNDED))

    async def shortage(self, folder: Path) -> str:
        """Why commands must end, whatever the workspaces hold; empty if the disk has space."""
        reserve = self._limits.reserve_bytes
        if not reserve or (free := await self.free(folder)) >= reserve:
            return ""
        return f"the disk of the server has {free} bytes free, and tools leave {reserve} bytes (store.low_water_bytes)"


class WorkspaceQuota(Struct):
    """See tools.base.Quota: the quota of one workspace."""

    quotas: Quotas
    workspace: Path
    owner: str = ""

    async def _bounds(self) -> list[Bound]:
        return await self.quotas.bounds(self.workspace, self.owner)

    async def refusal(self) -> str:
        """See Quota.refusal."""
        full = next((bound for bound in await self._bounds() if bound.used >= bound.limit), None)
        if full is None:
            return ""
        return f"{full.words()}. Nothing can be written. Delete files with the terminal (rm): deleting works."

    async def room(self) -> int:
        """See Quota.room."""
        return await self.quotas.room(self.workspace, await self._bounds())

    async def exceeded(self) -> str:
        """See Quota.exceeded."""
        bounds = await self._bounds()
        allowed = [max(each.limit, each.used + SLACK_BYTES if each.used >= each.limit else 0) for each in bounds]
        before = await self.quotas.measured(self.workspace, UNBOUNDED)
        disk = _ShortDisk(self.quotas, self.workspace, before.bytes)
        while True:
            room = await self.quotas.room(self.workspace, bounds)
            await asyncio.sleep(min(LOOK_S, max(SHORTEST_LOOK_S, room / FASTEST)))
            if short := await disk.reason():
                return f"[ended: {short}. Write less, or delete files.]"
            bounds = await self._bounds()
            if over := _first_over(bounds, allowed):
                return f"[ended: {over.words()}. Delete files, then write less.]"


class _ShortDisk:
    """Whether a command must end because the disk is short."""

    def __init__(self, quotas: Quotas, workspace: Path, before: int) -> None:
        self._quotas = quotas
        self._workspace = workspace
        self._most = before + SLACK_BYTES
        self._since: float | None = None

    async def reason(self) -> str:
        """The reason; empty if it may go on."""
        short = await self._quotas.shortage(self._workspace)
        if not short:
            self._since = None
            return ""
        if self._since is None:
            self._since = time.monotonic()
            if (await self._quotas.measure(self._workspace)).bytes > self._most:
                return short
        return short if time.monotonic() - self._since > GRACE_S else ""


def _first_over(bounds: Sequence[Bound], allowed: Sequence[int]) -> Bound | None:
    return next((each for each, most in zip(bounds, allowed, strict=False) if each.used > most), None)


def free_bytes(folder: Path) -> int:
    """Free space of the disk that a folder is on. Blocks."""
    found = os.statvfs(folder if folder.exists() else folder.parent)
    return found.f_bavail * found.f_frsize


def disk_bytes(folder: Path) -> int:
    """The size of the disk that a folder is on, which must exist. Blocks."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


def _walk(folder: Path) -> tuple[int, bool] | None:
    """The bytes below a folder, and whether something could not be read. None if there is too much to count here."""
    walk = _Walk()
    try:
        fd = os.open(folder, _FOLDER)
    except OSError:
        return 0, folder.exists()
    return (walk.total, walk.unreadable) if walk.visit(fd, 0) else None


class _Walk:
    """Adds up what the files below a folder take. It follows no link, and counts a file with two names once."""

    def __init__(self) -> None:
        self.total = 0
        self.unreadable = False
        self._left = WALK_ENTRIES
        self._linked: set[int] = set()

    def visit(self, fd: int, depth: int) -> bool:
        """Add a folder, and close it. False if there is too much to count."""
        try:
            with os.scandir(fd) as entries:
                return depth < WALK_DEPTH and all(self._add(entry, fd, depth) for entry in entries)
        except PermissionError:
            self.unreadable = True
            return True
        finally:
            os.close(fd)

    def _add(self, entry: os.DirEntry[str], fd: int, depth: int) -> bool:
        self._left -= 1
        try:
            found = entry.stat(follow_symlinks=False)
            if found.st_nlink == 1 or found.st_ino not in self._linked:
                self.total += found.st_blocks * 512
            if entry.is_dir(follow_symlinks=False):
                return self._left >= 0 and self.visit(os.open(entry.name, _FOLDER, dir_fd=fd), depth + 1)
        except PermissionError:
            self.unreadable = True
        except OSError:
            return self._left >= 0  # gone meanwhile
        else:
            if found.st_nlink > 1:
                self._linked.add(found.st_ino)
        return self._left >= 0


async def _ask_du(folder: Path) -> tuple[int, bool]:
    child = spawn(("/bin/sh", "-c", _DU, "sh", str(folder)), {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}, Path("/"), _NULL)
    result = await child.collect(65_536, DU_S)
    lines = result.kept.decode("utf-8", "replace").splitlines()
    blocks = lines[-1].partition("\t")[0] if lines else ""
    if result.code != 0 or not blocks.isdecimal():
        return 0, True
    return int(blocks) * 1024, any("cannot read" in line or "Permission denied" in line for line in lines[:-1])


_NULL = subprocess.DEVNULL
