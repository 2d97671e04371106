"""The public test kit. Owns: what a backend, a client or an extension is tested with: the journal contract suite, a
strict reader of event streams, a store that dies on command, a clock that stands still until it is told. Needs no test
framework to be imported; the suite's methods are found by pytest in a subclass. Refuses to know: any one backend."""

from __future__ import annotations

from holdfast.testing.author import Author, Backend, refusal
from holdfast.testing.clock import VirtualClock
from holdfast.testing.contract import JournalContract
from holdfast.testing.crashing import Crash, CrashingStore
from holdfast.testing.sse import BadStream, SseReader, parse_sse

__all__ = [
    "Author",
    "Backend",
    "BadStream",
    "Crash",
    "CrashingStore",
    "JournalContract",
    "SseReader",
    "VirtualClock",
    "parse_sse",
    "refusal",
]
