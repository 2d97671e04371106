"""The fault test behind `ninelives drill`: it kills a real server again and again, and checks its runs from outside.
Owns: the rig, the loads, the checks and the report. Refuses to know: the inside of a server. It talks to a process over
HTTP; only victim.py and probes.py are loaded into that process.

Start reading at program.py. rig.py has one cycle: load, kill, restart, recover, check. boundaries.py kills at every
write. loads.py has the requests, witness.py collects evidence, checks.py holds it against the promises."""

from __future__ import annotations

TRACES_ENV = "DRILL_TRACES"
"""The environment variable with the path of the probes' trace file."""
