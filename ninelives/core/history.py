"""From committed facts to the messages for a model. Owns: the turn that a run adds to its chain or session, and the
order of system prompts. Only facts go in: no drafts, and each call once with its result. Refuses to know: where earlier
turns are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import overload

import msgspec
from msgspec import Raw

from ninelives.core.context import HEAD, SHOWN, TAIL, output_path
from ninelives.core.events import MessageCompleted, SteerApplied, ToolFinished
from ninelives.core.spec import NO_MESSAGES, Message, Piece, Spec, json_list
from ninelives.core.state import Facts, RunState

SYSTEM_ROLES = ("system", "developer")
_NO_PROMPT = re.compile(rb'\A\[\{(?:"content":"(?:[^"\\]++|\\.)*+",)?"role":"(?:user|assistant|tool|function)"')
"""The start of JSON messages of which the first is surely no system prompt."""
Spoken = MessageCompleted | SteerApplied


class Transcript(Sequence[Message]):
    """The messages for a model. What a request brought along stays JSON in the middle, because there may be thousands
    of messages. It is decoded when somebody looks at one."""

    __slots__ = ("_all", "after", "before", "middle")

    def __init__(self, before: Sequence[Message], middle: Raw = NO_MESSAGES, after: Sequence[Message] = ()) -> None:
        self.before = before
        self.middle = middle
        self.after = after
        self._all: tuple[Message, ...] | None = None

    def json(self) -> list[Piece]:
        """All of it as one JSON list, in pieces."""
        if self.middle is NO_MESSAGES:
            return [msgspec.json.encode((*self.before, *self.after))]
        return json_list(msgspec.json.encode(self.before), self.middle, msgspec.json.encode(self.after))

    def _messages(self) -> tuple[Message, ...]:
        if self._all is None:
            middle = msgspec.json.decode(self.middle) if self.middle is not NO_MESSAGES else ()
            self._all = (*self.before, *middle, *self.after)
        return self._all

    @overload
    def __getitem__(self, n: int) -> Message: ...

    @overload
    def __getitem__(self, n: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, n: int | slice) -> Message | tuple[Message, ...]:
        return self._messages()[n]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages())

    def __len__(self) -> int:
        return len(self._messages())


def spoken(facts: Facts) -> list[Spoken]:
    """What the model and its steering users said in a run, in order."""
    said: list[Spoken] = []
    steers = list(facts.steers)
    for n, message in enumerate((*facts.messages, None)):
        while steers and steers[0].after == n:
            said.append(steers.pop(0).applied)
        if message is not None:
            said.append(message)
    return said


def output_messages(spoken: Iterable[Spoken], results: Mapping[str, ToolFinished]) -> list[Message]:
    """What a run added: assistant messages, each followed by the results of its calls in order, and steers."""
    messages: list[Message] = []
    for said in spoken:
        if isinstance(said, SteerApplied):
            messages += said.messages
            continue
        settled = [call for call in said.calls if call.client or call.id in results]
        if (words := said.text + said.refusal) or settled:
            message: Message = {"role": "assistant", "content": words or None}
            if settled:
                message["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in settled
                ]
            messages.append(message)
        for call in settled:
            if call.id in results:
                shown = shown_to_model(call.id, results[call.id].output)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
    return messages


def shown_to_model(call_id: str, output: str) -> str:
    """The output. Of a long one: its beginning, its end, and where to read the rest."""
    if len(output) <= SHOWN:
        return output
    pointer = f"read_file {output_path(call_id)} shows all of it"
    return f"{output[:HEAD]}\n[... {len(output) - SHOWN} characters left out; {pointer} ...]\n{output[-TAIL:]}"


def turn_messages(state: RunState) -> list[Message]:
    """The whole turn."""
    return [*state.facts.accepted.spec.history, *new_messages(state)]


def new_messages(state: RunState) -> list[Message]:
    """The turn without the history that its request brought along."""
    facts = state.facts
    said = spoken(facts) if facts.steers else facts.messages
    return [*facts.accepted.spec.input, *output_messages(said, facts.results)]


def split_turn(messages: Sequence[Message]) -> tuple[str | None, list[Message], list[Message]]:
    """Split a resent conversation into system text, history and new turn. The new turn begins after the last assistant
    message. Where nothing follows that message, it is the turn itself (a prefill)."""
    rest = [message for message in messages if message.get("role") not in SYSTEM_ROLES]
    system = [text_of(message.get("content")) for message in messages if message.get("role") in SYSTEM_ROLES]
    begins = len(rest)
    while begins and rest[begins - 1].get("role") != "assistant":
        begins -= 1
    begins = min(begins, max(len(rest) - 1, 0))
    return "\n\n".join(part for part in system if part) or None, rest[:begins], rest[begins:]


def text_of(content: object) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def call_ids(messages: Iterable[Message]) -> set[object]:
    """The ids of all calls that these messages ask for."""
    found: set[object] = set()
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                found.add(call["id"])
    return found


def results_without_call(messages: Sequence[Message]) -> tuple[str, ...]:
    """The call ids of results whose call is not in these messages, each once."""
    results = [str(message.get("tool_call_id")) for message in messages if message.get("role") == "tool"]
    if not results:
        return ()
    asked = call_ids(messages)
    return tuple(dict.fromkeys(call for call in results if call not in asked))


def paired(earlier: Sequence[Message], given: Sequence[Message]) -> tuple[Message, ...]:
    """The earlier messages of a conversation, without calls that have no result and results that have no call. Models
    refuse one without the other, and an owner can delete items. A result may also be in what is `given` now."""
    results = {message.get("tool_call_id") for message in (*earlier, *given) if message.get("role") == "tool"}
    asked: set[object] = set()
    kept: list[Message] = []
    for message in earlier:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            answered = [call for call in calls if call["id"] in results]
            asked.update(call["id"] for call in answered)
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            message = {**rest, "tool_calls": answered} if answered else rest
            if not answered and not message.get("content"):
                continue
        if message.get("role") != "tool" or message.get("tool_call_id") in asked:
            kept.append(message)
    return tuple(kept)


def ask_messages(profile_prompt: str, spec: Spec, earlier: Iterable[Message]) -> Transcript:
    """The messages before those of the run itself: prompts, earlier turns, the new input."""
    layers = [layer for layer in (profile_prompt, spec.instructions) if layer]
    middle, messages, after = spec.history_json, [*earlier], spec.input
    if not _NO_PROMPT.match(middle):
        middle, messages, after = NO_MESSAGES, [*messages, *spec.history, *spec.input], ()
    begins = 0
    # Leading prompts become one message: the templates of many models take a system message at the start only.
    while begins < len(messages) and messages[begins].get("role") in SYSTEM_ROLES:
        text = messages[begins].get("content")
        if not isinstance(text, str):
            break
        if text:
            layers.append(text)
        begins += 1
    prompt: list[Message] = [{"role": "system", "content": "\n\n".join(layers)}] if layers else []
    return Transcript(prompt + messages[begins:], middle, after)
