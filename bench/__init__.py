"""The benchmark: what Holdfast adds to an upstream, beside a direct line and a store-less floor, in one run.

`python -m bench` from the root of the repository (see `--help`). Rooms: `load.c` makes the load and is both
ends of it; `machine` knows processes, cores and /proc; `targets` knows how to start what is measured;
`loads` knows what is asked of it and reads one figure; `report` prints, judges and compares. Nothing here
imports holdfast: it is measured from outside, as its users see it.
"""
