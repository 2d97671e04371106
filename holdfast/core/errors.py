"""The one error tree. Owns: who erred (client, agent, us), the wire code, the status and the words that tell
what to do next. Refuses to know: how an error is rendered (dialects) or sent (http)."""

from __future__ import annotations


class HoldfastError(Exception):
    """An error with a name on the wire. Raise one of its three branches, never this class."""

    kind = "server_error"
    spent = False
    """True where tools ran before the failure: a client that asks again by itself would run them again."""

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


class ClientError(HoldfastError):
    """The request cannot be done as it was sent; sending it again unchanged will not help."""

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


class AgentError(HoldfastError):
    """The model, a tool or the agent failed. It ends a run as failed; it is never an answer."""

    kind = "upstream_error"

    def __init__(self, code: str, message: str, *, status: int = 502, retry_after: int | None = None) -> None:
        super().__init__(code, message, status=status, retry_after=retry_after)


class ServerError(HoldfastError):
    """Ours: the store is full, the server is stopping, or a bug."""

    kind = "server_error"

    def __init__(self, code: str, message: str, *, status: int = 503, retry_after: int | None = None) -> None:
        super().__init__(code, message, status=status, retry_after=retry_after)


class IllegalEvent(Exception):
    """An event that the table does not allow in this state: a bug of the agent that produced it."""


class Damaged(Exception):
    """The store does not hold what it must: a gap, a broken checksum, an unknown kind of event."""


class NewerEvent(Damaged):
    """Nothing is damaged: a newer release wrote an event of a kind that this one does not know (house rule 6.18)."""


def not_found(noun: str, shown: str, *, expired: bool = False) -> ClientError:
    """The one answer for an unknown id, a foreign owner's id and a deleted one; its owner is told of one that was
    there and that retention took (G7)."""
    gone = f"{noun.capitalize()} expired: {shown} is no longer kept (see the store.* settings for how long runs are)."
    return ClientError(f"{noun}_not_found", gone if expired else f"{noun.capitalize()} not found: {shown}", status=404)


def store_unavailable(why: str) -> ServerError:
    """The store did not answer, which will pass (P15). Whether it did what it was asked is not known."""
    words = (
        f"The store cannot be used now: {why}; try again in a moment. What was asked may have been done all the same: "
        "with an Idempotency-Key a request that is sent again is carried out once."
    )
    return ServerError("store_unavailable", words, retry_after=2)


def store_not_asked(why: str) -> ServerError:
    """The same, where the store is in trouble and was not asked: nothing was begun."""
    words = f"The store cannot be used now: {why}. Nothing was begun; try again in a moment."
    return ServerError("store_unavailable", words, retry_after=2)
