"""TLS of the server itself. Owns: reading certificate and key, again when the files change, and errors that say which
file is wrong. Refuses to know: sockets."""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from pathlib import Path

from ninelives.journal.base import Logger

LOOK_S = 10.0
"""How often the files are looked at."""


class TlsError(Exception):
    """The files cannot be used. The message says what to do."""


def tls_context(cert: str, key: str) -> ssl.SSLContext:
    """The context for a certificate with its chain, and its key, both PEM. Raises TlsError."""
    for name, path in (("server.tls_cert", cert), ("server.tls_key", key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise TlsError(f"{name} {path} cannot be read: {error.strerror}.") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except _Encrypted:
        raise TlsError(
            f"server.tls_key {key} has a password. Store it without one: openssl pkey -in OLD -out NEW"
        ) from None
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise TlsError(f"server.tls_key {key} does not belong to the certificate in {cert}.") from error
        raise TlsError(
            f"{cert} and {key} must be a certificate and its key, as PEM ({error.reason or error})."
        ) from error
    return context


class Certificate:
    """A certificate with its key, and the context that uses them."""

    def __init__(self, cert: str, key: str) -> None:
        """Raises TlsError."""
        self._files = cert, key
        self._seen = self._look()
        self.context = tls_context(cert, key)

    async def keep_current(self, log: Logger) -> None:
        """Use renewed files for new connections. Files that cannot be used change nothing."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.renew, log)

    def renew(self, log: Logger) -> None:
        """Read the files again if they have changed. One may be written before the other: the next look decides."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            tls_context(*self._files)
            self.context.load_cert_chain(*self._files, password=_no_password)
        except (TlsError, ssl.SSLError, OSError) as error:
            log.warning("tls_not_renewed", why=str(error), note="the certificate before stays in use")
        else:
            log.info("tls_renewed", cert=self._files[0])

    def _look(self) -> list[tuple[int, int, int]]:
        """What changes with the files. A file that is missing just now has no entry."""
        found = []
        for path in self._files:
            with suppress(OSError):
                state = os.stat(path)
                found.append((state.st_ino, state.st_size, state.st_mtime_ns))
        return found


class _Encrypted(Exception):
    """The key has a password."""


def _no_password() -> str:
    """Called for a key with a password: a server must not ask its terminal."""
    raise _Encrypted
