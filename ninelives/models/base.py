"""What a model is. Owns: the Model protocol and the parts of a streamed message. Refuses to know: how tools run, and
runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from ninelives.core.events import Finish, Usage
from ninelives.core.spec import Message


class Text(Struct, frozen=True, gc=False):
    """A piece of the answer."""

    text: str


class Declined(Struct, frozen=True, gc=False):
    """A piece of a refusal."""

    text: str


class Thinking(Struct, frozen=True, gc=False):
    """A piece of reasoning."""

    text: str


class CallPiece(Struct, frozen=True, gc=False):
    """A piece of a tool call. Pieces with the same index are one call. The name comes first; arguments are joined."""

    index: int
    name: str
    arguments: str


class Finished(Struct, frozen=True, gc=False):
    """The end of the message. A stream that stops without it failed."""

    reason: Finish
    usage: Usage


Part = Text | Declined | Thinking | CallPiece | Finished


class Ask(Struct, frozen=True):
    """One request to a model."""

    messages: Sequence[Message]
    """A Transcript where most of them are JSON already."""
    tools: tuple[dict[str, object], ...] = ()
    """In the form of Chat Completions: {"type": "function", "function": {...}}."""
    options: dict[str, object] = {}
    """temperature, max_tokens, stop, response_format and so on, as the upstream takes them."""
    take_parts: Callable[[list[Part]], bool] | None = None
    """A model may offer parts here as soon as they arrive, in order, but never the last one. Parts that are taken
    (True) are not yielded. It saves a wake-up per token."""
    call: str = ""
    """Names the message of the run that is asked for, where the answer may be kept for the next process."""
    told: bool = False
    """The beginning of the answer was passed on by an earlier process: a retry may not follow."""


class CallKeeper(Protocol):
    """Keeps the answers of a model, which so outlive this process, until they are settled. Ask.call names them."""

    def held(self, call: str) -> bool:
        """True where an earlier process made this call and its answer is kept."""
        ...

    def settle(self, call: str) -> None:
        """The message is committed: the answer is not needed any more."""
        ...


@runtime_checkable
class KeptModel(Protocol):
    """A model whose answers may be kept. A stream of a call that is held gives its answer again, from the beginning."""

    keeper: CallKeeper | None
    """None: they end with this process."""


class Model(Protocol):
    """A language model that streams."""

    name: str

    def stream(self, ask: Ask) -> AsyncIterator[Sequence[Part]]:
        """Yield the parts of one message as they arrive, those of one read in one sequence. The last part is Finished.

        Raise AgentError on any failure: a refused, cut, stalled or garbled stream is never a short answer (E1). Retry
        inside, and only before the first part. aclose() closes the connection."""
        ...

    async def probe(self) -> bool:
        """True when the upstream answers. It is cheap, has its own deadline and never raises."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
