"""The admin key. Owns: what makes a key too weak, and the key file of a data directory (A4). Refuses to know: who uses
it."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from ninelives.app.errors import ConfigError

KEY_LENGTH = range(16, 513)
"""Allowed lengths of a key in characters: 16 by A4, 512 by http/edge/keys.py."""

_PLACEHOLDERS = ("changeme", "yourapikey", "yourkey", "yoursecret", "placeholder", "replaceme", "password", "skxxxx")
_VISIBLE = re.compile(r"[!-~]+")
_NOT_PLAIN = re.compile(r"[^a-z0-9]")
MAKE_KEY = "Make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


def weakness(key: str) -> str | None:
    """Why a key is refused, in words that follow "it"; None when it is allowed."""
    if not _VISIBLE.fullmatch(key):
        return "has characters that an Authorization header cannot carry (visible ASCII only)"
    if len(key) not in KEY_LENGTH:
        return f"has {len(key)} characters ({KEY_LENGTH.start} to {KEY_LENGTH.stop - 1} are allowed)"
    if len(set(key.lower().removeprefix("sk-"))) < 4:
        return "repeats a few characters"
    plain = _NOT_PLAIN.sub("", key.lower())
    return "is a placeholder" if any(word in plain for word in _PLACEHOLDERS) else None


def ensure_key(configured: str | None, data_dir: Path) -> tuple[str, bool]:
    """The admin key, and whether it is new. A configured key wins over the key file; without both, a key is made."""
    if configured is not None:
        return configured, False
    path = data_dir / "key"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return _create_key(path), True
        except FileExistsError:
            return _read_key(path), False
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The key file {path} cannot be used: {error}. Set server.key or repair it.") from error


def _create_key(path: Path) -> str:
    key = f"ak_{secrets.token_urlsafe(32)}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key + "\n")
    return key


def _read_key(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if os.name == "posix" and mode & 0o077:
            raise ConfigError(f"The key file {path} can be read by others (mode {mode:04o}). Run: chmod 600 {path}")
        key = file.read(4096).strip()
    if why := weakness(key):
        raise ConfigError(f"The key in {path} is refused: it {why}. Delete the file to get a new key.")
    return key
