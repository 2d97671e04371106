"""python -m tests.hostile: the whole table against real servers. Owns: the choice of rows and the exit code: 1 where a
journaled run failed, descriptors did not come back or SIGTERM was not obeyed. Times are printed, not judged. Refuses to
know: what a row does."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.hostile.field import RUNS, Field, Result, Row, control
from tests.hostile.report import line, page, verdict
from tests.hostile.rows import ROWS


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    options.add_argument("rows", nargs="*", metavar="TEXT", help="only rows with this text in their name")
    options.add_argument("--rounds", type=int, default=3, help="tries of a row that is over 50 ms; the calmest counts")
    options.add_argument("--report", type=Path, help="also write the table to this Markdown file")
    return options.parse_args(argv)


def try_row(row: Row, folder: Path, control_port: int, rounds: int) -> Result:
    """A fresh server for each row."""
    if prepare := getattr(row.attack, "prepare", None):
        prepare()
    field = Field(folder, control_port, row.settings)
    try:
        field.warm_up()
        found = field.measure(row, rounds)
        took, code = field.terminate(row)
        return replace(found, term_s=took, term_code=code)
    finally:
        field.close()


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    given = parse(argv)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    chosen = [row for row in ROWS if not given.rows or any(text in row.name for text in given.rows)]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ninelives-hostile-") as folder, control() as port:
        for number, row in enumerate(chosen):
            try:
                results.append(try_row(row, Path(folder) / str(number), port, given.rounds))
                print(line(results[-1]), flush=True)
            except Exception as error:  # one row must not take the others along
                words = f"{type(error).__name__}: {error}"[:300]
                print(f"{row.name:42} FAILED: {words}", flush=True)
                results.append(Result(row, f"failed: {words}", 0, 0, (0, 0, 0), 0, 0, RUNS))
    print(verdict(results))
    if given.report:
        given.report.write_text(page(results, given.rounds), "utf-8")
    return int(any(each.faults() for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
