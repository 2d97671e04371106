"""Runs for the web page. Owns: /api/runs: the list, a run over time, one step, entries of the journal, what the model
was sent, and the run as the stream of each API. Nothing is changed here. Refuses to know: what the page looks like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ninelives.core import events as e
from ninelives.core.errors import ClientError, not_found
from ninelives.core.history import text_of, turn_messages
from ninelives.core.ids import is_shown, run_of_any
from ninelives.core.rope import whole
from ninelives.core.state import RunState, apply, start
from ninelives.dialects import DIALECTS
from ninelives.dialects.inspector import shapes
from ninelives.dialects.inspector.shapes import RunStep
from ninelives.dialects.inspector.timeline import KINDS, Timeline
from ninelives.dialects.inspector.words import MOST_CHARS, RunSearch, search_of
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import AFTER, Endpoint, Operation, Param
from ninelives.http.finding import RunFinder, sees_all
from ninelives.http.routes.base import Routes
from ninelives.http.routes.page.timelines import SLICE, Timelines
from ninelives.journal.values import Query, RunRow

HIDDEN = DIALECTS["conversations"].name
MOST_LOOKED = 400
"""How many runs one search looks at. The page asks again for more."""
MOST_ENTRIES = 500
ENTRY_CHARS = 600
TEXT_CHARS = 200_000
MOST_FRAMES = 128 * 1024
MOST_PROGRESS = 200
MOST_SAID = 1024 * 1024
MOST_REQUEST = 4 * 1024 * 1024
APIS = tuple(name for name, dialect in DIALECTS.items() if dialect.renders)


class PageRunRoutes(Routes):
    """/api/runs."""

    tag = "Web page"
    base = "/api/runs"

    def __init__(self, parts: RouteParts, now: Callable[[], float]) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._now = now
        self._finder = RunFinder(parts.engine)
        self.timelines = Timelines(parts.engine)

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "", self.list, LIST),
            Endpoint("GET", "/{id}/timeline", self.timeline, TIMELINE),
            Endpoint("GET", "/{id}/steps/{seq}", self.step, STEP),
            Endpoint("GET", "/{id}/conversation", self.conversation, CONVERSATION),
            Endpoint("GET", "/{id}/entries", self.entries, ENTRIES),
            Endpoint("GET", "/{id}/entries/{seq}", self.entry, ENTRY),
            Endpoint("GET", "/{id}/request/{seq}", self.asked, ASKED),
            Endpoint("GET", "/{id}/as/{api}", self.frames, FRAMES),
        ]

    async def _row(self, request: Request) -> RunRow:
        shown = request.path_params["id"]
        run = run_of_any(shown)
        row = await self._finder.find(request, run) if run is not None else None
        if row is None or not is_shown(row.dialect):
            owner = answering.owner_of(request)
            expired = run is not None and await self._engine.durable.upkeep.expired(owner, run)
            raise not_found("run", shown, expired=expired)
        return row

    async def _timeline(self, request: Request) -> tuple[RunRow, Timeline]:
        row = await self._row(request)
        made = await self.timelines.read(row)
        if made.seq < 0:
            raise not_found("run", request.path_params["id"])
        return row, made

    async def list(self, request: Request) -> Response:
        """GET the runs that a search finds, the newest first. An admin key sees the runs of all owners."""
        limit, search = query.limit_of(request, 50), search_of(request.query_params.get("q", ""), self._now())
        wanted = _query(request, search, limit)
        found: list[shapes.RunLine] = []
        looked, more = 0, True
        while more and len(found) < limit and looked < MOST_LOOKED:
            rows = await self._engine.durable.rows(wanted)
            looked, more = looked + len(rows), len(rows) == wanted.limit
            for row in rows:
                line = await self.timelines.line(row)
                if line is None:
                    continue
                line = _queued(line, row)
                more = more and line.created_at >= search.since
                if search.fits(line):
                    found.append(line)
            wanted = replace(wanted, after=rows[-1].run) if rows else wanted
        last = f"run_{wanted.after}" if more and wanted.after else None
        return answering.answer(
            shapes.RunLines(object="list", data=found, next=last, now=self._now(), everybody=sees_all(request))
        )

    async def timeline(self, request: Request) -> Response:
        """GET a run over time."""
        mine = answering.owner_of(request)
        row, made = await self._timeline(request)
        body = made.body(self._now())
        body = replace(body, run=_queued(body.run, row), own=row.owner == mine)
        return answering.answer(body, session=row.session)

    async def step(self, request: Request) -> Response:
        """GET what a step said or did."""
        row, made = await self._timeline(request)
        step = made.find(_number(request, "seq"))
        if step is None:
            raise not_found("step", request.path_params["seq"])
        details = StepReader(step)
        last = step.end_seq if step.end_seq is not None else made.seq
        # The whole message is in its last entry: its pieces are read only where there is none.
        first = last if step.kind == "model" and step.outcome == "completed" else step.seq
        count = 0
        async for entry in self._engine.entries(row.owner, row.run, first - 1):
            if entry.seq > last or details.full:
                break
            details.add(entry)
            count += 1
            if count % SLICE == 0:
                await asyncio.sleep(0)
        return answering.answer(details.body(last))

    async def conversation(self, request: Request) -> Response:
        """GET what was said in a run."""
        row = await self._row(request)
        state = await self._engine.look(row.owner, row.run)
        if state is None:
            raise not_found("run", request.path_params["id"])
        messages, size = [], 0
        for message in turn_messages(state):
            content = message.get("content")
            size += len(content) if isinstance(content, str) else len(str(message))
            if size > MOST_SAID:
                break
            messages.append(message)
        earlier = min(len(messages), len(state.facts.accepted.spec.history))
        shown = shapes.RunConversation(messages=messages, earlier=earlier, cut=size > MOST_SAID)
        return answering.answer(shown, session=row.session)

    async def entries(self, request: Request) -> Response:
        """GET entries of the journal by their place: of all entries, or of some kinds."""
        row, made = await self._timeline(request)
        limit, start_at = query.limit_of(request, 100, MOST_ENTRIES), query.offset_of(request)
        kinds = frozenset(filter(None, request.query_params.get("kinds", "").split(",")))
        if unknown := kinds - set(KINDS):
            message = f"There is no kind {sorted(unknown)[0]!r:.60}. The kinds are: {', '.join(KINDS)}."
            raise ClientError("invalid_value", message, param="kinds")
        seqs = made.seqs(kinds) if kinds else range(made.seq + 1)
        wanted = seqs[start_at : start_at + limit]
        data = [shown async for shown in self._shown(row, wanted)]
        return answering.answer(shapes.JournalPage(object="list", data=data, total=len(seqs)))

    async def _shown(self, row: RunRow, seqs: Sequence[int]) -> AsyncIterator[shapes.JournalEntry]:
        place = 0
        while place < len(seqs):
            records = await self._engine.durable.read(row.owner, row.run, seqs[place] - 1)
            if not records:
                return
            by_seq = {record.seq: record for record in records}
            while place < len(seqs) and seqs[place] in by_seq:
                record = by_seq[seqs[place]]
                text = record.data[: 4 * ENTRY_CHARS].decode("utf-8", "ignore")[:ENTRY_CHARS]
                yield shapes.JournalEntry(
                    seq=record.seq,
                    at=record.at / 1000,
                    attempt=record.attempt,
                    type=_tag(record.data),
                    text=text,
                    bytes=len(record.data),
                )
                place += 1
            await asyncio.sleep(0)

    async def entry(self, request: Request) -> Response:
        """GET one entry as it is stored."""
        row, seq = await self._row(request), _number(request, "seq")
        records = await self._engine.durable.read(row.owner, row.run, seq - 1)
        if not records or records[0].seq != seq:
            raise not_found("entry", request.path_params["seq"])
        found = records[0]
        head = {"seq": found.seq, "at": found.at / 1000, "attempt": found.attempt}
        shown = {**head, "event": msgspec.Raw(found.data)}
        return await self._parts.aside.run(len(found.data), answering.answer, shown)

    async def asked(self, request: Request) -> Response:
        """GET what the model was sent for the message that begins with an entry."""
        row, seq = await self._row(request), _number(request, "seq")
        state = await self._state_before(row, seq)
        if state is None:
            raise not_found("entry", request.path_params["seq"])
        ask = self._parts.model_requests.asked(state, await self._engine.history(state))
        if ask is None:
            words = "The agent of this run asks models itself, so what they were sent is not known here."
            raise ClientError("request_not_known", words, status=404)
        shown = shapes.ModelRequest(
            model=row.model, messages=list(ask.messages), tools=list(ask.tools), options=ask.options
        )
        answer = answering.answer(shown)
        if len(answer.body) > MOST_REQUEST:
            words = f"The request has {len(answer.body):,} bytes: too many to show. Its parts are in the entries."
            raise ClientError("request_too_large", words, status=404)
        return answer

    async def _state_before(self, row: RunRow, seq: int) -> RunState | None:
        """The state that an entry found. Deltas before it are folded in slices."""
        state: RunState | None = None
        count = 0
        async for entry in self._engine.entries(row.owner, row.run):
            if entry.seq >= seq and state is not None:
                break
            state = start(entry) if state is None else apply(state, entry)
            count += 1
            if count % SLICE == 0:
                await asyncio.sleep(0)
        return state

    async def frames(self, request: Request) -> Response:
        """GET the run as the stream of one API."""
        api, row = request.path_params["api"], await self._row(request)
        if api not in APIS:
            raise ClientError("invalid_value", f"The API must be one of {', '.join(APIS)}.", param="api", status=404)
        projection = DIALECTS[api].projection()
        view, out, size = projection.view0(-1), [], 0
        async for entry in self._engine.entries(row.owner, row.run):
            view, frames = projection.step(view, entry)
            out.append(whole(frames))
            size += len(out[-1])
            if size > MOST_FRAMES or view.over:
                break
        text = b"".join(out)[:MOST_FRAMES].decode("utf-8", "ignore")
        return answering.answer(shapes.RunFrames(api=api, text=text, cut=size > MOST_FRAMES))


def _query(request: Request, search: RunSearch, limit: int) -> Query:
    """What the store is asked. An admin key sees the runs of all owners."""
    after, owner = request.query_params.get("after"), search.owners[0] if len(search.owners) == 1 else None
    return Query(
        owner=owner if sees_all(request) else answering.owner_of(request),
        but=HIDDEN,
        statuses=search.statuses,
        after=run_of_any(after) if after else None,
        limit=limit,
    )


def _queued(line: shapes.RunLine, row: RunRow) -> shapes.RunLine:
    """A run that is parked waits for the next holder, or for its caller (G5)."""
    parked = line.status == "running" and row.status == "queued"
    return replace(line, status="queued") if parked else line


def _number(request: Request, name: str) -> int:
    given = request.path_params[name]
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise ClientError("invalid_value", f"{name} must be a whole number from 0 on.", param=name)
    return int(given)


class Tagged(msgspec.Struct):
    """An event, of which only the kind is read."""

    type: str


_tag_decoder = msgspec.json.Decoder(Tagged)


def _tag(data: bytes) -> str:
    return _tag_decoder.decode(data).type


class StepReader:
    """What a step said or did, from its entries."""

    def __init__(self, step: RunStep) -> None:
        self._step = step
        self._texts: dict[str, list[str]] = {"text": [], "reasoning": []}
        self._size = 0
        self._known: dict[str, object] = {}
        self._progress: list[str] = []
        self.full = False
        """Enough was read."""

    def add(self, entry: e.Entry) -> None:
        """One entry of the step."""
        match entry.event:
            case e.RunAccepted(spec=spec):
                said = [text for message in spec.input if (text := text_of(message.get("content")))]
                self._known["text"] = "\n\n".join(said)
            case e.TextDelta(text):
                self._piece("text", text)
            case e.ReasoningDelta(text):
                self._piece("reasoning", text)
            case e.MessageCompleted() as said:
                calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in said.calls]
                self._known |= {"text": said.spoken, "reasoning": said.reasoning, "calls": calls, "finish": said.finish}
            case event:
                self._add_call(event)

    def _add_call(self, event: e.AnyEvent) -> None:
        match event:
            case e.ToolStarted() as begun if begun.call.id == self._step.call_id:
                self._known["arguments"] = begun.call.arguments
            case e.ToolProgressed(call, text) if call == self._step.call_id and len(self._progress) < MOST_PROGRESS:
                self._progress.append(text)
            case e.ToolFinished() as done if done.call_id == self._step.call_id:
                self._known |= {"output": done.output, "duration_ms": done.duration_ms}
            case e.ApprovalRequested() as question:
                self._known |= {"arguments": question.call.arguments, "why": question.why}

    def _piece(self, name: str, text: str) -> None:
        self._texts[name].append(text)
        self._size += len(text)
        self.full = self._size > TEXT_CHARS

    def body(self, upto: int) -> shapes.StepDetails:
        """All of it, within the bound."""
        known = {name: "".join(pieces) for name, pieces in self._texts.items()} | self._known
        cut = self.full
        for name, value in known.items():
            if isinstance(value, str) and len(value) > TEXT_CHARS:
                known[name], cut = value[:TEXT_CHARS], True
        return shapes.StepDetails(
            step=self._step,
            progress=self._progress,
            cut=cut,
            upto=upto,
            **known,  # type: ignore[arg-type]
        )


LIST = Operation(
    summary="Search runs",
    doc="The newest first. Words of `q` with a name: status:, tool:, model:, session:, owner:, api:, since:2h, "
    "is:crashed. All other words are in the first words of the request. An admin key sees the runs of all owners. "
    f"At most {MOST_LOOKED} runs are looked at: `next` goes on.",
    params=(
        Param("q", "What to search.", {"type": "string", "maxLength": MOST_CHARS}),
        Param("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 100, "default": 50}),
        AFTER,
    ),
    answers={200: shapes.RunLines},
)
TIMELINE = Operation(
    summary="A run over time",
    doc="Attempts, steps and moments, each with its times.",
    answers={200: shapes.RunTimeline},
)
STEP = Operation(
    summary="One step of a run",
    doc="By the number of an entry that belongs to it.",
    answers={200: shapes.StepDetails},
)
CONVERSATION = Operation(summary="What was said in a run", answers={200: shapes.RunConversation})
ENTRIES = Operation(
    summary="Entries of a run's journal",
    doc="By their place, so that a list can begin anywhere.",
    params=(
        Param("offset", "How many to skip.", {"type": "integer", "minimum": 0, "default": 0}),
        Param("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES, "default": 100}),
        Param("kinds", "Only these kinds, with commas between them."),
    ),
    answers={200: shapes.JournalPage},
)
ENTRY = Operation(summary="One entry of a run's journal", answers={200: dict[str, object]})
ASKED = Operation(
    summary="What the model was sent",
    doc="For the message that begins with this entry: made again from the journal, with prompt and tools of now.",
    answers={200: shapes.ModelRequest},
)
FRAMES = Operation(
    summary="A run as the stream of an API",
    doc=f"Whatever API began it: {', '.join(APIS)}. The first 128 KiB.",
    answers={200: shapes.RunFrames},
)
