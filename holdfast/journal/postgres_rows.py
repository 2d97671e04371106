"""What the PostgreSQL store does inside one transaction beside the log. Owns: the statements of open, claim and
delete, of chains and of the catalog's rows. Refuses to know: connections, and what becomes of a call whose answer was
lost.

Races are settled by unique constraints that begin with the owner (a key, the name of a conversation) and by row locks
(a conversation, the run that is to be followed): the loser of a race gets Raced, and decides again from what it finds
then. Where a conversation and a run are both locked here, the conversation comes first. The log (append_marked) has to
take the run first; where the two meet in a deadlock, the one that the database breaks off is done again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from holdfast.core import admission
from holdfast.core.errors import Damaged
from holdfast.core.spec import Resolved
from holdfast.journal import queries
from holdfast.journal.base import Attached, Claim, Opened, Opening, Record, Row
from holdfast.journal.postgres_lines import Line
from holdfast.journal.postgres_log import End, notes, packed
from holdfast.journal.segments import origin

SQL = queries.load("postgres.sql")
DELETED, EVICTED = 1, 2


class Raced(Exception):
    """Another was faster: decide again."""


class Already(Exception):
    """The run is there: an earlier try of the same opening happened after all."""


class Holding(Struct, frozen=True):
    """Who writes: the process whose callers wait, how long a lease is, may it judge others by their locks."""

    holder: str
    lease_ms: int
    judges: bool = False


class Facts(Struct, frozen=True):
    """What was found, and where a place was lost that nobody noted as lost: at this process, which is gone."""

    found: admission.Found
    gone: str | None = None


async def look_up(
    line: Line, asked: admission.Asked, opening: Opening | None = None, who: Holding | None = None
) -> Facts:
    """What the store holds for a question, and for one that will be written (an opening) also whose place it takes."""
    talk = None
    if asked.conversation:
        name = "conversation_locked" if opening else "conversation"
        talk = await line.fetchrow(SQL[name], asked.owner, asked.conversation)
    again = asked.again if opening else None
    row = await line.fetchrow(
        SQL["found"],
        asked.owner,
        opening.run if opening else "",
        asked.key,
        asked.previous,
        asked.session,
        asked.fingerprint if again else None,
        again.within_ms if again else 0,
        asked.credential if again and again.same_credential else None,
        again.session if again else None,
        who.holder if who else None,
        bool(who and who.judges),
        who.lease_ms if who else 0,
    )
    if row["own"]:
        raise Already
    previous, (lost, gone) = row["previous"], row["lost"] or (None, None)
    found = admission.Found(
        key=admission.KeyFound(*row["key"]) if row["key"] else None,
        previous=admission.RunFound(previous[0], previous[1], expired=previous[2] == EVICTED) if previous else None,
        conversation=admission.ConversationFound(*talk) if talk else None,
        session_turns=row["turns"] if asked.session else 0,
        lost=lost,
    )
    return Facts(found, gone)


def asks_nothing(opening: Opening) -> bool:
    """Does a run join nothing that is there already? Then there is nothing to look up, and one statement is enough."""
    asked = opening.asked
    nothing = asked.key is None and not (asked.previous or asked.conversation or asked.session or asked.again)
    return nothing and asked.conversation_use != "make" and opening.ended is None


async def begin_run(
    once: Callable[[Callable[[Line], Awaitable[End]]], Awaitable[End]],
    opening: Opening,
    who: Holding,
    note: Callable[[Opened], None],
) -> tuple[Opened, End]:
    """Journal.open for a run that asks nothing: the decision needs no facts."""
    decision = admission.decide(opening.asked, admission.Found())
    if not isinstance(decision, admission.Accept):
        raise TypeError("nothing was found, and yet it is attached to")
    records = opening.first_records(opening.accept(decision.resolved), 1 if opening.holder else 0)
    opened = Opened(opening.run, decision.resolved, records)
    note(opened)
    return opened, await once(lambda line: _insert_run(line, opening, opened, who))


async def open_run(
    line: Line, opening: Opening, who: Holding, note: Callable[[Opened], None]
) -> tuple[Opened, End] | Attached:
    """Journal.open, inside the transaction. `note` hears what is about to be written."""
    asked = opening.asked
    facts = await look_up(line, asked, opening, who)
    decision = admission.decide(asked, facts.found)
    if isinstance(decision, admission.Attach):
        place = (asked.owner, decision.run, who.holder, facts.gone)
        if decision.again and not await line.fetch(SQL["wait_again"], *place):
            raise Raced
        return Attached(decision.run, decision.again)
    resolved = decision.resolved
    if resolved.previous and not await line.fetch(SQL["keep_previous"], asked.owner, resolved.previous):
        raise Raced
    if asked.key is not None:
        key = (asked.owner, asked.key, asked.fingerprint, opening.run)
        if not await line.fetch(SQL["insert_key"], *key):
            raise Raced
    if resolved.conversation:
        await _join(line, opening, resolved.conversation, made=facts.found.conversation is None)
    records = opening.first_records(opening.accept(resolved), 1 if opening.holder else 0)
    opened = Opened(opening.run, resolved, records)
    note(opened)
    return opened, await _insert_run(line, opening, opened, who)


async def _join(line: Line, opening: Opening, conversation: str, *, made: bool) -> None:
    asked, over = opening.asked, opening.ended
    active = None if over else opening.run
    latest = opening.run if over and over.chains else None
    if not made:
        await line.execute(SQL["take_conversation"], asked.owner, conversation, active, latest)
        return
    metadata = opening.metadata if asked.conversation_use == "make" else b"{}"
    row = (asked.owner, conversation, asked.conversation, active, latest, opening.at, metadata)
    if not await line.fetch(SQL["insert_conversation"], *row):
        raise Raced


async def _insert_run(line: Line, opening: Opening, opened: Opened, who: Holding) -> End:
    asked, resolved, over = opening.asked, opened.resolved, opening.ended
    row = packed(opened.records, origin(opening.run))
    attempt = 1 if opening.holder else 0
    turn = (over.turn or None) if over else None
    waits = bool(asked.credential) and not (over and over.void)
    await line.execute(
        SQL["insert_run"],
        asked.owner,
        opening.run,
        opening.dialect,
        opening.model,
        over.status if over else ("running" if attempt else "queued"),
        attempt,
        None if over else opening.holder,
        who.lease_ms,
        not attempt,
        over is not None,
        bool(over and over.chains),
        row.last,
        len(row.data) + len(turn or b""),
        opening.at,
        over.at if over else opening.at,
        over.at if over else 0,
        resolved.session or "",
        resolved.conversation,
        resolved.previous,
        asked.key,
        opening.metadata,
        turn,
        asked.fingerprint,
        asked.credential,
        waits,
        who.holder if waits else None,
        row.before,
        row.after,
        row.data,
        notes(who.holder, [] if over or opening.holder else ["work"]),
    )
    if over and over.session:
        await line.execute(SQL["add_turn"], asked.owner, over.session, over.at, opening.run, over.turn)
    return End(attempt, row.last, row.after, len(row.data))


async def claim(
    line: Line, taken: tuple[str, str, int], who: Holding, first: Callable[[int, bool], bytes]
) -> tuple[Claim, End] | None:
    """Journal.claim, inside the transaction. `taken` is (run, holder, at)."""
    run, holder, at = taken
    row = await line.fetchrow(SQL["claim_look"], run)
    if row is None:
        return None
    attempt, seq, crc = row["attempt"] + 1, row["last_seq"], row["crc_after"]
    data = first(attempt, row["parked"])
    while True:
        record = Record(seq + 1, attempt, at, data)
        new = packed([record], crc)
        told = notes(who.holder, [run])[0]
        size = row["bytes"] + len(new.data)
        values = (run, record.seq, attempt, at, crc, new.after, new.data, holder, who.lease_ms, told)
        if await line.fetch(SQL["claim_run"], *values):
            return Claim(row["owner"], run, attempt, record), End(attempt, record.seq, new.after, size)
        seq, crc = await line.fetchrow(SQL["log_end"], run)  # the zombie wrote once more before it was fenced


async def claimed(line: Line, taken: tuple[str, str, int], attempt: int, data: bytes) -> tuple[Claim, End] | None:
    """A claim that happened, though its answer was lost; nothing was written after it."""
    run, holder, at = taken
    row = await line.fetchrow(SQL["claim_mine"], run, holder, attempt)
    if row is None:
        return None
    record = Record(row["first_seq"], attempt, at, data)
    if packed([record], row["crc_before"]).data != row["data"]:
        return None
    return Claim(row["owner"], run, attempt, record), End(attempt, record.seq, row["crc_after"], row["bytes"])


async def hide(line: Line, named: tuple[str, str], at: int, how: int) -> bool:
    """Journal.delete and Upkeep.evict, inside the transaction: a run (owner, id) goes, its references with it."""
    owner, run = named
    talk = await line.fetchrow(SQL["talk_of"], owner, run)
    if talk is None:
        return False
    conversation = talk["conversation"]
    if conversation is not None:
        await line.execute(SQL["lock_talk"], owner, conversation)
    row = await line.fetchrow(SQL["run_for_delete"], owner, run)
    if row is None:
        return False
    await line.execute(SQL["hide_run"], run, at, how)
    await line.execute(SQL["delete_log"], run)
    await line.execute(SQL["drop_signals"], run)
    if row["idem"] is not None:
        await line.execute(SQL["delete_key"], owner, row["idem"])
    if conversation is not None:
        ancestor = await _visible_ancestor(line, owner, row["previous"])
        await line.execute(SQL["move_latest"], owner, conversation, run, ancestor)
    return True


async def _visible_ancestor(line: Line, owner: str, run: str | None) -> str | None:
    while run is not None:
        row = await line.fetchrow(SQL["ancestor"], owner, run)
        if row is None:
            return None
        if not row["hidden"]:
            return run
        run = row["previous"]
    return None


async def turns(line: Line, owner: str, resolved: Resolved) -> list[bytes]:
    """Catalog.turns."""
    if resolved.session_turns is not None:
        rows = await line.fetch(SQL["session"], owner, resolved.session, resolved.session_turns)
        if len(rows) < resolved.session_turns:
            raise Damaged("an earlier turn of this session is gone from the store")
        return [row["turn"] for row in rows]
    chain: list[Any] = await line.fetch(SQL["chain"], owner, resolved.previous, resolved.conversation)
    if not chain or chain[0]["previous"] is not None or any(row["turn"] is None for row in chain):
        raise Damaged("an earlier turn of this chain is gone from the store")
    return [row["turn"] for row in chain]


def row_of(found: Any) -> Row:
    """A row of the catalog."""
    return Row(
        owner=found["owner"],
        run=found["id"],
        dialect=found["dialect"],
        model=found["model"],
        status=found["status"],
        ended=found["ended"],
        created_at=found["created_at"],
        updated_at=found["updated_at"],
        session=found["session"],
        conversation=found["conversation"],
        previous=found["previous"],
        key=found["idem"],
        metadata=found["metadata"],
        last_seq=found["last_seq"],
    )
