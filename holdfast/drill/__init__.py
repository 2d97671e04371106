"""The fault programme behind `holdfast drill`: kills a real server again and again, and judges from outside what became
of its runs. Owns: the rig, the loads, the judge and the report. Refuses to know: the inside of a server; it talks to a
process over HTTP (but for victim.py and probes.py, which are loaded into that process)."""

from __future__ import annotations

TRACES_ENV = "DRILL_TRACES"
"""Names the file of the probes' traces."""
