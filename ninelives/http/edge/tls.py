"""TLS of the server itself. Owns: reading certificate and key, and errors that say which file is wrong. Refuses to
know: sockets."""

from __future__ import annotations

import ssl
from pathlib import Path


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


class _Encrypted(Exception):
    """The key has a password."""


def _no_password() -> str:
    """Called for a key with a password: a server must not ask its terminal."""
    raise _Encrypted
