"""Rules of execute_code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninelives.tools.base import Output, Place, Threads, ToolRefused
from ninelives.tools.builtin.execute import CODE_BYTES, ExecuteCode
from ninelives.tools.sandbox.base import Sandbox
from tests.tools.conftest import children, open_files
from tests.tools.sandboxes import place_in, sandbox_of, shop_of


@pytest.fixture(params=["off", "bwrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return sandbox_of(request.param)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


async def _run(sandbox: Sandbox, place: Place, code: str, **more: object) -> Output:
    async with shop_of(sandbox) as shop:
        return await (await shop.toolbox.prepare("execute_code", json.dumps({"code": code, **more}), place)).run()


async def test_what_a_program_prints_comes_back(sandbox: Sandbox, place: Place) -> None:
    first = "import os, sys\nprint('é', os.getcwd(), sys.flags.isolated, flush=True)\n"
    code = f"{first}print(2, file=sys.stderr)\nopen('f', 'w')"
    assert await _run(sandbox, place, code) == Output(f"é {place.workspace} 1\n2\n")
    assert (place.workspace / "f").exists()


async def test_an_error_shows_its_line_and_code(sandbox: Sandbox, place: Place) -> None:
    output = await _run(sandbox, place, "x = 0\nprint(1 / x)")
    assert output.is_error and "print(1 / x)" in output.text and output.text.endswith("[exit code 1]")
    assert (await _run(sandbox, place, "raise SystemExit(4)")).text == "[exit code 4]"


async def test_it_ends_at_its_time_and_leaves_nothing(sandbox: Sandbox, place: Place) -> None:
    await _run(sandbox, place, "pass")
    before = open_files()
    output = await _run(sandbox, place, "import time; print(1, flush=True); time.sleep(300)", timeout_s=3.0)
    assert output.text == "1\n[killed: it was still running after 3 s]"
    assert children() == set() and open_files() == before


async def test_it_is_in_the_folder_and_the_environment_of_the_terminal(sandbox: Sandbox, place: Place) -> None:
    async with shop_of(sandbox) as shop:
        command = json.dumps({"command": "mkdir a; cd a; export ONE=1 PYTHONPATH=$PWD; echo 'bad bad' >json.py"})
        await (await shop.toolbox.prepare("terminal", command, place)).run()
    code = "import json, os; print(os.getcwd(), os.environ['ONE'], os.environ['NINELIVES_CALL_ID'])"
    assert (await _run(sandbox, place, code)).text == f"{place.workspace}/a 1 {place.call_id}\n"


async def test_a_program_as_long_as_allowed_runs_and_a_longer_one_is_refused(sandbox: Sandbox, place: Place) -> None:
    code = "print(1)\n#"
    assert (await _run(sandbox, place, code + "x" * (CODE_BYTES - len(code)))).text == "1\n"
    for wrong in (code + "x" * (CODE_BYTES - len(code) + 1), "", "  \n"):
        with pytest.raises(ToolRefused):
            await _run(sandbox, place, wrong)


async def test_without_python_it_says_so(sandbox: Sandbox, place: Place) -> None:
    threads = Threads()
    tool = ExecuteCode(sandbox, threads, (Path("/usr/bin/no-python"),))
    with pytest.raises(ToolRefused, match="no Python in the sandbox"):
        await tool.prepare({"code": "1"}, place)
    threads.close()


async def test_it_is_abandoned_without_a_trace(sandbox: Sandbox, place: Place) -> None:
    async with shop_of(sandbox) as shop:
        execution = await shop.toolbox.prepare("execute_code", '{"code": "open(\\"mark\\", \\"w\\")"}', place)
        await execution.abandon()
    assert not (place.workspace / "mark").exists() and children() == set()


async def test_it_is_in_the_same_sandbox(place: Place) -> None:
    secret = place.state / "secret"
    secret.write_text("sk-secret")
    output = await _run(sandbox_of("bwrap"), place, f"print(open({str(secret)!r}).read())")
    assert output.is_error and "FileNotFoundError" in output.text and "sk-secret" not in output.text
