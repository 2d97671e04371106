"""The public test kit. Owns: what a backend, a client or an extension is tested with: the journal contract suite, a
strict reader of event streams, a store that dies on command, an agent that dies at a step, a model that follows a
playbook, a clock that a test moves. It imports no test framework; pytest finds the methods of the suite in a subclass.
Refuses to know: any one backend."""

from __future__ import annotations

from ninelives.testing.agents import AgentTrial
from ninelives.testing.author import Author, Backend, refusal
from ninelives.testing.clock import VirtualClock
from ninelives.testing.contract import JournalContract
from ninelives.testing.crashing import Crash, CrashingStore
from ninelives.testing.playbook import PlaybookModel, Step, asked, said
from ninelives.testing.sse import BadStream, SseReader, parse_sse

__all__ = [
    "AgentTrial",
    "Author",
    "Backend",
    "BadStream",
    "Crash",
    "CrashingStore",
    "JournalContract",
    "PlaybookModel",
    "SseReader",
    "Step",
    "VirtualClock",
    "asked",
    "parse_sse",
    "refusal",
    "said",
]
