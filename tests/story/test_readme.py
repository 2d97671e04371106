"""What the README tells a newcomer to paste works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.story.server import KEY, ROOT, start_demo


def snippet(language: str) -> str:
    """The only piece of the README in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(found)


def test_the_python_snippet_of_the_readme_prints_an_answer(tmp_path: Path) -> None:
    server = start_demo(tmp_path)
    kept = tmp_path / ".local/share/ninelives/key"
    kept.parent.mkdir(parents=True)
    kept.write_text(f"{KEY}\n")  # with the line end that the server writes
    try:
        code = snippet("python").replace("127.0.0.1:8642", f"127.0.0.1:{server.port}")
        env = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "demo model of Ninelives" in done.stdout
    finally:
        assert server.stop() == 0


def test_every_link_of_the_documents_leads_somewhere() -> None:
    dead = [
        (page.name, target)
        for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert dead == []
