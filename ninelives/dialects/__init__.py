"""The dialects: one API each. Owns: the DIALECTS table, one row per dialect. Ids, capabilities, routes and the groups
of /openapi.json are made from it. To add a dialect, add a folder, a row here and a route class in http/routes. A row
only names its projection, so importing one dialect does not import the others. Refuses to know: engines and HTTP."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from msgspec import Struct

from ninelives.core import ids


class Dialect(Struct, frozen=True, kw_only=True):
    """A row of the table."""

    name: str
    """The name in the journal and in /v1/capabilities."""
    tag: str
    """The group of its routes in /openapi.json."""
    about: str
    """One sentence for that group."""
    prefix: str = ""
    """Begins the ids of its runs. Empty: its runs have no id on the wire, and capabilities do not list it."""
    renders: str = ""
    """The class of its projection, as "module:name". Empty: no run is rendered in it."""

    def projection(self) -> Any:  # Any: engine.base.Projection, which this layer may not import
        """A new projection: the fold that makes frames of journal entries."""
        module, _, name = self.renders.partition(":")
        return getattr(import_module(module), name)()


def _table(*rows: Dialect) -> dict[str, Dialect]:
    for row in rows:
        if row.prefix:
            ids.register(row.name, row.prefix)
    return {row.name: row for row in rows}


DIALECTS = _table(
    Dialect(
        name="chat",
        tag="Chat",
        about="OpenAI Chat Completions.",
        prefix="chatcmpl-",
        renders="ninelives.dialects.chat.frames:ChatProjection",
    ),
    Dialect(
        name="completions",
        tag="Completions",
        about="OpenAI Completions, the legacy API: one prompt, answered by a chat.",
        prefix="cmpl-",
        renders="ninelives.dialects.completions.frames:CompletionsProjection",
    ),
    Dialect(
        name="responses",
        tag="Responses",
        about="OpenAI Responses.",
        prefix=ids.RESPONSE_PREFIX,
        renders="ninelives.dialects.responses.frames:ResponsesProjection",
    ),
    Dialect(
        name="conversations",
        tag="Conversations",
        about="OpenAI Conversations: items that responses share.",
    ),
    Dialect(
        name="messages",
        tag="Messages",
        about="Anthropic Messages.",
        prefix="msg_",
        renders="ninelives.dialects.messages.frames:MessagesProjection",
    ),
    Dialect(
        name="runs",
        tag="Runs",
        about="Every stored run, in whichever API it started.",
        prefix="run_",
        renders="ninelives.dialects.runs.frames:RunsProjection",
    ),
)
"""In the order in which they are served and listed."""
