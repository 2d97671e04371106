"""Directives for the fake upstream. Owns: parsing [[key=value key ...]] out of a message. fake_upstream.py says what
they do. Refuses to know: what any of them means."""

from __future__ import annotations

import json
import re
from typing import Any

Json = dict[str, Any]
KEY = re.compile(r"(?s)\s*(?:(tools|parallel)=|(text)=(.*?)(?=\]\]|\Z)|(\w+)(?:=([^\s\]]*))?|)")
CALL = re.compile(r"\s{0,4}(?<![\w.-])([\w.-]{1,64}+):\s*")


def directives(text: str) -> list[Json]:
    """One dict per pair of brackets."""
    found, place = [], 0
    while (start := text.find("[[", place)) >= 0:
        group, place = _group(text, start + 2)
        found.append(group)
    return found


def _group(text: str, place: int) -> tuple[Json, int]:
    group: Json = {}
    while place < len(text) and not text.startswith("]]", place):
        found = KEY.match(text, place)
        assert found is not None
        place = max(found.end(), place + 1)
        if found[1]:
            group[found[1]], place = _calls(text, place)
        elif key := found[2] or found[4]:
            value = found[3] if found[2] else found[5]
            group[key] = True if value is None else value
    return group, place + 2


def _calls(text: str, place: int) -> tuple[list[tuple[str, str]], int]:
    """Parse name:{json}|name:{json}. The JSON may contain brackets and bars."""
    calls = []
    while name := CALL.match(text, place):
        _, end = json.JSONDecoder().raw_decode(text, name.end())
        calls.append((name[1], text[name.end() : end]))
        place = end + text.startswith("|", end)
    return calls, place
