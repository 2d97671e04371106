"""The environment of this process as others see it. Owns: hiding it from them, and where secrets may stand instead
(files that the environment names, systemd credentials). Refuses to know: what the options mean.

Theory of operation. /proc/PID/environ shows the memory in which the kernel put the environment at the start. Removing a
variable does not change that memory. A command without a sandbox, and every other process of the user, reads it there.
So the variables are copied to the heap first, and then the old memory is filled with zeros. os.environ and getenv()
work as before. That is done in place: a restart without the variables would cost a second start of Python."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ninelives.app.errors import ConfigError

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""Where systemd puts the credentials of a service."""
FILE = "_FILE"
MOST_BYTES = 65_536
_ENV_START, _ENV_END = 47, 48  # fields of /proc/PID/stat after the name of the program


def hide_environment(secrets: Collection[str]) -> bool:
    """Remove these variables, so that children do not get them, and let /proc/PID/environ show nothing. False where
    that cannot be done."""
    for secret in secrets:
        os.environ.pop(secret, None)
    try:
        stat = Path("/proc/self/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    fields = stat[stat.rindex(")") + 2 :].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        return False
    for name, value in os.environb.items():
        os.putenv(name, value)
    import ctypes

    ctypes.memset(start, 0, end - start)
    return True


def secret_files(env: Mapping[str, str], names: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(option, value, origin) of secrets that are in files. `names` has the variable of each option that may be secret.
    NAME_FILE wins over a credential of systemd. Raises ConfigError."""
    for option in dict.fromkeys(names.values()):
        path = Path(env[CREDENTIALS], option) if env.get(CREDENTIALS) else None
        if path is not None and path.is_file():
            yield option, _read(path, f"the credential {option}"), f"credential {option}"
    for name, option in names.items():
        if given := env.get(name + FILE, "").strip():
            if env.get(name, "").strip():
                raise ConfigError(f"{name} and {name}{FILE} are both set. Remove one of them.")
            yield option, _read(Path(given).expanduser(), f"{name}{FILE}"), f"env {name}{FILE}"


def _read(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{what} names {path}, which cannot be read: {why}.") from error
    if not text or len(text) > MOST_BYTES:
        raise ConfigError(f"{what} names {path}, which is {'too long' if text else 'empty'}.")
    return text
