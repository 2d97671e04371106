"""Logging. Owns: the format of a line (an event name and fields), the redaction of secrets, and that one event is one
line whatever its fields hold. Callers pass no prompt text and no keys. Refuses to know: who reads the lines, and where
secrets come from."""

from __future__ import annotations

import json as stdlib_json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import BinaryIO, Literal, TextIO
from urllib.parse import quote

import msgspec

_STORED_KEY = re.compile(r"nl_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
"""A stored key. The process knows only its digest, so it is hidden by its form; its id may be seen."""
SHORTEST_SECRET = 4
"""Characters. To hide shorter texts would garble most lines."""

_ENCODED = (int, float, dict, list, tuple, type(None))
"""What JSON has a form for. A tuple, because a union is made anew each time that it is asked for."""


def printable(text: str, keep: str = "") -> str:
    """A text that cannot move the cursor, change colours, reorder what is read or begin a new line: every character
    that is not printable, except those of `keep`, is written as an escape."""
    return _escaped(text, lambda sign: sign.encode("unicode_escape").decode("ascii"), keep)


def _escaped(text: str, escape: Callable[[str], str], keep: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else escape(sign) for sign in text)


Level = Literal["info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("info", "warning", "error")


class Secrets:
    """Texts that must not be shown."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._forms: list[str] = []
        self.hide(known)

    def hide(self, secrets: Iterable[str]) -> None:
        """Hide these from now on, also as they look in a URL, in JSON and in the repr of an exception."""
        plain = {secret.strip() for secret in secrets}
        forms = {form for secret in plain if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
        self._forms = sorted(
            forms.union(self._forms), key=len, reverse=True
        )  # the longest first: one may begin another

    def mask(self, text: str) -> str:
        """The text without secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, "[secret]")
        return _STORED_KEY.sub(r"nl_\1_[secret]", text) if "nl_" in text else text


def _forms(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), repr(secret)[1:-1], stdlib_json.dumps(secret, ensure_ascii=False)[1:-1]}


_MILLISECONDS = tuple(f".{number:03}+00:00" for number in range(1000))


class UtcTimes:
    """The time of a line, to the millisecond. The part up to the second is made once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._shown = ""

    def __call__(self) -> str:
        """Now."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._shown = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._shown + _MILLISECONDS[int((now - second) * 1000)]


class Log:
    """Writes one line per event; none where `stream` is None. `secrets` are replaced wherever they occur in a line."""

    def __init__(
        self,
        now: Callable[[], str],
        stream: TextIO | None = sys.stderr,
        *,
        json: bool = False,
        secrets: Iterable[str] = (),
        level: Level = "info",
    ) -> None:
        self._now = now
        self._stream = stream
        self._bytes: BinaryIO | None = getattr(stream, "buffer", None) if stream is not None else None
        """The stream without its encoder, which takes as long as the line."""
        self._json = json
        self._shown_levels = LEVELS[LEVELS.index(level) :] if stream is not None else ()
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self.secrets = Secrets(secrets)

    def info(self, name: str, **fields: object) -> None:
        """Something happened."""
        self._write("info", name, fields)

    def warning(self, name: str, **fields: object) -> None:
        """Something went wrong, and was handled."""
        self._write("warning", name, fields)

    def error(self, name: str, **fields: object) -> None:
        """Something failed."""
        self._write("error", name, fields)

    def _write(self, level: Level, name: str, fields: dict[str, object]) -> None:
        if level not in self._shown_levels:
            return
        if not self._json:
            line = self._text_line(level, name, fields)
        else:
            told = {"at": self._now(), "level": level, "event": name, **fields}
            try:
                line = self._encode(told)
            except UnicodeEncodeError:  # half a surrogate pair
                line = b"\\"
            if line.isascii() and b"\\" not in line and b"\x7f" not in line:  # nearly all lines
                line = self.secrets.mask(line.decode()).encode() + b"\n"
            else:
                line = self._escaped_line(told)
        if self._bytes is not None:
            self._bytes.write(line)
            self._bytes.flush()
        elif self._stream is not None:
            self._stream.write(line.decode())
            self._stream.flush()

    def _text_line(self, level: str, name: str, fields: dict[str, object]) -> bytes:
        rest = " ".join(f"{key}={value}" for key, value in fields.items())
        return _line(printable(self.secrets.mask(f"{self._now()} {level:7} {name} {rest}".rstrip())))

    def _escaped_line(self, told: dict[str, object]) -> bytes:
        """A line of JSON in which something is escaped. The mask of the whole line may not find a secret there, so each
        field is masked by itself."""
        shown = {key: self._shown(value) for key, value in told.items()}
        text = self.secrets.mask(self._encode(shown).decode())
        return _line(_escaped(text, lambda sign: stdlib_json.dumps(sign)[1:-1]))

    def _shown(self, value: object) -> object:
        """Text that can be encoded: half a surrogate pair becomes an escape."""
        if isinstance(value, _ENCODED):
            return value
        return self.secrets.mask(str(value)).encode("utf-8", "backslashreplace").decode()


def _line(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace") + b"\n"


class LibraryHandler(logging.Handler):
    """Lines of libraries (the HTTP server, the event loop), under the rules of this log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        trace = {"trace": self.format(record)} if record.exc_info else {}
        write("library", source=record.name, text=record.getMessage(), **trace)
