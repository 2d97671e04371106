"""The built-in demo model. Owns: what it says when no upstream is configured (E6). The answer depends on the request
alone, so a run that is resumed after a crash continues correctly. Refuses to know: networks, runs, how tools run."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

import msgspec

from ninelives.core.events import Usage
from ninelives.core.spec import Message
from ninelives.models.base import Ask, CallPiece, Finished, Part, Text
from ninelives.models.scene import PACE_S, SHOWN_CHARS, slow_step, text_of

WHO = "I am the built-in scripted demo model of Ninelives, not a language model."
HOW = (
    "To talk to a real model, start Ninelives with --model-url URL (or set NINELIVES_MODEL_URL), where URL is any "
    "OpenAI-compatible endpoint, for example http://127.0.0.1:11434/v1 for Ollama. To see a run survive, tell me to "
    "work slowly, and kill the server meanwhile."
)
_WORD = re.compile(r"\S+\s*")
_WANTED = re.compile(r"\b(?:search|find)\b(?:\s+(?:for|all|the))*\s*[\"'`]?([^\s\"'`?.,]*)", re.IGNORECASE)


def since_user(messages: Sequence[Message]) -> list[Message]:
    """The messages after the last user message."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].get("role") == "user":
            return list(messages[place + 1 :])
    return list(messages)


class ScriptedModel:
    """The demo model. It greets, calls one tool, shows the result, and says how to use a real model. Words with `slow`
    in them play the slow scene (scene.py)."""

    def __init__(
        self,
        name: str = "demo",
        pace_s: float = 0.02,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        slow_pace_s: float = PACE_S,
    ) -> None:
        self.name = name
        self._pace_s = pace_s
        self._slow_pace_s = slow_pace_s
        self._sleep = sleep

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream."""
        calls = ask.options.get("tool_choice") != "none"
        step = slow_step(ask.messages, dict(_offered(ask)) if calls else {})
        text, call = _reply(ask) if step is None else (step.text, _call(step.tool, step.arguments))
        pace_s = self._pace_s if step is None else max(self._pace_s, self._slow_pace_s)
        words = _WORD.findall(text)
        for word in words:
            yield [Text(word)]
            await self._sleep(pace_s)
        heard = sum(len(text_of(message).split()) for message in ask.messages)
        said = len(words) + (len(call.arguments.split()) if call else 0)
        end = Finished("tool_calls" if call else "stop", Usage(heard, said))
        yield [call, end] if call else [end]

    async def probe(self) -> bool:
        """See Model.probe."""
        return True

    async def close(self) -> None:
        """See Model.close."""


def _reply(ask: Ask) -> tuple[str, CallPiece | None]:
    """The text of the answer, and the tool call if there is one."""
    results = [message for message in since_user(ask.messages) if message.get("role") == "tool"]
    if results:
        return f"{_shown_result(results)} {HOW}", None
    users = [message for message in ask.messages if message.get("role") == "user"]
    text = text_of(users[-1]).strip() if users else ""
    greeting = f"Hello! {WHO}" if len(users) <= 1 else "This is still the scripted demo model."
    wish = None if ask.options.get("tool_choice") == "none" else _wish(ask, text)
    if wish is None:
        return f"{greeting} {_quoted(text)}{HOW}", None
    sentence, name, arguments = wish
    return f"{greeting} {sentence}", _call(name, arguments)


def _call(name: str, arguments: dict[str, object]) -> CallPiece | None:
    return CallPiece(0, name, msgspec.json.encode(arguments).decode()) if name else None


def _shown_result(results: Sequence[Message]) -> str:
    shown = text_of(results[-1]).strip()
    if not shown:
        return "The tool ran and printed nothing."
    cut = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}…"
    return f"The tool ran and gave this:\n\n{cut}\n\nThat call was made by the server and is on record."


def _quoted(text: str) -> str:
    return f'You said: "{text[:SHOWN_CHARS]}". ' if text else ""


def _wish(ask: Ask, text: str) -> tuple[str, str, dict[str, object]] | None:
    """The tool call for the user's words, with a sentence that announces it."""
    offered = dict(_offered(ask))
    found = _WANTED.search(text)
    if text.lower().startswith("run ") and "terminal" in offered:
        return "I will run that command with the terminal tool.", "terminal", {"command": text[4:].strip()}
    asks = "terminal" not in offered  # without a sandbox a person is asked before a file is written
    if (found or asks) and "search_files" in offered:
        field, wanted = _field(offered["search_files"], "pattern", "query"), found[1] if found else ""
        return "I will search the files of the workspace.", "search_files", {field: wanted or "hello"}
    if "write_file" in offered:
        schema = offered["write_file"]
        path, content = _field(schema, "path", "file_path"), _field(schema, "content", "text")
        sentence = "To show a tool, I will write your words to hello.txt."
        return sentence, "write_file", {path: "hello.txt", content: f"{text}\n"}
    if "read_file" in offered:
        path = _field(offered["read_file"], "path", "file_path")
        return "To show a tool, I will read hello.txt.", "read_file", {path: "hello.txt"}
    if "terminal" in offered:
        return "To show a tool, I will say hello in the terminal.", "terminal", {"command": "echo hello"}
    return None


def _offered(ask: Ask) -> Iterator[tuple[str, dict[str, object]]]:
    """The names and the argument schemas of the offered tools."""
    for tool in ask.tools:
        function = tool.get("function")
        if isinstance(function, dict):
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            yield str(function.get("name")), properties if isinstance(properties, dict) else {}


def _field(properties: dict[str, object], *names: str) -> str:
    """The name of an argument: the first of `names` that the tool has."""
    return next((name for name in names if name in properties), names[0])
