"""What was said before a run. Owns: reading the turns of a chain, a conversation or a session as messages. Refuses to
know: how they are stored, and what is done with them."""

from __future__ import annotations

import msgspec

from holdfast.core.admission import Asked
from holdfast.core.spec import Message, Resolved
from holdfast.journal.base import Catalog


async def earlier_messages(catalog: Catalog, owner: str, resolved: Resolved) -> tuple[Message, ...]:
    """The messages of all turns that come before a run, oldest first."""
    turns = await catalog.turns(owner, resolved)
    return tuple(message for turn in turns for message in msgspec.json.decode(turn, type=list[Message]))


async def would_follow(catalog: Catalog, asked: Asked) -> tuple[Message, ...]:
    """What a request would follow if it were made now. Raises as its admission would."""
    return await earlier_messages(catalog, asked.owner, await catalog.resolve(asked))
