"""Answers that another process has begun. Owns: how the answer of a kept client goes on: as a stream from its first
byte, which its connection skips up to where it was (edge/kept.py), or as a body when the run has ended. Refuses to
know: sockets, and any one dialect."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ninelives.dialects.shared import PROJECTION
from ninelives.engine.base import Ticket
from ninelives.http import answering
from ninelives.http.answering import Answering, RouteParts, abort
from ninelives.http.edge.kept import KeptRequest, KeptStream
from ninelives.journal.base import Logger


class AdoptedAnswers:
    """Goes on with answers, by the name of how they were begun."""

    def __init__(self, parts: RouteParts, ways: Mapping[str, Answering], log: Logger) -> None:
        self._parts = parts
        self._ways = ways
        self._log = log

    async def answer(self, kept: KeptRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on. A client whose answer cannot be told from here is cut, as if it was not kept."""
        how, left = self._ways.get(kept.how), scope["extensions"]["ninelives.kept"]
        self._log.info("client_adopted", request_id=kept.request_id, run=kept.run, answer=left.standing)
        if left.standing == "whole":
            return await self._parts.engine.close(kept.owner, _ticket(kept), whole=True)
        if how is None or kept.projection > PROJECTION or left.standing == "broken":
            return await self.cut(kept, scope)
        request = Request(scope, receive, send)
        response = await self._response(kept, request, how, left)
        await response(scope, receive, send)
        if left.fault:
            self._log.warning("client_cut", request_id=kept.request_id, run=kept.run, why=left.fault)

    async def _response(self, kept: KeptRequest, request: Request, how: Answering, left: KeptStream) -> ASGIApp:
        ticket = _ticket(kept)
        if left.standing == "begun":
            return answering.stream_on(self._parts, kept.owner, ticket, how, kept.after)
        if kept.stream:
            return await answering.stream_run(request, self._parts, ticket, how, after=kept.after)
        return await answering.answer_run(request, self._parts, ticket, how, stream=False)

    async def cut(self, kept: KeptRequest, scope: Scope) -> None:
        """Break the connection off. Its client may come back (G13)."""
        await self._parts.engine.close(kept.owner, _ticket(kept), whole=False)
        abort(scope)


def _ticket(kept: KeptRequest) -> Ticket:
    return Ticket(kept.run, kept.session, attached=kept.attached, waited=kept.waited, watches=kept.watches)
