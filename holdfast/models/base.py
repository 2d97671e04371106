"""What a model is. Owns: the Model Protocol and the parts of a streamed message. Refuses to know: tools as things
that run, and runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.core.events import Finish, Usage
from holdfast.core.spec import Message


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
    """A piece of a tool call: pieces with one index are one call; name comes first, arguments are joined."""

    index: int
    name: str
    arguments: str


class Finished(Struct, frozen=True, gc=False):
    """The end of the message. A stream that stops without it was cut and is a failure."""

    reason: Finish
    usage: Usage


Part = Text | Declined | Thinking | CallPiece | Finished


class Ask(Struct, frozen=True):
    """One request to a model."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, object], ...] = ()
    """In the form of Chat Completions: {"type": "function", "function": {...}}."""
    options: dict[str, object] = {}
    """temperature, max_tokens, stop, response_format ... as the upstream takes them."""
    take: Callable[[list[Part]], bool] | None = None
    """Where it is given, a model may offer parts here as soon as they come, in their order and never the last one;
    what is taken (True) is not yielded. It spares a wake-up for each token."""


class Model(Protocol):
    """A language model that streams."""

    name: str

    def stream(self, ask: Ask) -> AsyncIterator[Sequence[Part]]:
        """Yield the parts of one message as they come, all that one read brought in one sequence, the last part
        being Finished. Raise AgentError on any failure: a refused, cut, stalled or garbled stream is never a
        short answer. Retries are made inside, before the first part only. Closing the generator with aclose()
        closes the connection."""
        ...

    async def probe(self) -> bool:
        """True when the upstream answers; cheap, with a deadline of its own, never raises."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
