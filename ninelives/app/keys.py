"""The keys that a server starts with. Owns: what makes a key too weak, the key file of a data directory (A4), and the
owners and keys of profiles. Refuses to know: how requests are checked against them."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ninelives.app.errors import ConfigError

if TYPE_CHECKING:
    from ninelives.app.settings import Settings

KEY_LENGTH = range(16, 513)
"""Allowed lengths of a key in characters: 16 by A4, 512 by http/edge/keys.py."""

_PLACEHOLDERS = ("changeme", "yourapikey", "yourkey", "yoursecret", "placeholder", "replaceme", "password", "skxxxx")
_VISIBLE = re.compile(r"[!-~]+")
_NOT_PLAIN = re.compile(r"[^a-z0-9]")
MAKE_KEY = "Make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
ADMIN_OWNER = "default"
"""The owner of the admin key."""
_OWNER = re.compile(r"[A-Za-z0-9._@+=-]{1,128}")
"""Without a slash: the workspace of a session is named OWNER/SESSION."""


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


class ProfileKey(Struct, frozen=True):
    """The key of a profile. Its repr does not show the secret."""

    profile: str
    owner: str
    secret: str

    def __repr__(self) -> str:
        return f"ProfileKey({self.profile!r}, {self.owner!r})"


def profile_keys(settings: Settings, admin_key: str) -> list[ProfileKey]:
    """The keys of all profiles. Raises ConfigError."""
    found: list[ProfileKey] = []
    for name, table in settings.tables.profiles.items():
        if table.owner is not None:
            _check_owner(name, table.owner, settings.server.model_name)
        if table.key is None:
            continue
        if table.owner is None:
            raise ConfigError(f'[profiles.{name}] has a key but no owner. Set owner, such as owner = "{name}".')
        if why := weakness(table.key):
            raise ConfigError(f"The key of [profiles.{name}] is refused: it {why}. {MAKE_KEY}")
        taken = [other.profile for other in found if other.secret == table.key]
        if taken or table.key == admin_key:
            whose = f"[profiles.{taken[0]}]" if taken else "the admin"
            raise ConfigError(f"[profiles.{name}] has the same key as {whose}: each needs its own. {MAKE_KEY}")
        found.append(ProfileKey(name, table.owner, table.key))
    return found


def _check_owner(profile: str, owner: str, default: str) -> None:
    where = f"[profiles.{profile}] owner = {owner!r}"
    if profile == default:
        raise ConfigError(f"{where}: the default profile is for everybody. Choose another server.model_name.")
    if owner == ADMIN_OWNER:
        raise ConfigError(f"{where}: this name belongs to the admin key. Choose another.")
    if not _OWNER.fullmatch(owner):
        raise ConfigError(f"{where}: an owner is 1 to 128 letters, digits or ._@+=-.")
