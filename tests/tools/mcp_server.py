"""An MCP server for tests, written with the official package (1 or 2): `mcp_server.py stdio` or `mcp_server.py PORT`.
It does what its tools are named after; MCP_TEST_LOG names a file that gets a line for each effect."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import Any

from mcp.types import ImageContent, ToolAnnotations

try:
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import Context  # type: ignore[no-redef]
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[no-redef]

TRANSPORT = sys.argv[1]
TWO = MCPServer.__name__ == "MCPServer"
server: Any = MCPServer("test") if TWO or TRANSPORT == "stdio" else MCPServer("test", port=int(TRANSPORT))


def hints(**given: bool) -> ToolAnnotations:
    return ToolAnnotations.model_validate(given)


def log(line: str) -> None:
    if path := os.environ.get("MCP_TEST_LOG"):
        with open(path, "a") as file:
            file.write(line + "\n")


def meta_of(context: Context) -> dict[str, Any]:
    meta = context.request_context.meta
    if meta is None:
        return {}
    return dict(meta) if isinstance(meta, dict) else meta.model_dump()


@server.tool(annotations=hints(readOnlyHint=True))
def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times


@server.tool(annotations=hints(idempotentHint=True))
def put(text: str, ctx: Context) -> str:
    """Write it down, once per call id."""
    log(f"put {text} {meta_of(ctx).get('ninelives/call_id')}")
    return "put"


@server.tool(name="append.line")
def append_line(text: str) -> str:
    """Write it down each time."""
    log(f"append {text}")
    return "appended"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


@server.tool()
def die(text: str) -> str:
    """Write it down and die before the answer."""
    log(f"die {text}")
    os._exit(7)


@server.tool()
async def hang() -> str:
    """Never answer."""
    log("hang")
    await asyncio.sleep(3600)
    return ""


@server.tool()
async def steps(ctx: Context) -> str:
    """Three steps."""
    for step in range(1, 4):
        await ctx.report_progress(step, 3, f"step {step}" if step > 1 else None)
    return "done"


@server.tool(structured_output=False)
def picture() -> Any:
    """Text and an image."""
    data = base64.b64encode(b"x" * 1000).decode()
    return ["a picture:", ImageContent.model_validate({"type": "image", "data": data, "mimeType": "image/png"})]


@server.tool()
def environment() -> str:
    """What this process was given."""
    listening = [name for name in os.listdir("/proc/self/fd") if "socket" in _link(name)]
    return json.dumps({"environ": dict(os.environ), "cwd": os.getcwd(), "pid": os.getpid(), "sockets": len(listening)})


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


@server.tool()
async def grow(called: str, ctx: Context) -> str:
    """Have one more tool."""

    def grown() -> str:
        """It was not there before."""
        return f"I am {called}"

    server.add_tool(grown, name=called)
    await ctx.request_context.session.send_tool_list_changed()
    return "grown"


@server.tool()
def babble() -> str:
    """Print to stdout what is no message."""
    os.write(1, b"this is no message\n\n{}\n")
    return "babbled"


if __name__ == "__main__":
    log(f"start {os.getpid()}")
    if TRANSPORT == "stdio":
        server.run("stdio")
    elif TWO:
        server.run("streamable-http", host="127.0.0.1", port=int(TRANSPORT))
    else:
        server.run("streamable-http")
