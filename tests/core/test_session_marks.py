"""What a list of sessions shows of a run: the marks of a chat, and what a search looks through."""

from __future__ import annotations

import hashlib

from ninelives.core.sessions import TEXT_BYTES, marks_after, marks_of, preview_of, searchable
from ninelives.core.spec import Message

CHAT: list[Message] = [
    {"role": "user", "content": " hi "},
    {"role": "assistant", "content": "hello"},
    {"role": "tool", "content": "42"},
    {"role": "user", "content": [{"type": "text", "text": "more"}]},
]


def mark(*said: str) -> str:
    """As every release has made it: stored marks must match those of the next turn."""
    return hashlib.blake2b("\0\0".join(said).encode(), digest_size=16).hexdigest()


def test_marks_are_those_of_earlier_releases() -> None:
    everybody = mark("all", "s", "user\0hi", "assistant\0hello", "user\0more")
    assert marks_of("s", CHAT) == (everybody, mark("user", "s", "hi", "more"))
    assert marks_of("s", []) == ("", "")
    long = [chr(97 + n % 26) * (70_000 * (n % 3) + 5) for n in range(7)]
    chat: list[Message] = [{"role": "user", "content": text} for text in long]
    assert marks_of("s", chat)[1] == mark("user", "s", *long)


def test_the_marks_after_each_part_are_those_of_all_up_to_there() -> None:
    for cut in range(len(CHAT) + 1):
        assert marks_after("s", CHAT[:cut], CHAT[cut:]) == [marks_of("s", CHAT[:cut]), marks_of("s", CHAT)]


def test_a_search_looks_through_the_beginning_of_a_turn_and_no_more() -> None:
    long: list[Message] = [{"role": "user", "content": "ä" * 10 * TEXT_BYTES}, {"role": "user", "content": "late"}]
    assert searchable(long) == "ä" * (TEXT_BYTES // 2)
    assert searchable(CHAT) == " hi \n\nhello\n\nmore"
    assert preview_of([{"role": "user", "content": " \n" * 1000}, *long[1:]]) == "late"
