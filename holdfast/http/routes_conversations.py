"""Conversations over HTTP (C7, C8). Owns: /v1/conversations and its items, and which runs of a conversation a page
needs, so that a long one is never read as a whole. Refuses to know: how items are made of a run and how a conversation
is kept."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.core.errors import ClientError, not_found
from holdfast.core.state import RunState
from holdfast.dialects import conversations as dialect
from holdfast.dialects.asking import Context
from holdfast.engine.base import Order, Ticket
from holdfast.engine.conversations import ConversationEdits
from holdfast.http import calls, shapes
from holdfast.http.calls import Parts
from holdfast.http.describe import KEY, PAGING, Operation, described
from holdfast.journal.base_conversations import ConversationRow, Link

NOUN = "conversation"
Item = dict[str, object]


class ConversationRoutes:
    """/v1/conversations. A conversation is named by its id or, where it has one, by its name."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._edits = ConversationEdits(parts.engine)

    def routes(self) -> list[Route]:
        """All of them."""
        base = "/v1/conversations"
        return [
            Route(base, self.create, methods=["POST"]),
            Route(base, self.every, methods=["GET"]),
            Route(base + "/{id:path}/items/{item}", self.item, methods=["GET"]),
            Route(base + "/{id:path}/items/{item}", self.remove, methods=["DELETE"]),
            Route(base + "/{id:path}/items", self.add, methods=["POST"]),
            Route(base + "/{id:path}/items", self.items, methods=["GET"]),
            Route(base + "/{id:path}", self.retrieve, methods=["GET"]),
            Route(base + "/{id:path}", self.update, methods=["POST"]),
            Route(base + "/{id:path}", self.delete, methods=["DELETE"]),
        ]

    # The conversation

    @described(
        Operation(
            tag="Conversations",
            summary="Make a conversation",
            params=(KEY,),
            body=dialect.CreateRequest,
            body_optional=True,
            answers={200: shapes.Conversation},
            errors=(409,),
        )
    )
    async def create(self, request: Request) -> Response:
        """POST: a new one, with its first items."""
        context = calls.context_of(request, self._parts)
        addition = dialect.parse_create(
            await calls.optional_body_of(request, self._parts), context, self._parts.max_parts
        )
        ticket = await self._added(context, addition)
        row = await self._parts.engine.find(context.owner, ticket.run)
        made = _body(await self._edits.find(context.owner, (row and row.conversation) or ""))
        return calls.handed(self._parts, context.owner, ticket, made)

    async def _added(self, context: Context, addition: dialect.Addition) -> Ticket:
        """Items are there, by this request or by the one whose lost connection it replaces (G13)."""
        asked = context.waiting(addition.asked)
        run = await self._edits.add(Order(owner=context.owner, spec=addition.spec, asked=asked))
        return Ticket(run, "", waited=bool(asked.credential))

    @described(
        Operation(
            tag="Conversations",
            summary="List conversations",
            params=PAGING,
            answers={200: shapes.Page[shapes.Conversation]},
            errors=(404,),
        )
    )
    async def every(self, request: Request) -> Response:
        """GET the caller's, the newest first."""
        limit, ascending = calls.limit_of(request), _ascending(request)
        after = request.query_params.get("after")
        rows = await self._edits.page(calls.owner_of(request), limit + 1, after, ascending=ascending)
        return calls.answer(calls.page([_body(row) for row in rows], limit))

    async def _named(self, request: Request) -> ConversationRow:
        return await self._edits.find(calls.owner_of(request), request.path_params["id"])

    @described(
        Operation(
            tag="Conversations",
            summary="Retrieve a conversation",
            answers={200: shapes.Conversation},
        )
    )
    async def retrieve(self, request: Request) -> Response:
        """GET one."""
        return calls.answer(_body(await self._named(request)))

    @described(
        Operation(
            tag="Conversations",
            summary="Change the metadata of a conversation",
            body=dialect.UpdateRequest,
            required=("metadata",),
            answers={200: shapes.Conversation},
        )
    )
    async def update(self, request: Request) -> Response:
        """POST new metadata."""
        metadata = dialect.parse_update(await calls.body_of(request, self._parts))
        row = await self._edits.annotate(calls.owner_of(request), request.path_params["id"], metadata)
        return calls.answer(_body(row))

    @described(
        Operation(
            tag="Conversations",
            summary="Delete a conversation",
            doc="Its responses stay; 409 while one of them is active.",
            answers={200: shapes.Deleted},
            errors=(409,),
        )
    )
    async def delete(self, request: Request) -> Response:
        """DELETE it with the items that the client added; its responses stay."""
        gone = await self._edits.forget(calls.owner_of(request), request.path_params["id"], dialect.DIALECT)
        return calls.answer({"id": gone, "object": "conversation.deleted", "deleted": True})

    # Its items

    @described(
        Operation(
            tag="Conversations",
            summary="Add items to a conversation",
            params=(KEY,),
            body=dialect.ItemsRequest,
            required=("items",),
            answers={200: shapes.Page[shapes.StoredItem]},
            errors=(409,),
        )
    )
    async def add(self, request: Request) -> Response:
        """POST items: they come after all that is there."""
        context, named = calls.context_of(request, self._parts), request.path_params["id"]
        addition = dialect.parse_items(await calls.body_of(request, self._parts), context, named, self._parts.max_parts)
        ticket = await self._added(context, addition)
        links = [link for link in await self._edits.line(context.owner, named) if link.run == ticket.run]
        shown = [item for link in links for item in await self._shown(context.owner, link)]
        return calls.handed(self._parts, context.owner, ticket, calls.page(shown, dialect.MAX_ITEMS))

    @described(
        Operation(
            tag="Conversations",
            summary="List the items of a conversation",
            params=PAGING,
            answers={200: shapes.Page[shapes.StoredItem]},
        )
    )
    async def items(self, request: Request) -> Response:
        """GET a page of its items."""
        owner, named = calls.owner_of(request), (await self._named(request)).id
        limit, ascending = calls.limit_of(request), _ascending(request)
        links = await self._edits.line(owner, named)
        if not ascending:
            links.reverse()
        found: list[Item] = []
        if (after := request.query_params.get("after")) is not None:
            links, found = await self._after(owner, links, after, ascending=ascending)
        for link in links:
            if len(found) > limit:
                break
            shown = await self._shown(owner, link)
            found += shown if ascending else shown[::-1]
        return calls.answer(calls.page(found, limit))

    async def _after(
        self, owner: str, links: list[Link], after: str, *, ascending: bool
    ) -> tuple[list[Link], list[Item]]:
        """The runs beyond the one in which the page before ended, and the rest of that one. An item that was taken out
        meanwhile still marks its place."""
        for place, link in enumerate(links):
            if dialect.is_of(after, link.run) and (state := await self._parts.engine.look(owner, link.run)):
                items = dialect.items_of(state)
                if not ascending:
                    items.reverse()
                at = next((n for n, item in enumerate(items) if item["id"] == after), None)
                if at is not None:
                    return links[place + 1 :], _left(items[at + 1 :], link)
        raise ClientError("invalid_value", f"There is no item {after} here.", param="after")

    async def _shown(self, owner: str, link: Link) -> list[Item]:
        state = await self._parts.engine.look(owner, link.run)
        return _left(dialect.items_of(state), link) if state is not None else []

    @described(
        Operation(
            tag="Conversations",
            summary="Retrieve an item",
            answers={200: shapes.StoredItem},
        )
    )
    async def item(self, request: Request) -> Response:
        """GET one item."""
        _, item, _ = await self._item(request)
        return calls.answer(item)

    @described(
        Operation(
            tag="Conversations",
            summary="Delete an item",
            doc="Later turns do not see it; the answer is the conversation.",
            answers={200: shapes.Conversation},
            errors=(409,),
        )
    )
    async def remove(self, request: Request) -> Response:
        """DELETE one item: later turns do not see it; the answer is the conversation."""
        row, item, state = await self._item(request)
        turn = partial(dialect.turn_without, state)
        if not await self._edits.remove(calls.owner_of(request), row.id, str(item["id"]), state, turn):
            raise _no_item(request)
        return calls.answer(_body(row))

    async def _item(self, request: Request) -> tuple[ConversationRow, Item, RunState]:
        owner, row, wanted = calls.owner_of(request), await self._named(request), request.path_params["item"]
        for link in await self._edits.line(owner, row.id):
            if dialect.is_of(wanted, link.run) and (state := await self._parts.engine.look(owner, link.run)):
                for item in _left(dialect.items_of(state), link):
                    if item["id"] == wanted:
                        return row, item, state
        raise _no_item(request)


def _left(items: list[Item], link: Link) -> list[Item]:
    return [item for item in items if item["id"] not in link.removed]


def _no_item(request: Request) -> ClientError:
    return not_found("item", request.path_params["item"])


def _ascending(request: Request) -> bool:
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ClientError("invalid_value", "order must be asc or desc.", param="order")
    return order == "asc"


def _body(row: ConversationRow) -> dict[str, object]:
    metadata = msgspec.json.decode(row.metadata, type=dict[str, str])
    return dialect.conversation(row.id, row.name, row.created_at, metadata)
