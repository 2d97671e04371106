"""Runs inside a small virtual machine (test_sandbox_memory.py): a process with the shell tools, as a server has them,
and commands that take all the memory that they can. Prints one JSON object per line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from ninelives.app.serve import be_killed_last
from ninelives.tools.sandbox.base import Sandbox
from ninelives.tools.sandbox.cgroup import find_groups
from ninelives.tools.sandbox.kinds import choose
from ninelives.tools.sandbox.proof import prove
from tests.tools.sandboxes import place_in, score_of, shop_of

_TAKE = """/usr/bin/python3 -I -c 'import os
for _ in range(6):
    if os.fork() == 0:
        break
kept = []
while True:
    kept.append(b"x" * (1 << 20))'"""


def tell(**words: object) -> None:
    print("VM " + json.dumps(words), flush=True)


async def take_all(sandbox: Sandbox, folder: Path) -> None:
    async with shop_of(sandbox) as shop:
        place = place_in(folder)
        prepared = await shop.toolbox.prepare("terminal", json.dumps({"command": _TAKE}), place)
        output = await prepared.run()
        after = await (await shop.toolbox.prepare("terminal", '{"command": "echo alive"}', place_in(folder))).run()
    cgroup = sandbox.groups is not None
    tell(kind=sandbox.kind, cgroup=cgroup, error=output.is_error, says=output.text, after=after.text)


async def main(part: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sandbox = choose("auto")
        if part == "doctor":
            for finding in await prove(sandbox, place_in(folder)):
                tell(name=finding.name, ok=finding.ok, detail=finding.detail)
            left = [each for each in os.listdir("/sys/fs/cgroup") if "ninelives-call" in each]
            tell(holds=sandbox.holds.call_memory_bytes, left=left)
        elif part == "killed":
            made = find_groups()
            assert not isinstance(made, str), made
            made.make(sandbox.bounds)  # type: ignore[arg-type]
            tell(made=True)
            os._exit(1)
        else:
            be_killed_last()
            tell(score=score_of(os.getpid()))
            if part == "order":
                sandbox.groups = None
            await take_all(sandbox, folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
