"""Conversations over HTTP (C7, C8). Owns: /v1/conversations and its items, and which runs of a conversation a page
needs, so that a long one is never read as a whole. Refuses to know: how a run becomes items, and how a conversation is
stored."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ninelives.core.errors import ClientError, not_found
from ninelives.core.state import RunState
from ninelives.dialects import Dialect
from ninelives.dialects.asking import Context
from ninelives.dialects.conversations import body, items, parse, shapes
from ninelives.dialects.parsed import ParsedRequest
from ninelives.engine.base import Order, Ticket
from ninelives.http import answering, query
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import KEY, PAGING, Endpoint, Operation
from ninelives.http.describe.shapes import Deleted, ListPage, StoredItem
from ninelives.http.routes.base import DialectRoutes
from ninelives.journal.base import Logger
from ninelives.journal.values import ConversationLink, ConversationRow
from ninelives.sessions.book import ConversationEdits

NOUN = "conversation"
Item = dict[str, object]


class ConversationRoutes(DialectRoutes):
    """/v1/conversations. A path names a conversation by its id or by its name."""

    base = "/v1/conversations"

    def __init__(self, dialect: Dialect, parts: RouteParts, log: Logger) -> None:
        super().__init__(dialect, parts, log)
        self._edits = ConversationEdits(parts.engine)

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("POST", "", self.create, CREATE),
            Endpoint("GET", "", self.list_all, LIST),
            Endpoint("GET", "/{id:path}/items/{item}", self.item, ITEM),
            Endpoint("DELETE", "/{id:path}/items/{item}", self.remove, REMOVE),
            Endpoint("POST", "/{id:path}/items", self.add, ADD),
            Endpoint("GET", "/{id:path}/items", self.items, ITEMS),
            Endpoint("GET", "/{id:path}", self.retrieve, RETRIEVE),
            Endpoint("POST", "/{id:path}", self.update, UPDATE),
            Endpoint("DELETE", "/{id:path}", self.delete, DELETE),
        ]

    # The conversation

    async def create(self, request: Request) -> ASGIApp:
        """POST: a new one, with its first items."""
        context = self.context(request)
        raw, parts = await answering.optional_body_of(request, self.parts), self.parts
        addition = await parts.aside.run(len(raw), parse.parse_create, raw, context, parts.max_parts)
        ticket = await self._add_items(context, addition)
        row = await self.parts.engine.find(context.owner, ticket.run)
        made = _body(await self._edits.find(context.owner, (row and row.conversation) or ""))
        return answering.answer_ticket(self.parts, context.owner, ticket, made)

    async def _add_items(self, context: Context, addition: ParsedRequest) -> Ticket:
        """Add items, unless the request whose lost connection this one replaces has added them (G13)."""
        asked = context.waiting(addition.asked)
        run = await self._edits.add(Order(owner=context.owner, spec=addition.spec, asked=asked))
        return Ticket(run, "", waited=bool(asked.credential))

    async def list_all(self, request: Request) -> Response:
        """GET the caller's, the newest first."""
        limit, ascending = query.limit_of(request), query.is_ascending(request)
        after = request.query_params.get("after")
        rows = await self._edits.page(answering.owner_of(request), limit + 1, after, ascending=ascending)
        return answering.answer(query.page([_body(row) for row in rows], limit))

    async def _find(self, request: Request) -> ConversationRow:
        return await self._edits.find(answering.owner_of(request), request.path_params["id"])

    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        return answering.answer(_body(await self._find(request)))

    async def update(self, request: Request) -> Response:
        """POST new metadata."""
        metadata = parse.parse_update(await self.read_body(request))
        row = await self._edits.annotate(answering.owner_of(request), request.path_params["id"], metadata)
        return answering.answer(_body(row))

    async def delete(self, request: Request) -> Response:
        """DELETE it with the items that the client added; its responses stay."""
        gone = await self._edits.forget(answering.owner_of(request), request.path_params["id"], parse.DIALECT)
        return answering.answer(Deleted(gone, "conversation.deleted", True))

    # Its items

    async def add(self, request: Request) -> ASGIApp:
        """POST items: they are added at the end."""
        context, named = self.context(request), request.path_params["id"]
        raw, parts = await self.read_body(request), self.parts
        addition = await parts.aside.run(len(raw), parse.parse_items, raw, context, named, parts.max_parts)
        ticket = await self._add_items(context, addition)
        links = [link for link in await self._edits.line(context.owner, named) if link.run == ticket.run]
        shown = [item for link in links for item in await self._items_of(context.owner, link)]
        return answering.answer_ticket(self.parts, context.owner, ticket, query.page(shown, parse.MAX_ITEMS))

    async def items(self, request: Request) -> Response:
        """GET a page of its items."""
        owner, named = answering.owner_of(request), (await self._find(request)).id
        limit, ascending = query.limit_of(request), query.is_ascending(request)
        links = await self._edits.line(owner, named)
        if not ascending:
            links.reverse()
        found: list[Item] = []
        if (after := request.query_params.get("after")) is not None:
            links, found = await self._after(owner, links, after, ascending=ascending)
        for link in links:
            if len(found) > limit:
                break
            shown = await self._items_of(owner, link)
            found += shown if ascending else shown[::-1]
        return answering.answer(query.page(found, limit))

    async def _after(
        self, owner: str, links: list[ConversationLink], after: str, *, ascending: bool
    ) -> tuple[list[ConversationLink], list[Item]]:
        """The runs after the one in which the previous page ended, and the rest of that one. An item that was removed
        since then still marks its place."""
        for place, link in enumerate(links):
            if items.belongs_to(after, link.run) and (state := await self.parts.engine.look(owner, link.run)):
                found = items.items_of(state)
                if not ascending:
                    found.reverse()
                at = next((n for n, item in enumerate(found) if item["id"] == after), None)
                if at is not None:
                    return links[place + 1 :], _without_removed(found[at + 1 :], link)
        raise query.unknown_item(after)

    async def _items_of(self, owner: str, link: ConversationLink) -> list[Item]:
        state = await self.parts.engine.look(owner, link.run)
        return _without_removed(items.items_of(state), link) if state is not None else []

    async def item(self, request: Request) -> Response:
        """GET one item."""
        _, item, _ = await self._item(request)
        return answering.answer(item)

    async def remove(self, request: Request) -> Response:
        """DELETE one item: later turns do not see it; the answer is the conversation."""
        row, item, state = await self._item(request)
        turn = partial(items.turn_without, state)
        if not await self._edits.remove(answering.owner_of(request), row.id, str(item["id"]), state, turn):
            raise _no_item(request)
        return answering.answer(_body(row))

    async def _item(self, request: Request) -> tuple[ConversationRow, Item, RunState]:
        owner, row, wanted = answering.owner_of(request), await self._find(request), request.path_params["item"]
        for link in await self._edits.line(owner, row.id):
            if items.belongs_to(wanted, link.run) and (state := await self.parts.engine.look(owner, link.run)):
                for item in _without_removed(items.items_of(state), link):
                    if item["id"] == wanted:
                        return row, item, state
        raise _no_item(request)


def _without_removed(found: list[Item], link: ConversationLink) -> list[Item]:
    return [item for item in found if item["id"] not in link.removed]


def _no_item(request: Request) -> ClientError:
    return not_found("item", request.path_params["item"])


def _body(row: ConversationRow) -> shapes.ConversationObject:
    metadata = msgspec.json.decode(row.metadata, type=dict[str, str])
    return body.conversation(row.id, row.name, row.created_at, metadata)


CREATE = Operation(
    summary="Make a conversation",
    params=(KEY,),
    body=parse.CreateRequest,
    body_optional=True,
    answers={200: shapes.ConversationObject},
    errors=(409,),
)
LIST = Operation(
    summary="List conversations",
    params=PAGING,
    answers={200: ListPage[shapes.ConversationObject]},
    errors=(404,),
)
RETRIEVE = Operation(
    summary="Retrieve a conversation",
    answers={200: shapes.ConversationObject},
)
UPDATE = Operation(
    summary="Change the metadata of a conversation",
    body=parse.UpdateRequest,
    required=("metadata",),
    answers={200: shapes.ConversationObject},
)
DELETE = Operation(
    summary="Delete a conversation",
    doc="Its responses stay; 409 while one of them is active.",
    answers={200: Deleted},
    errors=(409,),
)
ADD = Operation(
    summary="Add items to a conversation",
    params=(KEY,),
    body=parse.ItemsRequest,
    required=("items",),
    answers={200: ListPage[StoredItem]},
    errors=(409,),
)
ITEMS = Operation(
    summary="List the items of a conversation",
    params=PAGING,
    answers={200: ListPage[StoredItem]},
)
ITEM = Operation(
    summary="Retrieve an item",
    answers={200: StoredItem},
)
REMOVE = Operation(
    summary="Delete an item",
    doc="Later turns do not see it; the answer is the conversation.",
    answers={200: shapes.ConversationObject},
    errors=(409,),
)
