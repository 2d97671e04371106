"""Tools that take their time, so that a server can be killed while they run."""

from __future__ import annotations

import os
import time

from ninelives import tool

PACE = float(os.environ.get("SCENE_PACE", "1"))


@tool(effect="read", emoji="📄")
def read_changelog(version: str) -> str:
    """Read the changelog of a version."""
    time.sleep(2.2 * PACE)
    return f"{version}: 41 commits, 9 fixes, 3 features (resume, fork, approvals)."


@tool(effect="read", emoji="🔎")
def search_issues(words: str) -> str:
    """Search the open issues."""
    time.sleep(1.4 * PACE)
    return "#812 resume after a crash, #830 fork a run, #841 docs"


@tool(effect="idempotent", emoji="🧪")
def run_tests(suite: str) -> str:
    """Run a test suite."""
    time.sleep(3.5 * PACE)
    return f"{suite}: 412 passed in 3.4 s"


@tool(effect="write", emoji="📮")
def publish_draft(title: str) -> str:
    """Publish a draft of the release notes."""
    time.sleep(2.8 * PACE)
    return "draft 77 is published"
