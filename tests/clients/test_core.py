"""The core of the client matrix inside `make test`: openai-python as it is installed here, every way and every case
(the other clients: make test-clients), and the judge itself: a matrix that finds nothing proves nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.clients import install, kills, matrix
from tests.clients.run import Bench, Verdict, bench, run
from tests.clients.script import started
from tests.story.server import KEY, Client, Upstream, start_upstream

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


# Killed in mid-answer

CHAT, STREAM, *_ = kills.KILLED
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    started_now = start_upstream(tmp_path / "upstream")
    yield started_now
    started_now.process.stop()


class Forgetful:
    """A client that asks for something else when its connection is lost."""

    def __init__(self) -> None:
        self._asked = 0

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        question = {"role": "user", "content": job["prompt"]}
        body = {"model": job["model"], "messages": [question], "max_tokens": 1000 + self._asked}
        try:
            client = Client(int(job["base"].rpartition(":")[2]), {"authorization": f"Bearer {KEY}"})
            made = client.post("/v1/chat/completions", body).json()
        except OSError as error:
            return {**SEEN, "text": "", "error": {"kind": "lost", "message": str(error), "status": None}}
        return {**SEEN, "text": made["choices"][0]["message"]["content"]}


@needs_bwrap
def test_openai_python_gets_over_a_kill(tmp_path: Path, upstream: Upstream) -> None:
    with started([sys.executable, str(install.HERE / "py" / CORE.script)], tmp_path / "home") as script:
        for case in (CHAT, STREAM):
            assert kills.die(case, version("openai"), tmp_path, upstream, script).why == ""


@needs_bwrap
def test_the_judge_of_kills_sees_a_tool_that_runs_twice(tmp_path: Path, upstream: Upstream) -> None:
    case = replace(CHAT, again=kills.USER)
    death = kills.die(case, "-", tmp_path, upstream, Forgetful())  # type: ignore[arg-type]
    assert (death.result, death.lines, death.runs, death.answer) == ("fail", 2, 2, kills.WHOLE)


@pytest.mark.parametrize(
    "wrong",
    [
        (2, 1, 3, "whole", []),
        (1, 2, 3, "whole", []),
        (1, 1, 4, "whole", []),
        (1, 1, 3, "", []),
        (1, 1, 3, "whole", ["Bash"]),
    ],
)
def test_the_judge_of_kills_finds_what_is_wrong(wrong: tuple[Any, ...]) -> None:
    assert kills.complaints(CHAT, 1, 1, 3, "whole", []) == []
    assert len(kills.complaints(CHAT, *wrong)) == 1


def test_only_a_whole_answer_is_called_whole() -> None:
    whole = {**SEEN, "text": f"before\n{kills.BEGINNING}\n{kills.LAST}\n"}
    assert kills.answer_of(whole) == kills.WHOLE
    assert kills.answer_of({**whole, "text": f"{kills.BEGINNING}tok0 tok1 {kills.LAST}"}) == kills.REPEATED
    assert kills.answer_of({**whole, "text": kills.BEGINNING + kills.LAST[:-8]}) == ""
    assert kills.answer_of({**whole, "more": {"final": "tok0 tok1"}}) == "", "the final response says something else"
    assert kills.answer_of({**whole, "error": {"kind": "E", "message": "", "status": None}}) == ""


def test_versions_are_exact_and_no_lock_file_is_kept() -> None:
    manifest = json.loads((install.NODE / "package.json").read_text())
    pinned = {**manifest["dependencies"], **manifest["optionalDependencies"]}
    assert all(text.split("@")[-1][0].isdigit() for text in pinned.values()), pinned
    assert all("==" in pin for pins in install.PINS.values() for pin in pins)
    assert all(pin.split("@")[-1][0].isdigit() for pins in install.COMMANDS.values() for pin in pins)
    assert not list(Path(install.HERE).glob("node/*lock*"))
