"""Requests that refer to stored things. Owns: finding the items that a Responses request names by id, the check that
a conversation fits the context window before its run starts, and that a tool result has its call. Refuses to know:
routes and websockets."""

from __future__ import annotations

from collections.abc import Sequence

from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError
from ninelives.core.history import call_ids
from ninelives.core.ids import run_of, runs_of_item
from ninelives.dialects.asking import KEY, Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.responses import body, items, parse
from ninelives.dialects.responses.refs import Item, references
from ninelives.http.answering import RouteParts
from ninelives.journal.earlier import would_follow
from ninelives.journal.values import Query

ITEMS_OF = ("responses", "conversations")
"""Runs whose items can be named again: those of responses, and those that were added to conversations."""


async def named_items(parts: RouteParts, owner: str, ids: Sequence[str], previous: str | None) -> dict[str, Item]:
    """Those of the named items that the owner has. An item is in the response that its id names, or in the previous
    response: a caller may have given its own ids to its input items."""
    found: dict[str, Item] = {}
    searched: set[str] = set()
    follows = run_of("responses", previous) if previous else None
    for shown in ids:
        for run in (*runs_of_item(shown), follows):
            if run is None or run in searched or shown in found:
                continue
            searched.add(run)
            found |= await _items_of(parts, owner, run)
    return {shown: found[shown] for shown in ids if shown in found}


async def _items_of(parts: RouteParts, owner: str, run: str) -> dict[str, Item]:
    row = await parts.engine.find(owner, run)
    shown_there = row is not None and row.dialect in ITEMS_OF and row.kept == "stored"
    state = await parts.engine.look(owner, run) if shown_there else None
    if state is None:
        return {}
    shown = [*body.input_items(state), *(items.as_input(item) for item in body.output(state))]
    return {str(item["id"]): item for item in shown}


async def parse_resolved(parts: RouteParts, context: Context, raw: bytes) -> ParsedRequest:
    """A create request, with the items that it names."""
    aside, size = parts.aside, len(raw)
    request = await aside.run(size, parse.read, raw)
    context = context.under(request.model)
    wanted = references(request.input)
    known = await named_items(parts, context.owner, wanted, request.previous_response_id)
    if len(known) < len(wanted) and await _key_known(parts, context):
        known = {**{shown: {"type": "gone"} for shown in wanted}, **known}
    parsed = await aside.run(size, parse.parse_request, request, context, parts.max_parts, known)
    bounded = parsed.spec.echo.get("truncation") != "auto" and parts.token_counts.window(parsed.spec.model) > 0
    if bounded and not await _key_known(parts, context):
        await _check_window(parts, parsed, size)
    return parsed


async def _key_known(parts: RouteParts, context: Context) -> bool:
    """Does the key name a run? Then that run is the answer, whatever became of the things that the request names."""
    key = context.wish(KEY)
    return key is not None and bool(await parts.engine.durable.rows(Query(owner=context.owner, key=key, limit=1)))


async def check_results(parts: RouteParts, context: Context, parsed: ParsedRequest) -> None:
    """Refuse a tool result whose call is neither in the request nor in the history that it joins (G17). Where that
    history cannot be read, admission says why, or attaches the request to a run of the same key or a lost one."""
    asked, calls = parsed.asked, set[object]()
    if await _key_known(parts, context):
        return
    if asked.previous or asked.conversation or asked.session:
        try:
            calls = call_ids(await would_follow(parts.engine.durable, asked))
        except ClientError:
            return
    for call in parsed.unmatched:
        if call not in calls:
            param = "input" if parsed.spec.dialect in ("responses", "runs") else "messages"
            raise ClientError("unknown_tool_call", _unmatched_text(asked, call), param=param)


def _unmatched_text(asked: Asked, call: str) -> str:
    words = f"The call {call[:128]} of this tool result is"
    if asked.session and not asked.previous and not asked.conversation:
        return (
            f"{words} not in the session {asked.session}, which gives the history. Name no session, or the right one."
        )
    return f"{words} neither in the request nor in its history: send the call along."


async def _check_window(parts: RouteParts, parsed: ParsedRequest, size: int) -> None:
    """Refuse what does not fit, unless the caller lets it be truncated. The request has `size` bytes."""
    asked, window = parsed.asked, parts.token_counts.window(parsed.spec.model)
    joins = asked.previous or asked.conversation or asked.session
    earlier = await would_follow(parts.engine.durable, asked) if joins else ()
    tokens = await parts.aside.run(size, parts.token_counts.tokens, parsed.spec, earlier)
    if tokens > window:
        message = f"The conversation is about {tokens} tokens long; {window} fit. Send less, or truncation=auto."
        raise ClientError("context_length_exceeded", message, param="input")
