"""A tool with a number, for the page that shows what will run."""

from __future__ import annotations

from ninelives import tool


@tool(effect="write")
def pay(account: int) -> str:
    """Pay."""
    return f"paid to {account}"
