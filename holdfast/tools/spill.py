"""Long outputs, whole. Owns: the file in the workspace where a model can read on in an output of which it was shown an
extract. Refuses to know: how long is too long."""

from __future__ import annotations

import asyncio
import os

from holdfast.tools.base import Place, ToolRefused
from holdfast.tools.workspace import make_folder


async def keep_whole(place: Place, path: str, text: str) -> None:
    """Write an output to `path` in the workspace."""
    if away := await place.home.away("workspace"):
        raise ToolRefused(away)
    await asyncio.to_thread(_write, place, path, text)


def _write(place: Place, path: str, text: str) -> None:
    folder, _, name = path.rpartition("/")
    fd = make_folder(place.workspace, place.workspace / folder)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=fd), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    finally:
        os.close(fd)
