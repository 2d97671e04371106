"""python -m lab.bench."""

from lab.bench.cli import bench

bench()
