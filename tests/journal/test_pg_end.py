"""A killed test run leaves no PostgreSQL server behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import pg
from tests.pg_end import running
from tests.story.server import ROOT, wait_until

STARTS = "from tests import pg; import time; print(pg.Server().home, flush=True); time.sleep(600)"


@pytest.mark.skipif(pg.WHY is not None, reason=str(pg.WHY))
def test_a_test_database_ends_with_the_process_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        home = Path(child.stdout.readline().strip())
        before = running(home)
        child.kill()
    assert before is not None
    wait_until(lambda: running(home) is None and not home.exists(), "the server and its files are gone", 60.0)
