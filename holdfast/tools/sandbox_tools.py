"""The tools that need a sandbox. Owns: which of them there are, and that none is there without one. Refuses to know:
how they work."""

from __future__ import annotations

from holdfast.tools.base import Tool
from holdfast.tools.execute import ExecuteCode
from holdfast.tools.process import Processes, ProcessTool
from holdfast.tools.sandbox_base import Sandbox
from holdfast.tools.terminal import Terminal
from holdfast.tools.threads import Threads


def shell_tools(sandbox: Sandbox, threads: Threads, processes: Processes) -> list[Tool]:
    """terminal, process and execute_code; none where the sandbox is refused (its `says` tells a person why)."""
    if sandbox.kind == "refused":
        return []
    return [
        Terminal(sandbox, threads),
        ProcessTool(sandbox, threads, processes),
        ExecuteCode(sandbox, threads),
    ]
