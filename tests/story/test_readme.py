"""The links of the documents. Their commands are run by tests/documents."""

from __future__ import annotations

import re

from tests.story.server import ROOT


def test_every_link_of_the_documents_leads_somewhere() -> None:
    dead = [
        (page.name, target)
        for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert dead == []
