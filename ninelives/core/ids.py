"""Names of things on the wire. Owns: how one random core becomes run_X, resp_X, chatcmpl-X and msg_X, and how item and
call ids derive from a run and a place in it. Refuses to know: where randomness comes from, and which dialects exist:
the table of dialects registers their prefixes."""

from __future__ import annotations

import re

RESPONSE_PREFIX = "resp_"
"""Admission names responses in its errors, so the core knows this prefix itself."""
_PREFIXES = {"responses": RESPONSE_PREFIX}
_CORE = re.compile(r"\A[A-Za-z0-9]{8,64}\Z")


def register(dialect: str, prefix: str) -> None:
    """Set the prefix of a dialect's run ids. ValueError if an id could then belong to two dialects."""
    for other, taken in _PREFIXES.items():
        if other != dialect and (prefix.startswith(taken) or taken.startswith(prefix)):
            raise ValueError(f"The id prefix {prefix!r} of {dialect!r} collides with {taken!r} of {other!r}.")
    if _PREFIXES.setdefault(dialect, prefix) != prefix:
        raise ValueError(f"The dialect {dialect!r} has the id prefix {_PREFIXES[dialect]!r} already, not {prefix!r}.")


def wire_id(dialect: str, run: str) -> str:
    """The id under which a dialect shows a run."""
    return _PREFIXES[dialect] + run


def is_shown(dialect: str) -> bool:
    """Do the runs of a dialect have an id on the wire? Items that a client adds to a conversation have none: no agent
    ran, so there is nothing to watch."""
    return dialect in _PREFIXES


def run_of(dialect: str, shown: str) -> str | None:
    """The run behind a dialect's own id; None when the id has another shape."""
    prefix = _PREFIXES[dialect]
    core = shown[len(prefix) :]
    return core if shown.startswith(prefix) and _CORE.match(core) else None


def run_of_any(shown: str) -> str | None:
    """The run behind any of its ids (/v1/runs takes them all, G7)."""
    for dialect in _PREFIXES:
        if run := run_of(dialect, shown):
            return run
    return None


def item_id(kind: str, run: str, seq: int) -> str:
    """Items are named by the run and the journal seq that opened them (G1)."""
    return f"{kind}_{run}{seq:06x}"


def runs_of_item(shown: str) -> list[str]:
    """The runs that may have an item of this id: the number at its end has six digits, or four (handed_id)."""
    core = shown.partition("_")[2]
    return [run for digits in (6, 4) if _CORE.match(run := core[:-digits])]


def handed_id(call: str) -> str:
    """The item id of a call that is handed back: several may share one entry, so it is named by the call."""
    return "fc_" + call.removeprefix("call_")


def call_id(run: str, n: int) -> str:
    """Call ids are ours: upstreams repeat theirs (E3)."""
    return f"call_{run}{n:04x}"


def is_call_of(call: str, run: str) -> bool:
    """Was this id of a call made for this run?"""
    return call.startswith(f"call_{run}")
