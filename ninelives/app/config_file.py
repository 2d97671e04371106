"""The configuration file. Owns: which file counts, and which files of a current folder are trusted. A repository can
bring a `ninelives.toml` that runs a command or names a foreign server, so such a file is used only after its user
trusted it. Refuses to know: what a file says."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from ninelives.app.errors import ConfigError

FILE_ENV = "NINELIVES_CONFIG"
FILE_NAME = "ninelives.toml"


class FoundConfig(Struct, frozen=True):
    """The file that counts, and what it holds. `ignored` says which file was passed over, why, and what to do."""

    path: Path | None = None
    content: bytes = b""
    ignored: str = ""


def find_config(path: Path | None, env: Mapping[str, str]) -> FoundConfig:
    """The named file; else the trusted one of the current folder; else the one of the user. Raises ConfigError."""
    named = path or (Path(env[FILE_ENV]).expanduser() if env.get(FILE_ENV) else None)
    if named is not None:
        if not named.exists() or named.is_dir():  # a pipe will do: --config <(command)
            raise ConfigError(f"There is no configuration file {named}: check --config and {FILE_ENV}.")
        return FoundConfig(named, read_config(named))
    own = config_folder(env) / FILE_NAME
    here = _of_this_folder(own, env)
    if here.path is not None or not own.is_file():
        return here
    return FoundConfig(own, read_config(own), here.ignored)


def _of_this_folder(own: Path, env: Mapping[str, str]) -> FoundConfig:
    here = Path(FILE_NAME)
    if not here.is_file() or (own.is_file() and here.samefile(own)):
        return FoundConfig()
    place = trust_place(here)
    digest = TrustList(env).digest_of(place)
    content = read_config(here) if digest else b""  # a file that was never trusted is not even read
    if digest == digest_of(content):
        return FoundConfig(here, content)
    why = "it changed since it was trusted" if digest else "it is not trusted"
    return FoundConfig(
        ignored=f"{place} is not used: {why}. Read it, then run `ninelives trust`, or name it: --config {FILE_NAME}"
    )


def config_folder(env: Mapping[str, str]) -> Path:
    """The folder of the user's own configuration."""
    return (Path(env["HOME"]) if env.get("HOME") else Path.home()) / ".config" / "ninelives"


def trust_place(file: Path) -> str:
    """The name of a file in the list. A link is not followed: what it points to may be trusted in another folder,
    where the modules that it names are others."""
    return str(file.parent.resolve() / file.name)


def digest_of(content: bytes) -> str:
    """The digest by which a content is trusted."""
    return hashlib.sha256(content).hexdigest()


class TrustList:
    """The trusted files of this user: place and digest."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._path = config_folder(env) / "trusted.json"

    def all(self) -> dict[str, str]:
        """The digest of each trusted file. Raises ConfigError."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"The list of trusted files {self._path} cannot be read: {error}") from error

    def digest_of(self, place: str) -> str:
        """The digest that was trusted; empty for none."""
        return self.all().get(place, "")

    def add(self, file: Path, content: bytes) -> None:
        """Trust a file with this content. Raises ConfigError."""
        self._write({**self.all(), trust_place(file): digest_of(content)})

    def remove(self, file: Path) -> bool:
        """Trust a file no longer. False where it was not trusted. Raises ConfigError."""
        known = self.all()
        if known.pop(trust_place(file), None) is None:
            return False
        self._write(known)
        return True

    def _write(self, known: dict[str, str]) -> None:
        draft = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(known)) + b"\n")
            draft.replace(self._path)
        except OSError as error:
            raise ConfigError(f"The list of trusted files {self._path} cannot be written: {error}") from error


def read_config(path: Path) -> bytes:
    """The content of a file. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}") from error
