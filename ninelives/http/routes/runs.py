"""Runs over HTTP. Owns: its routes. Refuses to know: what an event looks like."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ninelives.core.errors import ClientError, not_found
from ninelives.core.ids import run_of_any, wire_id
from ninelives.core.state import RunState
from ninelives.dialects import DIALECTS, Dialect, fields
from ninelives.dialects.asking import KEY, unknown_model
from ninelives.dialects.hermes.approval import ApprovalAnswer
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.receipt import Receipt
from ninelives.dialects.runs import body, parse, shapes
from ninelives.dialects.shared import messages_text
from ninelives.engine.base import ForkOrder, Ticket
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import (
    AFTER_SEQ,
    CREATE_ERRORS,
    CREATING,
    LAST_EVENT_ID,
    PAGING,
    STARTING_AFTER,
    Endpoint,
    Operation,
    Param,
)
from ninelives.http.describe.shapes import ListPage
from ninelives.http.finding import RunFinder
from ninelives.http.routes.base import RunRoutes
from ninelives.journal.answers import answer_entry_id, not_pending
from ninelives.journal.base import Logger
from ninelives.journal.steering import Steer, steer_id_of
from ninelives.journal.values import RunRow

HIDDEN = DIALECTS["conversations"].name
"""Its runs are not listed: see ids.is_shown."""
STATUSES = tuple(dict.fromkeys(body.STATUS.values()))


class RunsRoutes(RunRoutes):
    """/v1/runs: the runs of all dialects, by any of their ids (G7)."""

    base = "/v1/runs"
    noun = "run"
    id_field = "run_id"
    positions = ("after", "starting_after")

    pure_parse = staticmethod(parse.parse)

    def __init__(self, dialect: Dialect, parts: RouteParts, log: Logger) -> None:
        super().__init__(dialect, parts, log)
        self._finder = RunFinder(parts.engine)

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("GET", "", self.list, LIST),
            Endpoint("GET", "/{id}", self.show, RETRIEVE),
            Endpoint("GET", "/{id}/events", self.events, EVENTS),
            Endpoint("POST", "/{id}/stop", self.stop, STOP),
            Endpoint("POST", "/{id}/approval", self.approve, APPROVE),
            Endpoint("POST", "/{id}/steer", self.steer, STEER),
            Endpoint("POST", "/{id}/fork", self.fork, FORK),
            Endpoint("GET", "/{id}/receipt", self.receipt, RECEIPT),
            Endpoint("POST DELETE", "/{id}/pin", self.pin, PIN),
        ]

    def body(self, state: RunState, metadata: dict[str, str] | None) -> shapes.RunObject:
        """See RunRoutes.body: a run shows no metadata."""
        return body.body(state)

    def shown(self, row: RunRow, state: RunState) -> shapes.RunObject:
        """See RunRoutes.shown: a run that is parked waits for the next holder, or for its caller (G5)."""
        made = body.body(state)
        return replace(made, status="queued") if made.status == "running" and row.status == "queued" else made

    def listed(self, request: Request, row: RunRow, state: RunState) -> shapes.RunObject:
        """See RunRoutes.listed: the caller may want a part of each output only."""
        made, most = self.shown(row, state), query.output_chars(request)
        return made if most is None else replace(made, output=made.output[:most])

    def run_named(self, shown: str) -> str:
        """See RunRoutes.run_named: the id of any dialect will do."""
        run = run_of_any(shown)
        if run is None:
            raise not_found(self.noun, shown)
        return run

    def serves(self, row: RunRow) -> bool:
        """See RunRoutes.serves: any, stored or not."""
        return True

    async def find_run(self, request: Request, run: str) -> RunRow | None:
        """See RunRoutes.find_run: an admin key reaches the runs of all owners."""
        return await self._finder.find(request, run)

    async def answer_created(self, request: Request, parsed: ParsedRequest, ticket: Ticket) -> ASGIApp:
        """See RunRoutes.answer_created: nobody waits for the run."""
        shown = shapes.RunStarted(wire_id("runs", ticket.run), "started")
        return answering.answer_ticket(self.parts, answering.owner_of(request), ticket, shown, 202)

    async def list(self, request: Request) -> Response:
        """GET the caller's runs, by status or by key."""
        status, key = request.query_params.get("status"), request.query_params.get("idempotency_key")
        if status is not None and status not in STATUSES:
            raise ClientError("invalid_value", f"status must be one of {', '.join(STATUSES)}.", param="status")
        query.output_chars(request)
        wanted = self.page_query(request, None)
        return await self.answer_page(
            request, replace(wanted, but=HIDDEN, statuses=(status,) if status else (), key=key)
        )

    async def show(self, request: Request) -> Response:
        """GET one."""
        row = await self.find_row(request)
        state = await self.load_state(request, row)
        shown = self.shown(row, state)
        if waiting := await self.parts.engine.unused_steers(state):
            text = "\n".join(messages_text(steer.messages) for steer in waiting)
            shown = replace(shown, pending_steer=text, pending_steer_ids=[steer.id for steer in waiting])
        return answering.answer(shown, session=row.session)

    async def events(self, request: Request) -> ASGIApp:
        """GET its events, from a position to the end."""
        return await self.follow(request, await self.find_row(request))

    async def approve(self, request: Request) -> Response:
        """POST the answer to the open question: once, session, always or deny."""
        row = await self.find_row(request)
        given = fields.decode(await self.read_body(request), ApprovalAnswer)
        choice = given.meaning()
        state = await self.load_state(request, row)
        asked = state.facts.asked
        if asked is None or not given.fits(asked):
            raise not_pending()
        request.state.audit_detail, request.state.audit_id = choice, answer_entry_id(state)
        await self.parts.engine.approve(row.owner, state, choice, f"key {request.state.key.id}")
        shown = shapes.Approved("hermes.run.approval_response", wire_id("runs", row.run), asked.call.id, choice, 1)
        return answering.answer(shown, session=row.session)

    async def steer(self, request: Request) -> Response:
        """POST user messages: the model reads them before its next message."""
        row = await self.find_row(request)
        messages = parse.steer_messages(await self.read_body(request), self.parts.max_parts)
        key = self.context(request).wish(KEY)
        steer_id = steer_id_of(row.run, key) if key else f"steer_{self.parts.engine.new_id()}"
        steer = Steer(id=steer_id, messages=tuple(messages), by=f"key {request.state.key.id}")
        await self.parts.engine.steer(row.owner, row.run, steer)
        shown = shapes.RunSteerAccepted("hermes.run.steer", wire_id("runs", row.run), steer_id, True)
        return answering.answer(shown, session=row.session)

    async def fork(self, request: Request) -> Response:
        """POST fork: a new run that begins with the facts of this one, up to an entry."""
        row = await self.find_row(request)
        names = self.context(request).profiles()
        if row.model not in names:
            raise unknown_model(row.model, names)  # the owner's run, but made by a key that may use more profiles
        from_seq, said, print_of = parse.fork_request(await self.read_body(request), self.parts.max_parts)
        order = ForkOrder(
            from_seq=from_seq,
            said=tuple(said),
            by=f"key {request.state.key.id}",
            key=self.context(request).wish(KEY),
            fingerprint=f"{row.run} {print_of}",
            credential=request.state.key.id,
        )
        ticket, seq = await self.parts.engine.fork(row.owner, row.run, order)
        named = wire_id("runs", ticket.run)
        return answering.answer(
            shapes.RunForked(named, "started", wire_id("runs", row.run), seq), 202, session=ticket.session
        )

    async def receipt(self, request: Request) -> Response:
        """GET what happened to the run, in one object."""
        row = await self.find_row(request)
        made = Receipt()
        async for entry in self.parts.engine.entries(row.owner, row.run):
            made.add(entry)
        return answering.answer(made.body(), session=row.session)

    async def pin(self, request: Request) -> Response:
        """POST: retention keeps it; DELETE: no longer."""
        row = await self.find_row(request)
        pinned = request.method == "POST"
        await self.parts.engine.durable.upkeep.pin(row.owner, row.run, pinned)
        return answering.answer(shapes.Pinned(wire_id("runs", row.run), pinned), session=row.session)

    async def stop(self, request: Request) -> Response:
        """POST stop: the run ends soon."""
        row, state = await self.cancel_named(request)
        status: shapes.RunStatus = body.STATUS[state.phase] if row.ended else "stopping"
        return answering.answer(shapes.RunStopped(wire_id("runs", row.run), status), session=row.session)


CREATE = Operation(
    summary="Start a run",
    body=parse.RunsRequest,
    required=("input",),
    params=CREATING,
    answers={202: shapes.RunStarted},
    errors=CREATE_ERRORS,
    example={"input": "Say hello."},
)
LIST = Operation(
    summary="List runs",
    doc="Every stored run of the caller, whatever API began it.",
    params=(
        *PAGING,
        Param("status", "Only these.", {"type": "string", "enum": list(STATUSES)}),
        Param("idempotency_key", "Only the run of this key."),
        Param(
            "output_chars",
            "The first characters of each output only; left out: all of it.",
            {"type": "integer", "minimum": 0, "maximum": query.MAX_OUTPUT_CHARS},
        ),
    ),
    answers={200: ListPage[shapes.RunObject]},
    errors=(404,),
)
RETRIEVE = Operation(
    summary="Retrieve a run",
    doc="By its run_ id, or by its id in the API that started it.",
    answers={200: shapes.RunObject},
)
EVENTS = Operation(
    summary="Follow the events of a run",
    params=(AFTER_SEQ, STARTING_AFTER, LAST_EVENT_ID),
    answers={200: None},
    stream="message.delta, tool.started, tool.completed, approval.request and so on, up to the run's end.",
)
STOP = Operation(summary="Stop a run", answers={200: shapes.RunStopped})
APPROVE = Operation(
    summary="Answer the open question of a run",
    body=ApprovalAnswer,
    required=("choice",),
    answers={200: shapes.Approved},
    errors=(409,),
    example={"choice": "once"},
)
STEER = Operation(
    summary="Write to a run while it works",
    doc="Accepted means stored. The model reads it before its next message; a run that ends first shows it as "
    "pending_steer. With an Idempotency-Key the same steer counts once.",
    body=parse.SteerRequest,
    answers={200: shapes.RunSteerAccepted},
    errors=(409, 429),
    example={"input": "Use metric units."},
)
FORK = Operation(
    summary="Fork a run",
    doc="A new run that begins with the facts up to an entry: finished calls are not made again. An entry in a draft "
    "or in a call counts as the last one before it where the run can be forked.",
    body=parse.ForkRequest,
    required=("from_seq",),
    answers={202: shapes.RunForked},
    errors=CREATE_ERRORS,
    example={"from_seq": 7, "input": "Now try it the other way."},
)
RECEIPT = Operation(summary="What happened to a run", answers={200: shapes.ReceiptObject})
PIN = Operation(
    summary="Pin a run",
    doc="Retention leaves it alone; DELETE: no longer.",
    answers={200: shapes.Pinned},
)
