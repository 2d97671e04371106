"""Runs over HTTP. Owns: its routes. Refuses to know: what an event looks like."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from holdfast.core.errors import ClientError, not_found
from holdfast.core.ids import wire_id
from holdfast.dialects import fields, runs
from holdfast.dialects.receipt import Receipt
from holdfast.engine.approvals import Choice, not_pending
from holdfast.engine.base import Ticket
from holdfast.http import calls, shapes
from holdfast.http.calls import Answering, Parts
from holdfast.http.describe import (
    AFTER_SEQ,
    CREATE_ERRORS,
    CREATING,
    LAST_EVENT_ID,
    PAGING,
    STARTING_AFTER,
    Operation,
    Param,
    described,
)

NOUN = "run"
ADDED = "conversations"
"""The runs that are not shown here: see ids.is_shown."""
STATUSES = tuple(dict.fromkeys(runs.STATUS.values()))
HOW = Answering(
    projection=runs.RunsProjection(),
    body=lambda state, metadata: runs.body(state),
    refusal=calls.no_refusal,
    eager=True,
)


class ApprovalAnswer(Struct):
    """What a person says. Call and digest may be named, so that the answer fits no other call."""

    choice: Choice | None = None
    toolCallId: str | None = None
    digest: str | None = None


class RunsRoutes:
    """/v1/runs."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/v1/runs"
        return [
            Route(base, self.create, methods=["POST"]),
            Route(base, self.list, methods=["GET"]),
            Route(base + "/{id}", self.retrieve, methods=["GET"]),
            Route(base + "/{id}/events", self.events, methods=["GET"]),
            Route(base + "/{id}/stop", self.stop, methods=["POST"]),
            Route(base + "/{id}/approval", self.approve, methods=["POST"]),
            Route(base + "/{id}/receipt", self.receipt, methods=["GET"]),
            Route(base + "/{id}/pin", self.pin, methods=["POST", "DELETE"]),
        ]

    @described(
        Operation(
            tag="Runs",
            summary="Start a run",
            body=runs.RunsRequest,
            required=("input",),
            params=CREATING,
            answers={202: shapes.RunStarted},
            errors=CREATE_ERRORS,
            example={"input": "Say hello."},
        )
    )
    async def create(self, request: Request) -> Response:
        """POST: begin a run; it goes on by itself."""
        context = calls.context_of(request, self._parts)
        parsed = runs.parse(await calls.body_of(request, self._parts), context, self._parts.max_parts)
        ticket = await calls.submit(self._parts, context, parsed.spec, parsed.asked)
        shown = {"run_id": wire_id("runs", ticket.run), "status": "started"}
        return calls.handed(self._parts, context.owner, ticket, shown, 202)

    @described(
        Operation(
            tag="Runs",
            summary="List runs",
            doc="Every stored run of the caller, whatever API began it.",
            params=(
                *PAGING,
                Param("status", "Only these.", {"type": "string", "enum": list(STATUSES)}),
                Param("idempotency_key", "Only the run of this key."),
            ),
            answers={200: shapes.Page[shapes.Run]},
            errors=(404,),
        )
    )
    async def list(self, request: Request) -> Response:
        """GET the caller's runs, by status or by key."""
        status, key = request.query_params.get("status"), request.query_params.get("idempotency_key")
        if status is not None and status not in STATUSES:
            raise ClientError("invalid_value", f"status must be one of {', '.join(STATUSES)}.", param="status")
        query = calls.page_query(request, None, NOUN)
        query = replace(query, but=ADDED, statuses=(status,) if status else (), key=key)
        shown: list[dict[str, object]] = []
        for row in await self._parts.engine.durable.rows(query):
            state = await self._parts.engine.look(row.owner, row.run)
            if state is not None:
                shown.append(runs.body(state))
        return calls.answer(calls.page(shown, query.limit - 1, "run_id"))

    @described(
        Operation(
            tag="Runs",
            summary="Retrieve a run",
            doc="By its run_, resp_, chatcmpl- or msg_ id.",
            answers={200: shapes.Run},
        )
    )
    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        row = await calls.row_named(request, self._parts, "runs", NOUN)
        state = await calls.state_named(request, self._parts, row, NOUN)
        return calls.answer(runs.body(state), session=row.session)

    @described(
        Operation(
            tag="Runs",
            summary="Follow the events of a run",
            params=(AFTER_SEQ, STARTING_AFTER, LAST_EVENT_ID),
            answers={200: None},
            stream="message.delta, tool.started, tool.completed, approval.request and so on, up to the run's end.",
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        """GET its events, from a position, to the end."""
        row = await calls.row_named(request, self._parts, "runs", NOUN)
        after = calls.position(request, "after", "starting_after")
        return await calls.streamed(request, self._parts, Ticket(row.run, row.session), HOW, after=after)

    @described(
        Operation(
            tag="Runs",
            summary="Answer the open question of a run",
            body=ApprovalAnswer,
            required=("choice",),
            answers={200: shapes.Approved},
            errors=(409,),
            example={"choice": "once"},
        )
    )
    async def approve(self, request: Request) -> Response:
        """POST the answer to the open question: once, session, always or deny."""
        row = await calls.row_named(request, self._parts, "runs", NOUN)
        given = fields.decode(await calls.body_of(request, self._parts), ApprovalAnswer)
        choice: Choice = fields.required(given.choice, "choice")
        state = await calls.state_named(request, self._parts, row, NOUN)
        asked = state.facts.asked
        if asked is None or given.toolCallId not in (None, asked.call.id) or given.digest not in (None, asked.digest):
            raise not_pending()
        await self._parts.engine.approve(row.owner, state, choice, f"key {request.state.key.id}")
        shown = {"run_id": wire_id("runs", row.run), "toolCallId": asked.call.id, "choice": choice}
        return calls.answer(shown, session=row.session)

    @described(
        Operation(
            tag="Runs",
            summary="What happened to a run",
            answers={200: shapes.Receipt},
        )
    )
    async def receipt(self, request: Request) -> Response:
        """GET what happened to the run, in one object."""
        row = await calls.row_named(request, self._parts, "runs", NOUN)
        made = Receipt()
        async for entry in self._parts.engine.entries(row.owner, row.run):
            made.take(entry)
        return calls.answer(made.body(), session=row.session)

    @described(
        Operation(
            tag="Runs",
            summary="Pin a run",
            doc="Retention leaves it alone; DELETE: no longer.",
            answers={200: shapes.Pinned},
        )
    )
    async def pin(self, request: Request) -> Response:
        """POST: keep it, whatever retention says; DELETE: no longer."""
        row = await calls.row_named(request, self._parts, "runs", NOUN)
        pinned = request.method == "POST"
        await self._parts.engine.durable.upkeep.pin(row.owner, row.run, pinned)
        return calls.answer({"run_id": wire_id("runs", row.run), "pinned": pinned}, session=row.session)

    @described(
        Operation(
            tag="Runs",
            summary="Stop a run",
            answers={200: shapes.RunStopped},
        )
    )
    async def stop(self, request: Request) -> Response:
        """POST stop: the run ends soon."""
        row = await calls.row_named(request, self._parts, "runs", NOUN)
        state = await self._parts.engine.cancel(row.owner, row.run)
        if state is None:
            raise not_found(NOUN, request.path_params["id"])
        status = runs.STATUS[state.phase] if row.ended else "stopping"
        return calls.answer({"run_id": wire_id("runs", row.run), "status": status}, session=row.session)
