"""The system calls that a command may not make. Owns: the table of refused calls, and the filter program (classic BPF)
that the kernel runs before each call, and the same as a profile for containers. Refuses to know: who installs it.

Theory of operation. Namespaces, Landlock and limits bound files, network, processes and address space. Some system
calls get around them: memory in a memfd counts for no process, and AF_VSOCK has no network namespace. Others are only
attack surface: bpf, io_uring, userfaultfd, keyrings, mounts and namespaces inside a sandbox. The filter refuses these.
A call that programs can do without fails with ENOSYS, as on an older kernel. One that needs rights fails with EPERM.

The filter first compares the architecture. A program of another one (32-bit x86) is killed, because its numbers mean
other calls. x32 calls fail with ENOSYS. clone3 does too: its flags are in memory, which a filter cannot read, and libc
then uses clone. Everything that is not in the table is allowed."""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SHM_BYTES = 65_536
"""Largest System V segment. An IPC namespace has at most 4096 of them, so they hold 256 MiB at most."""
SEMAPHORES = 64
"""Most semaphores in a System V set."""
FAMILIES = (0, 1, 2, 10, 16)
"""Allowed socket families: unspecified, UNIX, IPv4, IPv6, netlink (libc asks it for addresses)."""
NEW_NAMESPACES = 0x7E02_0080
"""CLONE_NEW*: mount, cgroup, UTS, IPC, user, pid, network and time."""
_ATTACH, _SEIZE = 16, 0x4206
_REALTIME = (1, 2, 6)  # FIFO, RR, DEADLINE
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x4000_0000


class Machine(NamedTuple):
    """An architecture: its number for the kernel, and its column in the table of calls."""

    arch: int
    column: int


MACHINES = {"x86_64": Machine(0xC000_003E, 0), "aarch64": Machine(0xC000_00B7, 1)}

REFUSED: dict[str, tuple[int, int, int]] = {
    # name: (number on x86_64, on aarch64, error)
    "memfd_create": (319, 279, errno.ENOSYS),
    "memfd_secret": (447, 447, errno.ENOSYS),
    "io_uring_setup": (425, 425, errno.ENOSYS),
    "io_uring_enter": (426, 426, errno.ENOSYS),
    "io_uring_register": (427, 427, errno.ENOSYS),
    "userfaultfd": (323, 282, errno.ENOSYS),
    "clone3": (435, 435, errno.ENOSYS),
    "sched_setattr": (314, 274, errno.ENOSYS),
    "add_key": (248, 217, errno.EPERM),
    "request_key": (249, 218, errno.EPERM),
    "keyctl": (250, 219, errno.EPERM),
    "bpf": (321, 280, errno.EPERM),
    "perf_event_open": (298, 241, errno.EPERM),
    "process_vm_readv": (310, 270, errno.EPERM),
    "process_vm_writev": (311, 271, errno.EPERM),
    "pidfd_getfd": (438, 438, errno.EPERM),
    "kcmp": (312, 272, errno.EPERM),
    "setns": (308, 268, errno.EPERM),
    "mount": (165, 40, errno.EPERM),
    "umount2": (166, 39, errno.EPERM),
    "pivot_root": (155, 41, errno.EPERM),
    "open_tree": (428, 428, errno.EPERM),
    "move_mount": (429, 429, errno.EPERM),
    "fsopen": (430, 430, errno.EPERM),
    "fsconfig": (431, 431, errno.EPERM),
    "fsmount": (432, 432, errno.EPERM),
    "fspick": (433, 433, errno.EPERM),
    "mount_setattr": (442, 442, errno.EPERM),
    "fanotify_init": (300, 262, errno.EPERM),
    "open_by_handle_at": (304, 265, errno.EPERM),
    "syslog": (103, 116, errno.EPERM),
    "acct": (163, 89, errno.EPERM),
    "quotactl": (179, 60, errno.EPERM),
    "quotactl_fd": (443, 443, errno.EPERM),
    "kexec_load": (246, 104, errno.EPERM),
    "kexec_file_load": (320, 294, errno.EPERM),
    "init_module": (175, 105, errno.EPERM),
    "finit_module": (313, 273, errno.EPERM),
    "delete_module": (176, 106, errno.EPERM),
    "reboot": (169, 142, errno.EPERM),
    "swapon": (167, 224, errno.EPERM),
    "swapoff": (168, 225, errno.EPERM),
    "settimeofday": (164, 170, errno.EPERM),
    "clock_settime": (227, 112, errno.EPERM),
}
"""Calls that are refused whatever their arguments are."""


class ArgumentCheck(NamedTuple):
    """A call that is refused for some values of one argument: `jump` compares its low word with each of `values`. If
    `allow`, those are the only allowed ones. If `wide`, a value beyond 32 bits is refused too."""

    numbers: tuple[int, int]
    argument: int
    jump: int
    values: tuple[int, ...]
    error: int
    allow: bool = False
    wide: bool = False


CHECKED: dict[str, ArgumentCheck] = {
    "socket": ArgumentCheck((41, 198), 0, _JUMP_EQUAL, FAMILIES, errno.EAFNOSUPPORT, allow=True),
    "socketpair": ArgumentCheck((53, 199), 0, _JUMP_EQUAL, FAMILIES, errno.EAFNOSUPPORT, allow=True),
    "clone": ArgumentCheck((56, 220), 0, _JUMP_BITS, (NEW_NAMESPACES,), errno.EPERM),
    "unshare": ArgumentCheck((272, 97), 0, _JUMP_BITS, (NEW_NAMESPACES,), errno.EPERM),
    "ptrace": ArgumentCheck((101, 117), 0, _JUMP_EQUAL, (_ATTACH, _SEIZE), errno.EPERM),
    "ioctl": ArgumentCheck((16, 29), 1, _JUMP_EQUAL, (_TIOCSTI, _TIOCLINUX), errno.EPERM),
    "sched_setscheduler": ArgumentCheck((144, 119), 1, _JUMP_EQUAL, _REALTIME, errno.EPERM),
    "shmget": ArgumentCheck((29, 194), 1, _JUMP_GREATER, (SHM_BYTES,), errno.EPERM, wide=True),
    "semget": ArgumentCheck((64, 190), 1, _JUMP_GREATER, (SEMAPHORES,), errno.EPERM),
}


def filter_program(machine: str = "") -> bytes | None:
    """The filter for an architecture (default: this one), as the kernel and `bwrap --seccomp` take it. None if there is
    no column for it in the table."""
    found = MACHINES.get(machine or platform.machine())
    if found is None:
        return None
    program = [
        _step(_LOAD, _ARCH_AT),
        _step(_JUMP_EQUAL, found.arch, yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT),
    ]
    if found.column == 0:
        program += [_step(_JUMP_AT_LEAST, _X32, no=1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for check in CHECKED.values():
        program += _checked(check, found.column)
    for error in (errno.ENOSYS, errno.EPERM):
        program += _refused((row[found.column] for row in REFUSED.values() if row[2] == error), error)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def docker_profile() -> bytes:
    """The same table as a profile for docker and podman, in JSON."""
    rules: list[dict[str, object]] = [
        {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": row[2]} for name, row in REFUSED.items()
    ]
    for name, check in CHECKED.items():
        for operation, value in _conditions(check):
            condition = {"index": check.argument, "value": value, "valueTwo": value, "op": operation}
            rules.append({"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": check.error, "args": [condition]})
    maps = [{"architecture": f"SCMP_ARCH_{name.upper()}", "subArchitectures": []} for name in MACHINES]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "archMap": maps, "syscalls": rules}).encode()


def _conditions(check: ArgumentCheck) -> Iterator[tuple[str, int]]:
    """What makes a profile refuse a call. Each pair alone does."""
    if check.allow:  # all values between the allowed ones, and those above
        yield from (("SCMP_CMP_EQ", value) for value in range(max(check.values)) if value not in check.values)
        yield "SCMP_CMP_GT", max(check.values)
    elif check.jump == _JUMP_BITS:
        bits = [1 << bit for bit in range(32) if check.values[0] >> bit & 1]
        yield from (("SCMP_CMP_MASKED_EQ", bit) for bit in bits)
    else:
        operation = "SCMP_CMP_GT" if check.jump == _JUMP_GREATER else "SCMP_CMP_EQ"
        yield from ((operation, value) for value in check.values)


def _checked(check: ArgumentCheck, column: int) -> list[bytes]:
    """Skip these steps for other calls. Otherwise compare the argument and return."""
    at, refuse = _ARGUMENTS_AT + 8 * check.argument, _ERRNO | check.error
    matched, other = (_ALLOW, refuse) if check.allow else (refuse, _ALLOW)
    tests = [_step(_LOAD, at)]
    for place, value in enumerate(check.values):
        left = len(check.values) - place
        tests.append(_step(check.jump, value, yes=left))
    block = [*tests, _step(_RETURN, other), _step(_RETURN, matched)]
    if check.wide:
        block = [_step(_LOAD, at + 4), _step(_JUMP_EQUAL, 0, yes=1), _step(_RETURN, refuse), *block]
    return [_step(_JUMP_EQUAL, check.numbers[column], no=len(block)), *block]


def _refused(numbers: Iterable[int], error: int) -> list[bytes]:
    """One comparison for each call, then a jump over the refusal."""
    wanted = list(numbers)
    tests = [_step(_JUMP_EQUAL, number, yes=len(wanted) - place) for place, number in enumerate(wanted)]
    return [*tests, _step(_JUMP_EQUAL, 0xFFFF_FFFF, no=1), _step(_RETURN, _ERRNO | error)]


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction. `yes` and `no` are how many instructions a comparison skips."""
    return struct.pack("=HBBI", code, yes, no, value)
