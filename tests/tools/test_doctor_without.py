"""What the doctor says on a machine that lacks a means of the sandbox. A probe that finds a gap is red and names it;
one that could not be tried is red too, and says what is missing. Each means is taken away from a real sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninelives.tools.base import Place
from ninelives.tools.sandbox import bwrap, proof
from ninelives.tools.sandbox.kinds import choose
from ninelives.tools.sandbox.proof import Finding, prove
from tests.tools.sandboxes import place_in, sandbox_of

MEMFD = "hold memory that no process is charged for"
CALLS = "make system calls that a command has no use for"
OOM = "be killed after the server when memory is short"
REALTIME = "take the processor with SCHED_FIFO"
PIPE = "make a file tool wait at a named pipe"
MEMORY = "take more memory than a call may have"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def findings(place: Place) -> dict[str, Finding]:
    sandbox_of("bwrap")  # skipped where there is none
    sandbox = choose("auto")
    try:
        return {finding.name: finding for finding in await prove(sandbox, place)}
    finally:
        sandbox.close()


async def test_without_a_seccomp_filter_the_memfd_and_the_system_calls_are_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap, "filter_program", lambda: None)
    found = await findings(place)
    assert found[MEMFD] == Finding(MEMFD, False, "a memfd was made")
    assert not found[CALLS].ok and found[CALLS].detail.startswith("not refused: ")
    assert found[OOM].ok and found[REALTIME].ok and found[PIPE].ok, "these do not need the filter"


async def test_what_could_not_be_tried_is_red_and_says_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python inside, a workspace that takes no named pipe, and a server with the highest OOM score."""
    real = proof._proc
    monkeypatch.setattr(proof, "PYTHONS", ())
    monkeypatch.setattr(proof, "_proc", lambda pid, name: b"1000" if pid == "self" else real(pid, name))
    (place.workspace / "waits").mkdir()
    found = await findings(place)
    for name in (MEMFD, CALLS, REALTIME):
        assert found[name] == Finding(name, False, "not tried: there is no Python below /usr")
    assert found[PIPE] == Finding(PIPE, False, "not tried: no named pipe could be made")
    assert not found[OOM].ok and "that of this process 1000" in found[OOM].detail


async def test_without_cgroups_and_on_an_unknown_machine_the_reasons_are_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "MACHINES", {})
    why = "this machine has no cgroup version 2"
    monkeypatch.setattr("ninelives.tools.sandbox.kinds.find_groups", lambda: why)
    monkeypatch.setattr(proof, "find_groups", lambda: why)
    found = await findings(place)
    assert not found[CALLS].ok and "there is no filter for" in found[CALLS].detail
    told = found[MEMORY]
    assert told.ok and told.detail.startswith(f"no cgroup per call: {why}. One process has ")


async def test_without_any_sandbox_the_one_finding_is_the_remedy(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    sandbox = choose("auto")
    (only,) = await prove(sandbox, place)
    assert (sandbox.kind, only.ok) == ("refused", False) and "bubblewrap" in only.detail
