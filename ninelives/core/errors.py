"""The one tree of errors. Owns: whose error it is (the client's, the agent's, ours), its code and status on the wire,
and a message that says what to do next. Refuses to know: how an error is rendered (dialects) or sent (http)."""

from __future__ import annotations

import errno
from collections.abc import Sequence


class NinelivesError(Exception):
    """An error with a code on the wire. Raise one of its three subclasses, not this class."""

    kind = "server_error"
    spent = False
    """True where tools ran before the failure. A client that retries by itself would run them again."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """More about it, in headers of the answer."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.param = param
        self.retry_after = retry_after


class ClientError(NinelivesError):
    """The request is wrong. Sending it again unchanged does not help."""

    kind = "invalid_request_error"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(code, message, status=status, param=param, retry_after=retry_after)


class AgentError(NinelivesError):
    """The model, a tool or the agent failed. It ends a run as failed."""

    kind = "upstream_error"

    def __init__(self, code: str, message: str, *, status: int = 502, retry_after: int | None = None) -> None:
        super().__init__(code, message, status=status, retry_after=retry_after)


class ServerError(NinelivesError):
    """The server failed: the store is full, the server is stopping, or there is a bug."""

    kind = "server_error"

    def __init__(self, code: str, message: str, *, status: int = 503, retry_after: int | None = None) -> None:
        super().__init__(code, message, status=status, retry_after=retry_after)


SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
"""What a system call fails with where the machine lacks descriptors, memory or processes."""


class Shortage(ServerError):
    """The machine is short of something for a moment. A journaled run is parked and tried again; it never fails."""

    def __init__(self, error: OSError) -> None:
        words = f"The machine of the server is short of resources ({error.strerror}): try again in a moment."
        super().__init__("machine_short", words, retry_after=5)


def shortage_of(error: BaseException) -> Shortage | None:
    """The shortage that an error is, or that caused it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in SHORTAGES:
            return Shortage(cause)
        cause = cause.__cause__
    return None


class IllegalEvent(Exception):
    """An event that the table does not allow in this state. It is a bug of the agent that produced it."""


class Damaged(Exception):
    """The store does not have what it must have: a gap, a broken checksum, an event that cannot be read."""


class WentBack(Damaged):
    """The database lost events that this reader was shown: it failed over to a standby that was behind."""

    def __init__(self, run: str, seq: int) -> None:
        super().__init__(
            f"run {run}: events from {seq} on were lost with a database server, so this stream cannot go on. The run "
            "goes on from its last event that was kept: read it again from its beginning"
        )


class NewerEvent(Damaged):
    """Nothing is damaged: a newer release wrote a kind of event that this one does not know (R18)."""


def not_found(noun: str, shown: str, *, expired: bool = False) -> ClientError:
    """The same answer for unknown, foreign and deleted ids. Only the owner of a run learns that it expired (G7)."""
    gone = f"{noun.capitalize()} expired: {shown} is no longer kept (see the store.* settings for how long runs are)."
    return ClientError(f"{noun}_not_found", gone if expired else f"{noun.capitalize()} not found: {shown}", status=404)


def store_unavailable(why: str) -> ServerError:
    """The store did not answer, and that will pass (P15). Whether it did what it was asked is unknown."""
    words = (
        f"The store cannot be used now: {why}; try again in a moment. What was asked may have been done all the same: "
        "with an Idempotency-Key a request that is sent again is carried out once."
    )
    return ServerError("store_unavailable", words, retry_after=2)


def store_not_asked(why: str) -> ServerError:
    """The store is unavailable and was not asked, so nothing was begun."""
    words = f"The store cannot be used now: {why}. Nothing was begun; try again in a moment."
    return ServerError("store_unavailable", words, retry_after=2)
