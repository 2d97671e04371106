"""Landlock. Owns: the rules that close the files of the machine to a process and its children, through system calls. It
is also a program: run by path with a plan and a command, it restricts itself and becomes the command. So it imports
nothing of Ninelives. Refuses to know: what runs inside.

The protection is partial. It closes files outside the workspace, and TCP and signals to the outside if the kernel can.
It does not close UDP, sockets in the file system (whoever may use docker.sock gets out) and System V memory. Processes
that left their group run until the reaper finds them. The number of processes is limited only if the server is root,
because only then do commands have a user of their own."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import NamedTuple

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_BASE = (1 << 13) - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""The rights that a rule about a single file may grant."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TCP = 3
_SCOPES = 3
"""Abstract sockets, signals."""


class Plan(NamedTuple):
    """The paths that stay open. Those that do not exist are left out."""

    read: list[str]
    write: list[str]
    uid: int | None = None
    filter: str = ""
    """A seccomp program in hexadecimal (seccomp.py), which main() installs. Empty: none."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The version of Landlock in this kernel; 0 if there is none."""
    return max(0, _syscall(_CREATE, None, 0, _VERSION, check=False))


def restrict(plan: Plan) -> None:
    """Restrict this process for good. Root becomes the planned user first. Raises OSError if that is not possible."""
    version = abi()
    if version < 1:
        raise OSError("this kernel has no Landlock")
    handled = _BASE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled |= _IOCTL_DEV if version >= 5 else 0
    rules = _Ruleset(handled, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _syscall(_CREATE, ctypes.byref(rules), size, 0)
    for path in plan.read:
        _allow(ruleset, path, _READ & handled)
    for path in plan.write:
        _allow(ruleset, path, handled)
    if plan.uid is not None:
        os.setgroups([])
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    _no_new_privileges()
    _syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(rights, fd)), 0)
    finally:
        os.close(fd)


def install_filter(program: bytes) -> None:
    """Let the kernel run this filter before each system call, in this process and its children. Raises OSError."""
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Filter(len(program) // 8, program)))


def _no_new_privileges() -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)


def _prctl(option: int, value: int, pointer: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def _syscall(number: int, *arguments: object, check: bool = True) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result < 0 and check:
        raise OSError(ctypes.get_errno(), f"Landlock call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def main() -> None:
    """Restrict this process by the plan in the first argument, then become the command in the others."""
    try:
        plan = Plan(**json.loads(sys.argv[1]))
        restrict(plan)
        if plan.filter:
            install_filter(bytes.fromhex(plan.filter))
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"landlock: {error}\n")
        sys.exit(125)


if __name__ == "__main__":
    main()
