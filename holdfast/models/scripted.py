"""Models without a model. Owns: the demo that answers when no upstream is configured, and the playbook that tests
hand in. Both choose what to say from the ask alone, so that a run that is resumed after a crash goes on rightly.
Refuses to know: networks, tools as things that run, and runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

import msgspec

from holdfast.core.errors import AgentError
from holdfast.core.events import Usage
from holdfast.core.spec import Message
from holdfast.models.base import Ask, CallPiece, Finished, Part, Text

SHOWN_CHARS = 400
WHO = "I am the built-in scripted demo model of Holdfast, not a language model: no model is configured yet."
HOW = (
    "To talk to a real model, start Holdfast with --model-url URL (or set HOLDFAST_MODEL_URL), where URL is any "
    "OpenAI-compatible endpoint, for example http://127.0.0.1:11434/v1 for Ollama."
)
_WANTED = re.compile(r"\b(?:search|find)\b(?:\s+(?:for|all|the))*\s*[\"'`]?([^\s\"'`?.,]*)", re.IGNORECASE)


def text_of(message: Message) -> str:
    """The text of a message, whether its content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def since_user(messages: Sequence[Message]) -> list[Message]:
    """What came after the last message of the user."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].get("role") == "user":
            return list(messages[place + 1 :])
    return list(messages)


class ScriptedModel:
    """The demo: greets, shows one tool, says what it gave and how to get a real model."""

    def __init__(
        self, name: str = "demo", pace_s: float = 0.02, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self.name = name
        self._pace_s = pace_s
        self._sleep = sleep

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream."""
        text, call = _reply(ask)
        words = re.findall(r"\S+\s*", text)
        for word in words:
            yield [Text(word)]
            await self._sleep(self._pace_s)
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
    """What the demo says, and the tool it asks for."""
    results = [message for message in since_user(ask.messages) if message.get("role") == "tool"]
    if results:
        return f"{_told(results)} {HOW}", None
    users = [message for message in ask.messages if message.get("role") == "user"]
    text = text_of(users[-1]).strip() if users else ""
    greeting = f"Hello! {WHO}" if len(users) <= 1 else "This is still the scripted demo model."
    wish = None if ask.options.get("tool_choice") == "none" else _wish(ask, text)
    if wish is None:
        return f"{greeting} {_quoted(text)}{HOW}", None
    sentence, name, arguments = wish
    return f"{greeting} {sentence}", CallPiece(0, name, msgspec.json.encode(arguments).decode())


def _told(results: Sequence[Message]) -> str:
    shown = text_of(results[-1]).strip()
    if not shown:
        return "The tool ran and printed nothing."
    cut = shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}…"
    return f"The tool ran and gave this:\n\n{cut}\n\nThat call was made by the server and is on record."


def _quoted(text: str) -> str:
    return f'You said: "{text[:SHOWN_CHARS]}". ' if text else ""


def _wish(ask: Ask, text: str) -> tuple[str, str, dict[str, object]] | None:
    """The tool that fits the user's words, with a sentence that announces it."""
    offered = dict(_offered(ask))
    found = _WANTED.search(text)
    if text.lower().startswith("run ") and "terminal" in offered:
        return "I will run that command with the terminal tool.", "terminal", {"command": text[4:].strip()}
    if found and "search_files" in offered:
        field = _field(offered["search_files"], "pattern", "query")
        return "I will search the files of the workspace.", "search_files", {field: found[1] or "hello"}
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
    """The names and the properties of the tools on offer."""
    for tool in ask.tools:
        function = tool.get("function")
        if isinstance(function, dict):
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, dict) else None
            yield str(function.get("name")), properties if isinstance(properties, dict) else {}


def _field(properties: dict[str, object], *names: str) -> str:
    """The name under which a tool takes an argument."""
    return next((name for name in names if name in properties), names[0])


Step = Part | BaseException | float | asyncio.Event
"""Told, raised, slept or waited for."""
ONE = Usage(1, 1)


def said(*pieces: str, usage: Usage = ONE) -> list[Step]:
    """A message that is an answer."""
    return [*(Text(piece) for piece in pieces), Finished("stop", usage)]


def asked(*calls: tuple[str, str], text: str = "", usage: Usage = ONE) -> list[Step]:
    """A message that asks for tools, each a name and its arguments as JSON."""
    pieces: list[Step] = [Text(text)] if text else []
    pieces += [CallPiece(number, name, arguments) for number, (name, arguments) in enumerate(calls)]
    return [*pieces, Finished("tool_calls", usage)]


class PlaybookModel:
    """Says what a test wrote down. The nth message of the playbook answers an ask with n assistant messages since the
    last user message: a pure function of the ask, and so right after a crash too."""

    def __init__(self, playbook: Sequence[Sequence[Step]], name: str = "playbook") -> None:
        self.name = name
        self.asks: list[Ask] = []
        self.open = 0
        """Streams that have begun and neither ended nor been closed."""
        self._playbook = playbook

    async def stream(self, ask: Ask) -> AsyncGenerator[list[Part], None]:
        """See Model.stream. Each part comes alone."""
        self.asks.append(ask)
        number = sum(message.get("role") == "assistant" for message in since_user(ask.messages))
        if number >= len(self._playbook):
            raise AgentError("playbook_over", f"The playbook has no message {number}: add one.")
        self.open += 1
        try:
            for step in self._playbook[number]:
                match step:
                    case BaseException():
                        raise step
                    case asyncio.Event():
                        await step.wait()
                    case float() | int():
                        await asyncio.sleep(step)
                    case _:
                        yield [step]
        finally:
            self.open -= 1

    async def probe(self) -> bool:
        """See Model.probe."""
        return True

    async def close(self) -> None:
        """See Model.close."""
