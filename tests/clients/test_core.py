"""The core of the client matrix inside `make test`: openai-python as it is installed here, every way and every case
(the other clients: make test-clients), and the judge itself: a matrix that finds nothing proves nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.clients import install, matrix
from tests.clients.run import Bench, Verdict, bench, run

pytestmark = pytest.mark.xdist_group("processes")

CORE = next(client for client in matrix.CLIENTS if client.name == "openai-python")
SEEN = {"text": "Hello there, friend.", "reasoning": "", "ran": [], "error": None, "more": {}}


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("clients")) as started:
        yield started


@pytest.fixture(scope="module")
def verdicts(on: Bench) -> list[Verdict]:
    """All cases by one process: importing the SDK takes longer than they do."""
    return run(CORE, on, version("openai"), [sys.executable, str(install.HERE / "py" / CORE.script)])


@pytest.mark.parametrize("way", CORE.ways)
def test_openai_python_in_every_case(verdicts: list[Verdict], way: str) -> None:
    mine = [verdict for verdict in verdicts if verdict.way == way]
    if mine[0].result == "skip":
        pytest.skip(mine[0].why)
    assert {verdict.case: verdict.why for verdict in mine if verdict.result == "fail"} == {}
    assert [verdict.case for verdict in mine] == list(CORE.cases_of(way))


@pytest.mark.parametrize(
    "change",
    [{"text": "Hello"}, {"ran": ["write_file"]}, {"reasoning": "hm"}, {"error": {"message": "no", "status": None}}],
)
def test_the_judge_finds_what_is_wrong(change: dict[str, object]) -> None:
    expect = matrix.CASES["plain"]
    assert matrix.complaints(expect, SEEN, 1, 1) == []
    assert len(matrix.complaints(expect, {**SEEN, **change}, 1, 1)) == 1
    assert len(matrix.complaints(expect, SEEN, 2, 1)) == 1
    assert len(matrix.complaints(expect, SEEN, 1, 2)) == 1


def test_the_judge_wants_the_error_that_belongs_to_the_case() -> None:
    other = {**SEEN, "text": "", "error": {"kind": "E", "message": "something else", "status": 409}}
    assert len(matrix.complaints(matrix.CASES["conflict"], other, 1, 0)) == 1
    assert len(matrix.complaints(matrix.CASES["conflict"], {**SEEN, "text": ""}, 1, 0)) == 1


def test_every_limit_names_a_client_and_says_why() -> None:
    for limit in matrix.LIMITS:
        assert limit.why and any(fnmatchcase(client.name, limit.client) for client in matrix.CLIENTS), limit


def test_the_proxy_counts_by_lane_and_passes_all_on(on: Bench) -> None:
    for _ in range(2):
        connection = HTTPConnection("127.0.0.1", on.proxy.port, timeout=20)
        connection.request("POST", "/lane-a/v1/responses", b"{", {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 401 and json.loads(answer.read())["error"]["code"] == "invalid_api_key"
        connection.close()
    assert on.proxy.posts("lane-a") == 2 and on.proxy.posts("lane-b") == 0
    assert on.proxy.requests["lane-a"] == ["POST /v1/responses 401"] * 2


def test_versions_are_exact_and_no_lock_file_is_kept() -> None:
    manifest = json.loads((install.NODE / "package.json").read_text())
    pinned = {**manifest["dependencies"], **manifest["optionalDependencies"]}
    assert all(text.split("@")[-1][0].isdigit() for text in pinned.values()), pinned
    assert all("==" in pin for pins in install.PINS.values() for pin in pins)
    assert not list(Path(install.HERE).glob("node/*lock*"))
