"""File descriptors of the process. Owns: the limit that a start sets, and which share of it connections may use. The
rest is a reserve for the store, tools and upstreams, so that strangers who only connect cannot stop a run. Refuses to
know: who uses them."""

from __future__ import annotations

import resource

MOST = 65_536
"""Some systems allow a billion. Tables of that size cost memory, and closing them all takes seconds."""
RESERVE = 128
PER_RUN = 4
"""A connection to the upstream, and pipes of a tool."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one, up to MOST. Returns how many descriptors the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return min(soft, MOST) if soft != resource.RLIM_INFINITY else MOST
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connections_within(descriptors: int, wanted: int, concurrent_runs: int) -> int:
    """How many connections may be open at the same time: what is wanted, less where the reserve would not be left. At
    least half of the descriptors are for connections."""
    reserve = min(RESERVE + PER_RUN * concurrent_runs, descriptors // 2)
    return max(1, min(wanted, descriptors - reserve))
