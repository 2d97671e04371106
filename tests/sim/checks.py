"""What must be true when all is calm. Owns: the end of a seed: the rows beside the journal, conversations and keys,
slots and tasks that must have been given back, what deleted runs left, and the whole evidence of each run for the judge
of tests/crash. Refuses to know: what happened on the way (watch.py judged that)."""

from __future__ import annotations

from collections import Counter

import msgspec

from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.state import waiting
from ninelives.dialects import DIALECTS
from ninelives.dialects.responses import body
from ninelives.dialects.runs.body import body as run_body
from ninelives.drill.checks import Evidence, Told, frames_of, judge, next_turn, position
from ninelives.engine.base import Chunk, StreamEnded
from ninelives.journal.base import Upkeep
from ninelives.journal.steering import unused
from ninelives.journal.values import Gone
from ninelives.models.scripted import text_of
from tests.sim.dice import EFFECTS
from tests.sim.watch import Track
from tests.sim.world import OWNER, READ_AS, Life, World

FORGET_S = 20.0
"""After that a round of forgetting has come by."""


def stop_forgetting(world: World) -> None:
    """What is judged must stay meanwhile."""
    for each in world.lives:
        if hasattr(each, "engine"):
            each.engine.retainer._upkeep = _Nothing(each.engine.retainer._upkeep)  # type: ignore[assignment]


async def check_end(world: World) -> None:
    """All of it."""
    life = world.life
    if life is None:
        world.watch.wrong("stuck", "", "there is no server at the end")
        return
    _references(world)
    for each in world.up() if world.plan.replicas > 1 else [life]:
        _given_back(world, each)
    for track in list(world.watch.tracks.values()):
        if not track.stored:
            continue
        await _row(world, track)
        if not track.gone:
            await _steered(world, track)
        if track.state.ended and not track.gone:
            await _judged(world, life, track)
    for reader in [reader for each in world.lives for reader in each.readers]:
        track_of = world.watch.tracks.get(reader.run)
        readable = track_of is None or (track_of.stored and not track_of.gone)
        if reader.end.startswith("broken") and readable:
            world.watch.wrong("reader", reader.run, f"a {reader.reading.dialect} stream ended: {reader.end}")


class _Nothing:
    """There is nothing to forget."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep

    def __getattr__(self, name: str) -> object:
        return getattr(self._upkeep, name)

    async def forgettable(self, now: int, unstored_ms: int, limit: int) -> list[Gone]:
        """See Upkeep.forgettable."""
        return []


def check_forgotten(world: World) -> None:
    """What is not stored is gone a while after its answer was delivered."""
    hours = world.plan.limits.keep.unstored_hours
    for track in world.watch.tracks.values():
        goes = track.kept == "delivery" or (track.kept == "hours" and not hours)
        if goes and track.delivered_at and not track.gone and world.loop.now - track.delivered_at > FORGET_S:
            world.watch.wrong("deleted", track.run, f"kept {track.kept}, delivered and not forgotten")


async def _steered(world: World, track: Track) -> None:
    """Each accepted steer was used once and in order, or is told as not used."""
    sent, facts, watch = world.watch.steers.get(track.run, {}), track.state.facts, world.watch
    used = [steered.applied.id for steered in facts.steers]
    if used != [steer for steer in sent if steer in used]:
        watch.wrong("steer", track.run, f"used {used}, sent were {list(sent)}")
    waiting_still = {steer.id for steer in unused(facts, await world.store.signals(track.run))}
    for steer, accepted in sent.items():
        if accepted and steer not in used and steer not in waiting_still:
            watch.wrong("steer", track.run, f"{steer} was accepted, is not used and is not told")
        if steer in used and steer in facts.unused:
            watch.wrong("steer", track.run, f"{steer} was used and told as unused")
    watch.counts["steers used"] += len(used)
    watch.counts["steers told"] += len(facts.unused)


async def _row(world: World, track: Track) -> None:
    """The catalog agrees with the log, and a deleted run is gone."""
    watch, store = world.watch, world.store
    row = await store.find(OWNER, track.run)
    if track.gone:
        if row is not None or await store.read(OWNER, track.run, -1):
            watch.wrong("deleted", track.run, "it is there again")
        return
    if row is None:
        watch.wrong("deleted", track.run, "it is gone, and nobody deleted it")
        return
    state = track.state
    expected = state.status if state.ended else "waiting_for_approval" if waiting(state) else row.status
    if waiting(state) and world.plan.clock_jump_ms < 0:  # claimed for its expiry, killed, and then it was yesterday
        expected = row.status
    if (row.ended, row.status, row.last_seq) != (state.ended, expected, state.seq):
        watch.wrong("references", track.run, f"its row says {row.status} at {row.last_seq}: {expected} at {state.seq}")
    kept = []
    while page := await store.read(OWNER, track.run, len(kept) - 1):
        kept += page
    if [record.data for record in kept] != [codec.encode(entry.event) for entry in track.entries]:
        watch.wrong("told", track.run, f"the journal holds {len(kept)} records, committed were {len(track.entries)}")


def _references(world: World) -> None:
    """Conversations and keys point to runs that are there, and nobody holds what has ended."""
    store, watch, tracks = world.store, world.watch, world.watch.tracks
    for (_, name), talk in store._conversations.items():
        active = tracks.get(talk.active or "")
        if talk.active and (active is None or not active.open):
            watch.wrong("references", talk.active, f"it holds the conversation {name} and is over")
        latest = tracks.get(talk.latest or "")
        if talk.latest and (latest is None or latest.gone or not latest.state.ended):
            watch.wrong("references", talk.latest, f"it is the latest of {name} and is not there")
    for (_, key), found in store._keys.items():
        track = tracks.get(found.run)
        if track is None or track.deleted or track.key != key:
            watch.wrong("references", found.run, f"the key {key} points to it")
    for track in tracks.values():
        if track.stored and not track.deleted and track.key and (OWNER, track.key) not in store._keys:
            watch.wrong("references", track.run, f"its key {track.key} is forgotten")
    for run, signals in store._signals.items():
        if any(signal.kind != "steer" for signal in signals) and not tracks[run].open:
            watch.wrong("references", run, "signals wait for a run that is over")


def _given_back(world: World, life: Life) -> None:
    """A server with nothing to do holds nothing."""
    engine, watch = life.engine, world.watch
    stats = engine.stats()
    if stats["active"] or engine._admission.chores:
        watch.wrong("leak", "", f"slots: {stats['active']} active, {engine._admission.chores} chores")
    if lives := list(engine.readers.lives):
        watch.wrong("leak", lives[0], "a worker's place is not given back")
    if stats["degraded"]:
        watch.wrong("stuck", "", f"the store is fine and the writer says: {stats['degraded']}")
    gone = {each.holder for each in world.lives if each.dead and each.holder}  # their leases are not over yet
    claims = [(run, kept) for run, kept in world.store._runs.items() if not kept.ended and kept.holder not in gone]
    held = [run for run, kept in claims if world.store._is_held(kept)]
    for run in held:
        watch.wrong("leak", run, "its claim was not given back")
    if life.side._runs:
        watch.wrong("leak", next(iter(life.side._runs)), "a run that nobody reads stays in memory")


async def _read(life: Life, run: str, dialect: str, after: int = -1) -> bytes:
    subscription = life.engine.attach(OWNER, run, DIALECTS[dialect].projection(), after)
    data = b""
    try:
        while isinstance(news := await subscription.next(), Chunk):
            data += news.data
        if not isinstance(news, StreamEnded):
            life.world.watch.wrong("reader", run, f"the replay in {dialect} ended with {news}")
    finally:
        subscription.close()
    return data


async def _judged(world: World, life: Life, track: Track) -> None:
    watch, run = world.watch, track.run
    state = await life.engine.look(OWNER, run)
    if state is None or state.seq != track.state.seq or state.status != track.state.status:
        watch.wrong("body", run, f"GET shows {state and state.status}, committed is {track.state.status}")
        return
    shown = run_body(state)
    found = Evidence(run, "responses", shown.status, shown.output)
    chat = state.facts.accepted.spec.store  # else its chunks have no numbers by which drafts could be told apart
    found.told = [told for name, told in world.told if name == run and (chat or told.dialect != "chat")]
    for dialect in READ_AS:
        found.replay[dialect] = await _read(life, run, dialect)
        if dialect != "chat":
            await _resumes(world, life, found, dialect)
    for dialect, rendering in track.renderings.items():
        if found.replay[dialect] != rendering.data:
            watch.wrong("told", run, f"the replay in {dialect} is not what is committed")
    found.body = msgspec.json.decode(msgspec.json.encode(body.body(state)))
    found.asks = _asks(world, track)
    _deeds(world, track, found)
    wrong = judge(found)
    if state.status == "completed" and not state.facts.steers:
        for messages in _asked_with(world, f"next.{run}")[:1]:
            wrong += next_turn(found, messages)
    for finding in wrong:
        watch.wrong("judge", run, f"{finding.kind}: {finding.text}")


async def _resumes(world: World, life: Life, found: Evidence, dialect: str) -> None:
    places = [position(dialect, frame) for frame in frames_of(found.replay[dialect])]
    known = sorted({place for place in places if place is not None})
    for k in world.chance.sample(known, min(2, len(known))):
        found.tails.append(Told(dialect, k, await _read(life, found.run, dialect, k)))


def _asked_with(world: World, text: str) -> list[list[dict[str, object]]]:
    """The asks whose last word of a user is this."""
    asks = (list(ask.messages) for ask in world.model.asks)
    return [messages for messages in asks if _last_words(messages) == text]


def _last_words(messages: list[dict[str, object]]) -> str:
    return next((text_of(m) for m in reversed(messages) if m["role"] == "user"), "")


def _asks(world: World, track: Track) -> list[list[dict[str, object]]]:
    """What the model was asked for this run; nothing where that cannot be told: a deleted run may have had the same
    words, and the last words of a steered one are not those of its request."""
    text = text_of(track.state.facts.accepted.spec.input[-1])
    return [] if track.state.facts.steers or len(world.watch.asking(text)) > 1 else _asked_with(world, text)


def _deeds(world: World, track: Track, found: Evidence) -> None:
    """The deeds of this run, as the judge counts them. Calls that a person did not allow count as done: nothing was to
    be done. Writes that a person may have had repeated are judged by the watch."""
    own = f"call_{track.run}"
    found.effects = Counter({call: n for call, n in world.watch.deeds.items() if call.startswith(own)})
    for entry in track.entries:
        if not isinstance(entry.event, e.ApprovalGiven) or entry.event.call_id not in track.started:
            continue
        if entry.event.choice in ("deny", "expired"):
            found.effects[entry.event.call_id] = max(1, found.effects[entry.event.call_id])
    repeatable = {name for name, effect in EFFECTS.items() if effect != "write"}
    found.repeatable = frozenset(repeatable)
    found.counted = frozenset(repeatable if world.plan.on_unknown == "ask" else EFFECTS)
