"""Responses and sessions of hermes-agent in a store. Owns: what each becomes, the plan of an import with what is there
already, and carrying it out. A response becomes a run that has ended, under its own id, so that
`previous_response_id` of the old store goes on. Refuses to know: how the directory was read, and what is printed."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ninelives.app.hermes.reading import HermesData, HermesResponse, HermesSession
from ninelives.core import codec
from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError, Damaged, IllegalEvent
from ninelives.core.events import (
    AnyEvent,
    AttemptStarted,
    Call,
    Entry,
    MessageCompleted,
    RunAccepted,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    ToolFinished,
    ToolStarted,
    Usage,
)
from ninelives.core.history import text_of
from ninelives.core.ids import run_of
from ninelives.core.sessions import storable, turn_of
from ninelives.core.spec import Message, Resolved, Spec, messages_json
from ninelives.core.state import RunState, fold
from ninelives.dialects.asking import is_session_name
from ninelives.dialects.shared import PROJECTION
from ninelives.engine.run import end_mark
from ninelives.journal.base import Store
from ninelives.journal.values import NewSession, Opened, Opening, StoredTurn

_UNSAFE = re.compile(r"[^A-Za-z0-9._:@/+=-]")


class ImportReport(Struct):
    """What an import takes, changes and leaves."""

    responses: int = 0
    sessions: int = 0
    conversations: int = 0
    present: int = 0
    """Responses and sessions that were there already."""
    changed: list[str] = []
    left: list[str] = []


class HermesImport:
    """The import of one directory for one owner. Without `apply` nothing is written."""

    def __init__(self, store: Store, owner: str, holder: str, data: HermesData, *, apply: bool) -> None:
        self._store = store
        self._owner = owner
        self._holder = holder
        self._data = data
        self._apply = apply
        self.report = ImportReport()

    async def run(self) -> ImportReport:
        """Import everything, oldest first. What is there already stays as it is."""
        self.report.left += self._data.left
        names: dict[str, list[str]] = {}
        for name, latest in self._data.conversations.items():
            names.setdefault(latest, []).append(name)
        for session in self._data.sessions:
            await self._session(session)
        for response in sorted(self._data.responses, key=lambda each: _created(each.body)):
            await self._response(response, names.pop(response.id, []))
        for gone, left in names.items():
            self.report.left += [f"conversation {name}: its last response {gone} is not there" for name in left]
        return self.report

    async def _session(self, session: HermesSession) -> None:
        name, report = session_name(session.id), self.report
        if not session.turns and not session.title:
            report.left.append(f"session {session.id}: it is empty")
            return
        if name != session.id:
            report.changed.append(f"session {session.id}: its id is now {name}")
        there = await self._store.sessions.find(self._owner, name)
        if there is not None or await self._store.sessions.turns(self._owner, name):
            report.present += 1
            return
        report.sessions += 1
        new = NewSession(
            owner=self._owner,
            session=name,
            at=max([session.started_at, *(at for at, _ in session.turns)]),
            title=storable(session.title)[:256],
            source=session.source,
            model=session.model,
            end_reason=session.end_reason,
            input_tokens=session.input_tokens,
            output_tokens=session.output_tokens,
            turns=tuple(StoredTurn(at, None, msgspec.json.encode(said)) for at, said in session.turns),
        )
        if self._apply:
            await self._store.sessions.make(new)

    async def _response(self, response: HermesResponse, conversations: list[str]) -> None:
        report, run = self.report, run_name(response.id)
        if run_of("responses", response.id) is None:
            report.changed.append(f"response {response.id}: its id is now resp_{run}")
        state = state_of(response, run, self._owner)
        if state is None:
            status = response.body.get("status")
            report.left.append(f"response {response.id}: it has no answer to go on from (status {status})")
            report.left += [f"conversation {name}: its last response has no answer" for name in conversations]
            return
        report.left += [f"conversation {name}: its last response has another name too" for name in conversations[1:]]
        if await self._is_there(run):
            report.present += 1
            return
        report.responses += 1
        report.conversations += bool(conversations)
        if self._apply:
            await self._open(state, response, conversations[0] if conversations else None)

    async def _is_there(self, run: str) -> bool:
        """Whether there is such a run, or was one that its owner deleted."""
        if await self._store.find(self._owner, run) or await self._store.upkeep.expired(self._owner, run):
            return True
        try:
            return bool(await self._store.turns(self._owner, Resolved(previous=run)))
        except Damaged:  # nothing is known of it
            return False

    async def _open(self, state: RunState, response: HermesResponse, conversation: str | None) -> None:
        facts = state.facts
        session = session_name(response.session) if response.session else f"hermes-{facts.run}"
        asked = Asked(
            owner=self._owner,
            fingerprint=f"import-hermes {response.id}",
            conversation=conversation,
            fresh_conversation=f"conv_{facts.run}",
            derived_session=session,
        )
        opening = Opening(
            run=facts.run,
            at=facts.created_at,
            dialect="responses",
            model=facts.accepted.spec.model,
            asked=asked,
            accept=lambda resolved: [codec.encode(event) for event in _events(response, self._owner, resolved) or ()],
            holder=self._holder,
            ended=end_mark(state),
        )
        try:
            opened = await self._store.open(opening)
        except ClientError as error:  # a conversation of this name is at work here
            self.report.left.append(f"response {response.id}: {error}")
            return
        if isinstance(opened, Opened) and await self._store.sessions.turns(self._owner, session):
            own = replace(facts.accepted, resolved=opened.resolved)
            turn = turn_of(replace(state, facts=replace(facts, accepted=own)))
            await self._store.sessions.list_turns([replace(turn, counted=turn.session != session)])


def run_name(response: str) -> str:
    """The run of a response: its own id, if that has the usual form."""
    return run_of("responses", response) or hashlib.sha256(response.encode()).hexdigest()[:32]


def session_name(session: str) -> str:
    """The id of a session: its own, if it can be sent in a header."""
    if is_session_name(session):
        return session
    return f"{_UNSAFE.sub('-', session)[:200]}-{hashlib.sha256(session.encode()).hexdigest()[:8]}"


def _created(body: dict[str, Any]) -> float:
    found = body.get("created_at")
    return float(found) if isinstance(found, int | float) else 0.0


def state_of(response: HermesResponse, run: str, owner: str) -> RunState | None:
    """The run that a response becomes. None where it has no answer."""
    events = _events(response, owner, Resolved(session=session_name(response.session) if response.session else None))
    at = int(_created(response.body) * 1000)
    try:
        return fold(Entry(run, n, at, min(n, 1), event) for n, event in enumerate(events)) if events else None
    except IllegalEvent:
        return None


def _events(response: HermesResponse, owner: str, resolved: Resolved) -> list[AnyEvent] | None:
    """The journal of a response: what the user said last, each message and call after it, and how it ended."""
    status = response.body.get("status")
    last = max((n for n, message in enumerate(response.said) if message["role"] == "user"), default=-1)
    if last < 0 or status not in ("completed", "incomplete", "failed"):
        return None
    answer = response.said[last + 1 :]
    if status != "failed" and not any(message["role"] == "assistant" for message in answer):
        return None
    spec = Spec(
        dialect="responses",
        model=str(response.body.get("model") or "hermes-agent"),
        history_json=messages_json(response.said[:last]),
        input=(response.said[last],),
        instructions=response.instructions,
        projection=PROJECTION,
        items=(_item(response.said[last]),),
    )
    accepted = RunAccepted(spec=spec, resolved=resolved, owner=owner)
    return [accepted, AttemptStarted(), *_answer(answer, _usage(response.body)), _end(status, response.body)]


def _item(message: Message) -> dict[str, object]:
    text = text_of(message["content"])
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _answer(messages: list[Message], usage: Usage) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    outputs = {message.get("tool_call_id"): text_of(message["content"]) for message in messages}
    spoken = [message for message in messages if message["role"] == "assistant"]
    for n, message in enumerate(spoken):
        found = message.get("tool_calls")
        given = found if isinstance(found, list) else []
        calls = [Call(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in given]
        spent = usage if n == len(spoken) - 1 else Usage()
        finish = "tool_calls" if calls else "stop"
        text = text_of(message["content"])
        events.append(MessageCompleted(text, tuple(calls), spent, finish=finish))  # type: ignore[arg-type]
        for call in calls:
            label = f"{call.name} (imported)"
            events += [ToolStarted(call=call, label=label), ToolFinished(call_id=call.id, output=outputs[call.id])]
    return events


def _end(status: object, body: dict[str, Any]) -> AnyEvent:
    if status == "completed":
        return RunCompleted()
    if status == "incomplete":
        return RunInterrupted("max_messages")
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return RunFailed(code="server_error", message=str(message or "It failed in hermes-agent."), reason="imported")


def _usage(body: dict[str, Any]) -> Usage:
    found = body.get("usage")
    usage = found if isinstance(found, dict) else {}
    spent = [count if isinstance(count := usage.get(name), int) else 0 for name in ("input_tokens", "output_tokens")]
    return Usage(input_tokens=spent[0], output_tokens=spent[1])
