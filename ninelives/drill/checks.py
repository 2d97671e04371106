"""What must hold for a run that lived through crashes, checked from outside alone. Owns: the evidence of one run (what
readers received, what a replay gives, what the model was sent, what tools did) and the checks of P1 to P5. Tests in one
process and tests with real processes both give their evidence to `judge`. Refuses to know: engines, stores and how
frames are made. It reads bytes off the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

Kind = Literal["lost", "changed", "numbers", "end", "resume", "rerun", "outcome", "ask", "stuck"]
Json = dict[str, Any]
KEEPALIVE = b": keepalive\n\n"
CLOSED = b": stream closed\n\n"
DONE = b"data: [DONE]\n\n"
ENDS = {
    "responses": ("response.completed", "response.failed", "response.incomplete"),
    "runs": ("run.completed", "run.failed", "run.cancelled", "run.incomplete"),
}
UNKNOWN_WORDS = "outcome is unknown"


class Finding(NamedTuple):
    """One broken promise."""

    kind: Kind
    run: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: run {self.run}: {self.text}"


class Told(NamedTuple):
    """What one reader received: the bytes of its stream, which began after position `after` (-1: all)."""

    dialect: str
    after: int
    data: bytes


@dataclass
class Evidence:
    """All that is known about one run from outside."""

    run: str
    dialect: str
    status: str
    """As GET /v1/runs/{id} shows it."""
    output: str
    """The text of all settled messages, as GET /v1/runs/{id} shows it."""
    told: list[Told] = field(default_factory=list)
    replay: dict[str, bytes] = field(default_factory=dict)
    """The stream from zero, read after the end, per dialect. `runs` is always there."""
    tails: list[Told] = field(default_factory=list)
    """Streams from some position on, read after the end."""
    body: Json = field(default_factory=dict)
    """GET /v1/responses/{id}, for runs of that dialect."""
    asks: list[list[Json]] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)
    """call id -> how often it really ran."""
    counted: frozenset[str] = frozenset({"terminal"})
    """Tools whose effects are counted."""
    repeatable: frozenset[str] = frozenset()
    """Counted tools that are declared read or idempotent."""
    late: list[str] = field(default_factory=list)
    """Calls that ran although their result was committed."""
    refused: str = ""
    """The code of the error in place of the replay of a chat, which failed before it had said anything."""


def frames_of(data: bytes) -> list[bytes]:
    """The frames of a stream without keepalives, each with its end. The last one may be cut off."""
    parts = data.split(b"\n\n")
    whole = [part + b"\n\n" for part in parts[:-1]]
    frames = [frame for frame in whole if frame != KEEPALIVE]
    return [*frames, parts[-1]] if parts[-1] and not KEEPALIVE.startswith(parts[-1]) else frames


def payload(frame: bytes) -> Json:
    """The JSON of a frame. Empty for [DONE], comments and incomplete frames."""
    if not frame.endswith(b"\n\n"):
        return {}
    for line in frame.split(b"\n"):
        if line.startswith(b"data: {"):
            found: Json = msgspec.json.decode(line[6:])
            return found
    return {}


def judge(e: Evidence) -> list[Finding]:
    """Every promise that this run broke."""
    texts: list[tuple[Kind, str]] = [*_received(e), *_numbers(e), *_ends(e), *_resumes(e), *_calls(e), *_asks(e)]
    return [Finding(kind, e.run, text) for kind, text in texts]


Found = Iterator[tuple[Kind, str]]


# P1: what a reader received is a prefix of the replay, byte for byte


def _received(e: Evidence) -> Found:
    for told in e.told:
        replay = frames_of(e.replay[told.dialect])
        seen = frames_of(told.data)
        if told.dialect == "chat":
            settled = _settled_chat(seen, replay, _dropped(e))
            seen = [frame for frame in settled if not e.refused or _error_code(frame) != e.refused]
        yield from _prefix(told, seen, tail_of(told.dialect, replay, told.after))


def _error_code(frame: bytes) -> str | None:
    """The code of a frame with an error."""
    code: str | None = payload(frame).get("error", {}).get("code")
    return code


def _prefix(told: Told, seen: list[bytes], replay: list[bytes]) -> Found:
    who = f"{told.dialect} reader from {told.after}"
    for n, frame in enumerate(seen):
        if n >= len(replay):
            yield "lost", f"{who}: its frame {n} of {len(seen)} is not in the replay: {frame[:300]!r}"
            return
        whole = frame.endswith(b"\n\n")
        if frame != replay[n] if whole else not replay[n].startswith(frame):
            yield "changed", f"{who}: frame {n} was {frame[:300]!r} and is {replay[n][:300]!r}"
            return


def _dropped(e: Evidence) -> list[tuple[int, int]]:
    """(first, last + 1) of each draft that a crash dropped, by the runs dialect."""
    events = (payload(frame) for frame in frames_of(e.replay["runs"]))
    return [(event["from_seq"], event["seq"]) for event in events if event.get("event") == "message.dropped"]


def _settled_chat(frames: list[bytes], replay: list[bytes], dropped: list[tuple[int, int]]) -> Iterator[bytes]:
    """The frames that a chat replay must repeat. Chat promises settled content only (G3), so dropped drafts and the
    notice of a restart do not count. The runs dialect says from which text on a draft was dropped; the reasoning
    before that text was dropped with it, and so was the status line of a call that was being written."""
    kept = {position("chat", frame) for frame in replay}
    for frame in frames:
        body = payload(frame)
        if _error_code(frame) == "stream_restarted":
            return
        if not frame.endswith(b"\n\n"):
            return  # an incomplete frame has no number that says whether its draft was dropped
        seq = body.get("sequence_number", -1)
        thought = any("reasoning_content" in choice["delta"] for choice in body.get("choices", ()))
        prepared = "event" in body and "toolCallId" not in body and seq >= 0
        gone = any(first <= seq < after for first, after in dropped) or ((thought or prepared) and seq not in kept)
        if not gone:
            yield frame


# P2, P3: numbers and ends


def _numbers(e: Evidence) -> Found:
    numbers = [payload(frame).get("sequence_number") for frame in frames_of(e.replay.get("responses", b""))]
    shown = [n for n in numbers if n is not None]
    if shown != list(range(len(shown))):
        yield "numbers", f"responses: the replay counts {shown}"
    seqs = [payload(frame)["seq"] for frame in frames_of(e.replay["runs"]) if frame != CLOSED]
    if seqs != sorted(set(seqs)):
        yield "numbers", f"runs: the replay counts {seqs}"


def _ends(e: Evidence) -> Found:
    for dialect, ends in ENDS.items():
        if dialect not in e.replay:
            continue
        frames = frames_of(e.replay[dialect])
        key, closing = ("event", CLOSED) if dialect == "runs" else ("type", DONE)
        kinds = [payload(frame).get(key) for frame in frames]
        places = [n for n, kind in enumerate(kinds) if kind in ends]
        if places != [len(frames) - 2] or frames[-1] != closing:
            yield "end", f"{dialect}: ends at {places} of {len(frames)} frames, the last is {frames[-1:]!r}"
        elif dialect == "runs" and kinds[-2] != f"run.{e.status}":
            yield "end", f"runs: GET says {e.status}, the stream {kinds[-2]}"
        elif dialect == "responses":
            yield from _same_body(e.body, payload(frames[-2])["response"])


def _same_body(body: Json, last: Json) -> Found:
    """GET agrees with the last frame, except for the form of function_call_output.output (C9)."""
    output = [
        {**item, "output": "".join(part["text"] for part in item["output"])}
        if item["type"] == "function_call_output"
        else item
        for item in last["output"]
    ]
    for key, value in {**last, "output": output}.items():
        if body.get(key) != value:
            yield "end", f"responses: {key} is {body.get(key)!r} in GET and {value!r} in the last frame"


def position(dialect: str, frame: bytes) -> int | None:
    """The position of a frame, as its dialect counts."""
    found = payload(frame).get("seq" if dialect == "runs" else "sequence_number")
    return int(found) if found is not None else None


def tail_of(dialect: str, frames: Sequence[bytes], after: int) -> list[bytes]:
    """What a reader that has everything up to `after` must get: the rest, or the end again (G5)."""
    if after < 0:
        return list(frames)
    places = [(n, at) for n, frame in enumerate(frames) if (at := position(dialect, frame)) is not None]
    before = [n for n, at in places if at <= after]
    start = before[-1] + 1 if before else 0
    nothing_more = all(frame in (DONE, CLOSED) for frame in frames[start:])
    return list(frames[start - nothing_more :])


def _resumes(e: Evidence) -> Found:
    for tail in e.tails:
        expected = tail_of(tail.dialect, frames_of(e.replay[tail.dialect]), tail.after)
        got = frames_of(tail.data)
        if got != expected:
            place = next((n for n, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(got))
            text = f"{got[place : place + 1]!r} instead of {expected[place : place + 1]!r}"
            yield "resume", f"{tail.dialect} after {tail.after}: {len(got)} frames, at {place} {text}"


# P5: tools


class Call(NamedTuple):
    """A tool call, by the runs dialect."""

    name: str
    outcome: str
    """Empty where it was not finished."""


def calls_of(runs_replay: bytes) -> dict[str, Call]:
    """All calls of a run. A second start or finish is a fault; it gives the outcome `twice`."""
    calls: dict[str, Call] = {}
    for frame in frames_of(runs_replay):
        event = payload(frame)
        call = event.get("toolCallId", "")
        if event.get("event") == "tool.started":
            calls[call] = Call(event["tool"], "twice" if call in calls else "")
        elif event.get("event") == "tool.completed":
            again = call not in calls or calls[call].outcome
            calls[call] = Call(event["tool"], "twice" if again else event["outcome"])
    return calls


def _calls(e: Evidence) -> Found:
    calls = calls_of(e.replay["runs"])
    outputs = _outputs(e)
    for call in e.late:
        yield "rerun", f"call {call} ran after its result was committed"
    for call, (name, outcome) in calls.items():
        if name in e.counted:
            yield from _repetitions(e, call, name, outcome)
            yield from _outcomes(e, call, name, outcome, outputs.get(call, UNKNOWN_WORDS))
    for call in e.effects.keys() - calls.keys():
        yield "rerun", f"call {call} ran but is not in the stream"


def _repetitions(e: Evidence, call: str, name: str, outcome: str) -> Found:
    done = e.effects[call]
    if outcome == "twice":
        yield "rerun", f"call {call} started or finished twice in the stream"
    if name not in e.repeatable and done > 1:
        yield "rerun", f"{name} {call} ({outcome or 'not finished'}) ran {done} times"


def _outcomes(e: Evidence, call: str, name: str, outcome: str, output: str) -> Found:
    if outcome == "known" and e.effects[call] == 0:
        yield "outcome", f"{name} {call} is reported as done but did not run"
    if outcome == "unknown" and UNKNOWN_WORDS not in output:
        yield "outcome", f"{name} {call} has the outcome unknown but its output is {output!r}"
    if outcome == "unknown" and name in e.repeatable and e.status != "cancelled":
        yield "outcome", f"{name} {call} may be repeated but was left unknown"


def _outputs(e: Evidence) -> dict[str, str]:
    """The outputs of calls, where the dialect shows them."""
    items = [item for item in e.body.get("output", ()) if item["type"] == "function_call_output"]
    found = {item["call_id"]: item["output"] for item in items}
    for frame in frames_of(e.replay.get("chat", b"")):
        event = payload(frame)
        if event.get("status") == "completed" and "toolCallId" in event:
            found[event["toolCallId"]] = event["output"]
    return found


# what the model is sent: settled messages only


def _asks(e: Evidence) -> Found:
    calls = calls_of(e.replay["runs"])
    finished = {call for call, (_, outcome) in calls.items() if outcome}
    unknown = {call for call, (_, outcome) in calls.items() if outcome == "unknown"}
    for n, messages in enumerate(e.asks):
        where = f"ask {n} of {len(e.asks)}"
        own = since_user(messages)
        for wrong in [*malformed(messages), *_strange(e, own, finished, unknown), *_unasked(own)]:
            yield "ask", f"{where}: {wrong}"
    final = since_user(e.asks[-1]) if e.asks else []
    last = {call["id"] for message in final for call in message.get("tool_calls", ())}
    if e.asks and e.status == "completed" and last != finished:
        yield "ask", f"the last ask has the calls {sorted(last)}, finished are {sorted(finished)}"


def since_user(messages: list[Json]) -> list[Json]:
    """The messages after the last one of the user."""
    users = [n for n, message in enumerate(messages) if message["role"] == "user"]
    return messages[users[-1] + 1 :] if users else messages


def malformed(messages: list[Json]) -> Iterator[str]:
    """Faults of form: each call must occur once, with its one result right after its message, in order."""
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if waiting[:1] != [message["tool_call_id"]]:
                yield f"a result for {message['tool_call_id']} where {waiting} are expected"
            waiting = waiting[1:]
            continue
        if waiting:
            yield f"{waiting} have no result"
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        if seen & set(waiting) or len(set(waiting)) != len(waiting):
            yield f"a call of {waiting} occurs twice"
        seen |= set(waiting)
    if waiting:
        yield f"{waiting} have no result"


def _unasked(own: list[Json]) -> Iterator[str]:
    """A settled message in the middle of a run has tool calls. One without is a draft."""
    for message in own:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            yield f"it has a message without tool calls: {message['content']!r}"


def _strange(e: Evidence, own: list[Json], finished: set[str], unknown: set[str]) -> Iterator[str]:
    """The run's own messages must be settled: no draft text, only finished calls, unknown outcomes spelled out."""
    outputs = _outputs(e)
    text = "".join(message["content"] or "" for message in own if message["role"] == "assistant")
    if not squeezed(e.output).startswith(squeezed(text)):
        yield f"it has the text {text!r}, settled is {e.output!r}"
    for message in own:
        if message["role"] != "tool":
            continue
        call, content = message["tool_call_id"], message["content"]
        if call not in finished:
            yield f"it has a result for {call}, which is not finished"
        if call in outputs and outputs[call] != content:
            yield f"it says of {call} {content!r}, the stream said {outputs[call]!r}"
        if (UNKNOWN_WORDS in content) != (call in unknown):
            yield f"it says of {call} {content!r}"


def squeezed(text: str) -> str:
    """Without white space, because the paragraphs between messages are the dialect's own."""
    return "".join(text.split())


def next_turn(e: Evidence, messages: list[Json]) -> list[Finding]:
    """The first request of the next turn must hold the whole settled turn of `e` once, and nothing else of it."""
    users = [n for n, message in enumerate(messages) if message["role"] == "user"]
    wrong = list(malformed(messages))
    if len(users) < 2:
        wrong.append(f"it has {len(users)} messages of the user")
    else:
        turn = messages[users[-2] + 1 : users[-1]]
        calls = calls_of(e.replay["runs"])
        unknown = {call for call, (_, outcome) in calls.items() if outcome == "unknown"}
        wrong += _strange(e, turn, set(calls), unknown)
        text = "".join(message["content"] or "" for message in turn if message["role"] == "assistant")
        if squeezed(text) != squeezed(e.output):
            wrong.append(f"it has the text {text!r}, the turn said {e.output!r}")
        if {message["tool_call_id"] for message in turn if message["role"] == "tool"} != set(calls):
            wrong.append(f"it lacks a result of {sorted(calls)}")
    return [Finding("ask", e.run, f"next turn: {text}") for text in wrong]
