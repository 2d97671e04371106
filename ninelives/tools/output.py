"""The text of tool outputs. Owns: the byte bound and its note, the characters that are let through, and the file in the
workspace that holds a long output whole. Refuses to know: which tool made it, and how long is too long."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path

from ninelives.tools.base import Place, ToolRefused
from ninelives.tools.workspace import make_folder, open_folder

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f]")
"""Control characters that mean nothing in text. Each takes six bytes in JSON, and SQL text cannot hold a NUL."""


def bounded(data: bytes, limit: int, total: int | None = None) -> str:
    """`data` as text of at most `limit` bytes, with a note if that is less than the `total` that there was."""
    total = len(data) if total is None else total
    text = _CONTROL.sub("\ufffd", data[:limit].decode("utf-8", "replace"))
    encoded = text.encode()
    if total <= limit and len(encoded) <= limit:
        return text
    text = encoded[:limit].decode("utf-8", "ignore")
    return f"{text}\n[output cut: the first {limit} bytes of {total} are shown]"


async def keep_whole(place: Place, path: str, text: str) -> None:
    """Write an output to `path` in the workspace, where the model can read on."""
    if refusal := await place.home.refusal("workspace"):
        raise ToolRefused(refusal)
    await asyncio.to_thread(_write, place, path, text)


async def forget_whole(place: Place, path: str) -> bool:
    """Delete that file. False if the workspace is on another machine."""
    if await place.home.refusal("workspace"):
        return False
    await asyncio.to_thread(_delete, place, path)
    return True


def _top(place: Place) -> Path:
    """The real path of the workspace: data_dir may be relative, or lead through a link."""
    return Path(os.path.realpath(place.workspace))


def _delete(place: Place, path: str) -> None:
    folder, _, name = path.rpartition("/")
    # A tool may have put a folder or a link there. That is a file of the workspace, and what we wrote is gone.
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        fd = open_folder(place.workspace, _top(place) / folder)
        try:
            os.unlink(name, dir_fd=fd)
        finally:
            os.close(fd)


def _write(place: Place, path: str, text: str) -> None:
    folder, _, name = path.rpartition("/")
    fd = make_folder(place.workspace, _top(place) / folder)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=fd), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    finally:
        os.close(fd)
