"""A short version of `make test-leaks`: what a run used comes back. Judged by counts, not by memory, which depends on
the allocator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.hostile.leaks import Rested, Sample, aborted_stream, faults, short_run, slope


def test_descriptors_threads_and_objects_do_not_grow_with_runs_and_aborted_streams(tmp_path: Path) -> None:
    rested = Rested(tmp_path)
    try:
        rested.load(200, short_run)
        rested.load(64, aborted_stream)
        before = rested.sample()
        rested.load(400, short_run)
        rested.load(200, aborted_stream)
        after = rested.sample(before)
    finally:
        code = rested.close()
    assert (faults(before, after), code) == ([], 0)


BEFORE = Sample(100, 50.0, 20, 9, {"builtins.dict": 1000, "x.Run": 3})


def test_an_object_a_descriptor_and_a_thread_that_stay_are_found() -> None:
    leaked = replace(BEFORE, runs=700, fds=21, threads=10, objects={"builtins.dict": 1040, "x.Run": 603})
    assert faults(BEFORE, leaked) == ["x.Run: 600 more", "descriptors: 20 before, 21 after", "threads: 9, 10"]
    assert faults(BEFORE, replace(BEFORE, runs=700, fds=19)) == []


def test_the_slope_is_that_of_the_second_half() -> None:
    memory = [40.0, 60.0, 60.0, 60.0, 61.0, 62.0]
    samples = [replace(BEFORE, runs=1000 * n, rss_mb=each) for n, each in enumerate(memory)]
    assert round(slope(samples), 3) == 10.0
