"""The slow scene of the demo model: about 20 seconds and two tools, made to be killed by hand. Owns: when it is played,
its three messages and their pace. It depends on the request alone, so a run that is resumed after a crash continues
correctly. Refuses to know: how a message is streamed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ninelives.core.spec import Message

PACE_S = 0.13
"""Seconds per word. The three messages have about 155 words."""
SHOWN_CHARS = 400
_WANTED = re.compile(r"\bslow(?:ly|er)?\b", re.IGNORECASE)
_COUNT = "date +%T >> visits.txt"
_FIRST = (
    "This is the slow scene: it takes about twenty seconds and uses two tools, so there is time to kill the server. "
    "This kills it: kill -9 $(ninelives status --pid). It comes back by itself, or you start it again. {first} That is "
    "the first tool."
)
_SECOND = (
    "The first tool has finished, and its result is in the database. If you kill the server now, that tool will not "
    "run again. This message will begin again, because a message that was not complete is asked for anew. {second} "
    "That is the second tool."
)
_LAST = (
    "Both tools have finished. The second one gave this:\n\n{result}\n\n{proof} Look at what happened: ninelives runs "
    "receipt tells how often the server was killed, which tools ran, and what was saved."
)


class Step(Struct, frozen=True):
    """One message of the scene: its text, and the call at its end."""

    text: str
    tool: str = ""
    arguments: dict[str, object] = {}


def text_of(message: Message) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def slow_step(messages: Sequence[Message], offered: Mapping[str, object]) -> Step | None:
    """The message of the slow scene that is due, or None where none is wanted or two tools are missing."""
    tools = _tools(offered)
    turn = _turn(messages)
    if tools is None or turn is None:
        return None
    (first, first_words), (second, second_words), proof = tools
    results = [text_of(message) for message in turn if message.get("role") == "tool"]
    spoken = max((place for place, each in enumerate(turn) if each.get("role") == "assistant"), default=-1)
    steers = [text_of(message).strip() for message in turn[spoken + 1 :] if message.get("role") == "user"]
    heard = f'You wrote: "{steers[-1][:SHOWN_CHARS]}". I have read it, and go on. ' if steers else ""
    if not results:
        return Step(heard + _FIRST.format(first=first_words), *first)
    if len(results) == 1:
        return Step(heard + _SECOND.format(second=second_words), *second)
    return Step(heard + _LAST.format(result=results[-1].strip()[:SHOWN_CHARS] or "(nothing)", proof=proof))


def _turn(messages: Sequence[Message]) -> list[Message] | None:
    """What came after the words that asked for the scene. None where nobody did, or where the scene has ended: its last
    message calls no tool. Later words of the user are steers."""
    asked = [
        place for place, each in enumerate(messages) if each.get("role") == "user" and _WANTED.search(text_of(each))
    ]
    after = list(messages[asked[-1] + 1 :]) if asked else []
    ended = any(each.get("role") == "assistant" and not each.get("tool_calls") for each in after)
    return after if asked and not ended else None


_Call = tuple[str, dict[str, object]]


def _tools(offered: Mapping[str, object]) -> tuple[tuple[_Call, str], tuple[_Call, str], str] | None:
    """Two calls that need no approval, each with a sentence, and what their result proves."""
    if "terminal" in offered and "read_file" in offered:
        first: _Call = ("terminal", {"command": _COUNT})
        second: _Call = ("read_file", {"path": "visits.txt"})
        proof = "Each line was written by one run of the first tool: one line for each time that you asked."
        return (first, "I will write the time into visits.txt."), (second, "I will read visits.txt."), proof
    if "todo" in offered and "search_files" in offered:
        items: list[dict[str, object]] = [{"text": "kill the server"}, {"text": "start it again"}]
        first, second = ("todo", {"items": items}), ("search_files", {"pattern": "hello"})
        proof = "No finished tool ran twice."
        return (first, "I will write a todo list."), (second, "I will search the workspace for hello."), proof
    return None
