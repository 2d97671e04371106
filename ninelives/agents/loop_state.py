"""A run as the loop needs it. Owns: what the model is told and offered, which calls are due, and how a run ends, all of
which follows from the committed facts; and a message while it streams in: its parts become deltas and one
MessageCompleted, within the size limit of a message (R13). Refuses to know: how calls are executed, and where events
go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ninelives.agents.base import DeltaSink, Turn
from ninelives.core import events as e
from ninelives.core.context import fit, text_tokens
from ninelives.core.history import Transcript, ask_messages, output_messages, spoken, text_of
from ninelives.core.hosts import hosts_in
from ninelives.core.ids import call_id
from ninelives.core.rope import join
from ninelives.core.spec import Message, Spec
from ninelives.core.state import Facts, RunState, apply
from ninelives.core.table import Phase
from ninelives.models.base import CallPiece, Declined, Finished, Part, Text, Thinking

FLOOD = 64
"""Where one read has more parts than this, neighbours become one delta. Otherwise each piece of the upstream is a delta
of its own, as callers expect."""
Request = tuple[Sequence[Message], tuple[dict[str, object], ...], dict[str, object]]
"""Messages, tools and options."""


def tool_name(tool: dict[str, object]) -> str:
    """The name in a tool's schema."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def offered_tools(own: Sequence[dict[str, object]], spec: Spec) -> tuple[dict[str, object], ...]:
    """What the model may call: the server's tools and the caller's. The caller's tool wins where both have a name. A
    list of allowed tools is a hard bound."""
    if spec.chore:
        return ()
    if not spec.client_tools and spec.allowed_tools is None:
        return tuple(own)
    theirs = {tool_name(tool) for tool in spec.client_tools}
    tools = (*(tool for tool in own if tool_name(tool) not in theirs), *spec.client_tools)
    allowed = spec.allowed_tools
    return tools if allowed is None else tuple(tool for tool in tools if tool_name(tool) in allowed)


Skips = dict[type[Text] | type[Declined] | type[Thinking], int]
"""How many characters of each kind are still to be skipped. Incoming counts them down."""


class ToldDraft(Struct, frozen=True):
    """How many characters of a message were passed on."""

    text: int
    refusal: int
    reasoning: int

    def skips(self) -> Skips:
        """The same by the kind of part, in a new dictionary."""
        return {Text: self.text, Declined: self.refusal, Thinking: self.reasoning}


def draft_of(state: RunState) -> ToldDraft:
    """The draft of a state that has one."""
    reasoning = sum(len(each.text) for each in state.thoughts) + len(join(state.thought))
    return ToldDraft(len(join(state.text)), len(join(state.refusal)), reasoning)


def without_draft(state: RunState) -> RunState:
    """The same facts, as if the message had not begun."""
    return RunState(state.facts, Phase.READY, state.seq)


def call_key(state: RunState) -> str:
    """The name of the next model call; empty for a run in memory, which no other process can go on with."""
    facts = state.facts
    return "" if facts.accepted.spec.kept == "memory" else f"{facts.run}:{len(facts.messages)}"


class LoopState:
    """One attempt at one run. Its run state is the fold of core/state.py, with each fact added once it is committed.

    Deltas are left out, because nothing here needs a draft and there are thousands of them. So the numbers in this run
    state are lower than those in the journal."""

    def __init__(self, turn: Turn, system_prompt: str) -> None:
        self.draft = draft_of(turn.state) if turn.state.drafting else None
        """What earlier attempts passed on of the next message, where the answer of the model was kept."""
        self.run_state: RunState = turn.state if self.draft is None else without_draft(turn.state)
        self.facts: Facts = turn.state.facts
        """The committed facts."""
        self.deltas = turn.deltas
        self.steering = turn.steering
        self.scratch: dict[str, bytes] | None = {} if turn.state.facts.accepted.spec.kept == "memory" else None
        """See Place.scratch. A run in memory has one attempt."""
        self.holds_claim = turn.holds_claim
        self.spec = turn.state.facts.accepted.spec
        self.client_tools = frozenset(tool_name(tool) for tool in offered_tools((), self.spec))
        prompt = "" if self.spec.chore else system_prompt
        self._before = ask_messages(prompt, self.spec, turn.history)
        self._named: tuple[int, frozenset[str]] | None = None
        """How many steers there were, and the hosts that the user had named."""

    def add(self, fact: e.AnyEvent) -> None:
        """A fact was committed."""
        state, facts = self.run_state, self.facts
        self.run_state = apply(state, e.Entry(facts.run, state.seq + 1, facts.updated_at, facts.attempt, fact))
        self.facts = self.run_state.facts

    def names_host(self, host: str) -> bool:
        """Whether a message of the user names this host, with or without `www.`."""
        if self._named is None or self._named[0] != len(self.facts.steers):
            steers = (message for steered in self.facts.steers for message in steered.applied.messages)
            said = (text_of(m.get("content")) for m in (*self._before, *steers) if m.get("role") == "user")
            self._named = len(self.facts.steers), hosts_in("\n".join(said))
        _, named = self._named
        return host in named or host.removeprefix("www.") in named

    def request(self, own: tuple[dict[str, object], ...], window: int) -> Request:
        """What the model is sent next. `own`: the tools of the server, which are not offered once max_tool_calls is
        used up. `window`: how many tokens fit; 0: it is not known, and nothing is left out."""
        spec, facts = self.spec, self.facts
        messages: Sequence[Message] = self._before
        if facts.messages or facts.steers:
            said = spoken(facts) if facts.steers else facts.messages
            before, after = self._before, output_messages(said, facts.results)
            messages = Transcript(before.before, before.middle, (*before.after, *after))
        if window > 0:
            messages = fit(messages, window, str(spec.echo.get("truncation", "auto")))
        used_up = spec.max_tool_calls is not None and len(self._server_calls()) >= spec.max_tool_calls
        tools = offered_tools(() if used_up else own, spec)
        options = dict(spec.sampling)
        if spec.max_output_tokens is not None:  # the token budget is over the whole run (C10)
            options["max_tokens"] = spec.max_output_tokens - facts.usage.output_tokens
        choice = spec.tool_choice
        # A choice that forces a call counts for the first message only: it would force one in every round.
        if choice == "none" or (choice is not None and not facts.messages):
            options["tool_choice"] = choice
        if not tools:  # upstreams refuse these where there are none
            options.pop("tool_choice", None)
            options.pop("parallel_tool_calls", None)
        return messages, tools, options

    def _server_calls(self) -> list[str]:
        return [call.id for said in self.facts.messages for call in said.calls if not call.client]

    def refusal(self, call: e.Call) -> str | None:
        """Why the request itself forbids this call, in words for the model; None where it does not."""
        spec = self.spec
        if spec.allowed_tools is not None and call.name not in spec.allowed_tools:
            known = ", ".join(spec.allowed_tools)
            return f"The tool {call.name!r} may not be used here; this call was not made. Allowed are: {known}."
        if spec.max_tool_calls is not None and call.id not in self._server_calls()[: spec.max_tool_calls]:
            words = f"All {spec.max_tool_calls} tool calls of this request are used up"
            return f"{words}; this call was not made. Answer with what you have."
        return None

    def end_at_once(self, said: e.AnyEvent) -> e.RunCompleted | e.RunInterrupted | None:
        """The end of the run, where this is its last message and was put before that end. Both are then one commit.
        None where there is no room, calls of it must be executed first, or a steer is told."""
        if not isinstance(said, e.MessageCompleted) or self.deltas is None or not self.deltas.has_room():
            return None
        if any(not call.client for call in said.calls) or (self.steering is not None and self.steering.pending()):
            return None
        self.deltas.put_last(said)
        return _CUT_OFF.get(said.finish) or e.RunCompleted()


_CUT_OFF: dict[e.Finish, e.RunInterrupted] = {
    "length": e.RunInterrupted("max_output_tokens"),
    "content_filter": e.RunInterrupted("content_filter"),
}
"""How a run ends with a message that was cut off."""


def end_of(facts: Facts, max_rounds: int, *, steered: bool = False) -> e.RunCompleted | e.RunInterrupted | None:
    """How a run ends now; None where it goes on. Ask only while no call is due. `steered`: as if a steer came."""
    budget = facts.accepted.spec.max_output_tokens
    if facts.messages:
        last = facts.messages[-1]
        steered = steered or (bool(facts.steers) and facts.steers[-1].after == len(facts.messages))
        cut_off = _CUT_OFF.get(last.finish)
        if cut_off or any(call.client for call in last.calls) or not (last.calls or steered):
            return cut_off or e.RunCompleted()
    if budget is not None and facts.usage.output_tokens >= budget:
        return e.RunInterrupted("max_output_tokens")
    return e.RunInterrupted("max_messages") if len(facts.messages) >= max_rounds else None


def no_emoji(name: str) -> str | None:
    """No tool of this server has that name."""
    return None


class Incoming(Struct, eq=False):
    """Collects the parts of one message."""

    _run: str
    _calls_before: int
    _room: int
    """How many characters it may still have."""
    _client_tools: frozenset[str]
    _emoji_of: Callable[[str], str | None] = no_emoji
    """The emoji of a tool of this server; None for any other name."""
    _skips: Skips | None = None
    """What an earlier attempt passed on: the answer comes again from its beginning, and as much of it is skipped."""
    _begun: set[int] = set()
    _text: list[str] = []
    _refusal: list[str] = []
    _thinking: list[str] = []
    _names: dict[int, str] = {}
    _arguments: dict[int, list[str]] = {}
    _finished: Finished | None = None
    full: bool = False
    """True once the size limit is reached. The message then ends as if by its token limit."""

    def take(self, deltas: DeltaSink, parts: Sequence[Part]) -> bool:
        """See Ask.take_parts: pass the deltas of the parts on as they arrive."""
        if not deltas.has_room():
            return False
        part = parts[0]
        if type(part) is Text and len(parts) == 1 and not self._refusal and self._skips is None:
            text = part.text
            if len(text) < self._room:  # the usual read: it saves 6 us, two thirds of the general way
                self._room -= len(text)
                self._text.append(text)
                deltas.put(e.TextDelta(text))
                return True
        if not self.fits(parts):
            return False
        for delta in self.feed(parts):
            deltas.put(delta)
        return True

    def fits(self, parts: Sequence[Part]) -> bool:
        """True where the message stays within its limit with these parts."""
        size = 0
        for part in parts:
            match part:
                case Text(text) | Declined(text) | Thinking(text) | CallPiece(_, _, text):
                    size += len(text)
        return size < self._room

    def take_whole(self, parts: Sequence[Part]) -> bool:
        """Keep the parts of one read without deltas, where they are a whole message of text and calls. Otherwise False:
        thoughts and text of one entry would be two events of a run with one number, and a reader who has the first
        could not go on at the second."""
        last, kinds = parts[-1], set(map(type, parts))
        began = self._text or self._thinking or self._refusal or self._names or self._skips is not None
        if began or type(last) is not Finished or Thinking in kinds or Declined in kinds:
            return False
        text = "" if CallPiece in kinds else "".join([part.text for part in parts if type(part) is Text])
        if text and len(text) < self._room:  # text alone, as most answers: it saves 2 % of a small chat
            self._text.append(text)
            self._room -= len(text)
            self._finished = last
            return True
        for _ in self.feed(parts):
            pass
        return True

    def _skip(self, delta: e.Delta, skips: Skips) -> e.Delta | None:
        """What was not passed on yet. The begins of calls are left out: a status line is not told twice."""
        if isinstance(delta, e.CallBegun):
            return None
        kind: type[Text] | type[Declined] | type[Thinking] = Thinking
        if isinstance(delta, e.TextDelta):
            kind = Declined if delta.refusal else Text
        left = skips[kind]
        skips[kind] = max(0, left - len(delta.text))
        return replace(delta, text=delta.text[left:]) if len(delta.text) > left else None

    def feed(self, parts: Sequence[Part]) -> Iterator[e.Delta]:
        """The deltas of the parts of one read."""
        for part in _merged(parts) if len(parts) > FLOOD else parts:
            if self.full:
                return
            delta: e.Delta | None
            match part:
                case Text(text) if not self._refusal:
                    self._text.append(text)
                    delta = e.TextDelta(text)
                case Text(text) | Declined(text):  # text after the begin of a refusal is part of it
                    self._refusal.append(text)
                    delta = e.TextDelta(text, refusal=True)
                case Thinking(text):
                    self._thinking.append(text)
                    delta = e.ReasoningDelta(text)
                case CallPiece(_, _, text):
                    delta = self._piece(part)
                case Finished():
                    self._finished = part
                    continue
            self._room -= len(text)
            self.full = self._room <= 0
            if delta is not None and self._skips is not None:
                delta = self._skip(delta, self._skips)
            if delta is not None:
                yield delta

    def _piece(self, part: CallPiece) -> e.CallBegun | None:
        """Keep a piece of a call. Its begin is told once, as soon as the name is that of a tool. A call that comes in
        one piece is not told: it starts at once."""
        index, whole = part.index, part.index not in self._names and bool(part.arguments)
        name = self._names[index] = self._names.get(index, "") + part.name
        self._arguments.setdefault(index, []).append(part.arguments)
        if whole or index in self._begun or name in self._client_tools:
            return None
        if (emoji := self._emoji_of(name)) is None:
            return None
        self._begun.add(index)
        return e.CallBegun(call_id=call_id(self._run, self._calls_before + index), name=name, emoji=emoji)

    def completed(self, asked_tokens: Callable[[], int]) -> e.MessageCompleted:
        """The whole message. Calls get our ids. A message that was cut off has no calls. `asked_tokens` estimates the
        request, for an upstream that does not count it."""
        finish = self._finished.reason if self._finished and not self.full else "length"
        usage = self._finished.usage if self._finished else e.Usage()
        if not (usage.input_tokens and usage.output_tokens):
            usage = self._estimated(usage, asked_tokens)
        calls: tuple[e.Call, ...] = ()
        if finish in ("stop", "tool_calls"):
            calls = tuple(
                e.Call(
                    call_id(self._run, self._calls_before + n),
                    self._names[index],
                    "".join(self._arguments[index]),
                    self._names[index] in self._client_tools,
                )
                for n, index in enumerate(sorted(self._names))
            )
        thinking, refusal = "".join(self._thinking), "".join(self._refusal)
        return e.MessageCompleted("".join(self._text), calls, usage, thinking, finish, refusal)

    def _estimated(self, told: e.Usage, asked_tokens: Callable[[], int]) -> e.Usage:
        """The usage, with what the upstream left out. No request has zero tokens, and no answer but an empty one."""
        arguments = (piece for pieces in self._arguments.values() for piece in pieces)
        thought = text_tokens(*self._thinking)
        said = thought + text_tokens(*self._text, *self._refusal, *self._names.values(), *arguments)
        if told.input_tokens and not said:
            return told
        return replace(
            told,
            input_tokens=told.input_tokens or asked_tokens(),
            output_tokens=told.output_tokens or said,
            reasoning_tokens=told.reasoning_tokens if told.output_tokens else thought,
            estimated=True,
        )


def _merged(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts of one read, with neighbours of one kind joined. They arrived together, and each piece costs a row and
    a frame, whatever its length."""
    out: list[Part] = []
    texts: list[str] = []
    kind: type[Text] | type[Thinking] | None = None
    for part in parts:
        if type(part) is Text or type(part) is Thinking:
            if type(part) is kind:
                texts.append(part.text)
                continue
            if kind is not None:
                out.append(kind("".join(texts)))
            kind, texts = type(part), [part.text]
            continue
        if kind is not None:
            out.append(kind("".join(texts)))
            kind = None
        out.append(part)
    if kind is not None:
        out.append(kind("".join(texts)))
    return out
