"""Logging. Owns: the format of a line (an event name and fields) and the redaction of secrets. Callers pass no
prompt text and no keys. Refuses to know: who reads the lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

import msgspec


def printable(text: str, keep: str = "") -> str:
    """A text that cannot move the cursor, change colours, reorder what is read or begin a new line: every character
    that is not printable, except those of `keep`, is written as an escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


class Log:
    """Writes one line per event; none where `stream` is None. `secrets` are replaced wherever they occur in a line."""

    def __init__(
        self,
        now: Callable[[], str],
        stream: TextIO | None = sys.stderr,
        *,
        json: bool = False,
        secrets: set[str] | None = None,
    ) -> None:
        self._now = now
        self._stream = stream
        self._json = json
        self.secrets = secrets or set()

    def info(self, name: str, **fields: object) -> None:
        """Something happened."""
        self._write("info", name, fields)

    def warning(self, name: str, **fields: object) -> None:
        """Something went wrong, and was handled."""
        self._write("warning", name, fields)

    def error(self, name: str, **fields: object) -> None:
        """Something failed."""
        self._write("error", name, fields)

    def _write(self, level: str, name: str, fields: dict[str, object]) -> None:
        if self._stream is None:
            return
        if self._json:
            line = msgspec.json.encode(
                {"at": self._now(), "level": level, "event": name, **fields}, enc_hook=str
            ).decode()
        else:
            rest = " ".join(f"{key}={value}" for key, value in fields.items())
            line = f"{self._now()} {level:7} {name} {rest}".rstrip()
        for secret in self.secrets:
            line = line.replace(secret, "[secret]")
        self._stream.write(line.replace("\n", "\\n") + "\n")
        self._stream.flush()
