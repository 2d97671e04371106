"""python -m tests.hostile: the whole table against real servers. Owns: the choice of rows and the exit code: 1 where a
journaled run failed, descriptors did not come back or SIGTERM was not obeyed. Times are printed, not judged. Refuses to
know: what a row does."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.hostile.field import RUNS, Field, Result, Row, control
from tests.hostile.report import line, page, verdict
from tests.hostile.rows import ROWS

RESTING = 4
"""So many servers are at rest after their row. Idle connections to the upstream are kept for 15 s."""


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    options.add_argument("rows", nargs="*", metavar="TEXT", help="only rows with this text in their name")
    options.add_argument("--rounds", type=int, default=3, help="tries of a row that is over 50 ms; the calmest counts")
    options.add_argument("--report", type=Path, help="also write the table to this Markdown file")
    return options.parse_args(argv)


class Trial:
    """One row on a server of its own. Between the two steps the server is at rest."""

    def __init__(self, row: Row, folder: Path, control_port: int) -> None:
        self.row = row
        self._field = Field(folder, control_port, row.settings)
        self._found: Result | None = None

    def measure(self, rounds: int) -> None:
        """Try the row."""
        if prepare := getattr(self.row.attack, "prepare", None):
            prepare()
        self._field.warm_up()
        self._found = self._field.measure(self.row, rounds)

    def end(self) -> Result:
        """What it left, and the answer to SIGTERM in the middle of it."""
        assert self._found is not None
        found = self._field.settled(self._found)
        took, code = self._field.terminate(self.row)
        return replace(found, term_s=took, term_code=code)

    def close(self) -> None:
        """End what is left."""
        self._field.close()


def try_rows(rows: list[Row], folder: Path, control_port: int, rounds: int) -> Iterator[Result]:
    """The results in order. Some servers settle while the next rows are tried."""
    resting: deque[Trial] = deque()
    for number, row in enumerate([*rows, *[None] * RESTING]):
        if row is not None:
            resting.append(Trial(row, folder / str(number), control_port))
            yield from tried(resting, lambda trial: trial.measure(rounds), resting[-1])
        if resting and (row is None or len(resting) > RESTING):
            trial = resting.popleft()
            ended: list[Result] = []
            yield from tried(resting, lambda trial, ended=ended: ended.append(trial.end()), trial)  # type: ignore[misc]
            trial.close()
            yield from ended


def tried(resting: deque[Trial], step: Callable[[Trial], object], trial: Trial) -> Iterator[Result]:
    """Take a step. A row that fails gives its result, and takes no other along."""
    try:
        step(trial)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:300]
        if trial in resting:
            resting.remove(trial)
        trial.close()
        yield Result(trial.row, f"failed: {words}", 0, 0, (0, 0, 0), 0, 0, RUNS)


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    given = parse(argv)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    chosen = [row for row in ROWS if not given.rows or any(text in row.name for text in given.rows)]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ninelives-hostile-") as folder, control() as port:
        for result in try_rows(chosen, Path(folder), port, given.rounds):
            results.append(result)
            print(line(result), flush=True)
    print(verdict(results))
    if given.report:
        given.report.write_text(page(results, given.rounds), "utf-8")
    return int(any(each.faults() for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
