"""Those who call the server, and those who meddle. Owns: a Client (submits, reads, waits, comes back when its server
died), the persons who answer questions, who cancel and who delete. Refuses to know: faults of the server; it only sees
that nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from msgspec import structs

from ninelives.core import events as e
from ninelives.core.admission import Asked
from ninelives.core.errors import ClientError, ServerError
from ninelives.core.spec import Spec
from ninelives.core.state import RunState
from ninelives.drill.checks import frames_of, position
from ninelives.engine.base import CutOff, Order, Ticket
from ninelives.journal.steering import Steer
from ninelives.journal.values import StoreUnavailable
from tests.sim.dice import Calling, Reading
from tests.sim.watch import PATIENCE_S, Track
from tests.sim.world import OWNER, Life, World

T = TypeVar("T")
TRIES = 12


class Unanswered(Exception):
    """The server died, was stopping or had no room: come back later."""


class Conflict(Exception):
    """The server says no, and rightly."""


async def ask(world: World, work_of: Any) -> Any:
    """One request to whatever server is there; Unanswered where none answers."""
    life = world.life
    if life is None or life.leaving:
        raise Unanswered
    return await answered(life, work_of(life))


async def answered(life: Life, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which dies with its life."""
    task = life.spawn(work)
    await asyncio.wait([task])
    if task.cancelled():
        raise Unanswered
    try:
        return task.result()
    except (CutOff, StoreUnavailable, ServerError) as error:
        raise Unanswered from error
    except ClientError as error:
        if error.code in ("too_many_runs", "conversation_response_not_completed"):
            raise Unanswered from error
        raise Conflict(error.code) from error


class Client:
    """One caller and its request."""

    def __init__(self, world: World, calling: Calling) -> None:
        self.world = world
        self.calling = calling
        self.run = ""
        self.known = asyncio.Event()
        self.gone = False
        self.whole = False
        """It was given a whole answer."""
        self._broke_at = 0.0
        self._away_s = 0.0
        self._admitted = False
        self._left_at = 0.0
        self._tries = 0

    async def live(self) -> None:
        """Call, and call again while nobody answers."""
        calling = self.calling
        await asyncio.sleep(calling.start_s)
        for _ in range(TRIES):
            try:
                await ask(self.world, self._call)
                break
            except Unanswered:
                if self._admitted:  # only once: a try that finds no server breaks nothing
                    self._broke_at, self._admitted = self._left_at or self.world.loop.now, False
                await asyncio.sleep(self._away_s or self.world.chance.choice((0.01, 0.5, 2.0)))
                self._away_s = 0.0
            except Conflict as conflict:
                self.world.watch.note(f"client {calling.name}: {conflict}")
                break
            if self.gone:
                break
        if calling.follows and self.run:
            await self._follow()

    def _order(self) -> Order:
        calling = self.calling
        same = "key" in calling.joins or calling.kept in ("hours", "delivery")
        text = calling.name if same else f"{calling.name}.{self._tries}"
        spec = Spec(
            dialect=calling.dialect,  # type: ignore[arg-type]
            model="m",
            input=({"role": "user", "content": text},),
            store=calling.kept == "stored",
            kept=calling.kept,
            chore=calling.chore,
            on_disconnect=calling.on_disconnect,
        )
        order = order_of(spec, text, calling.joins, int(calling.resend_s * 1000))
        counted = self._tries > 1 and self.world.plan.replicas > 1  # among peers it is an SDK: it counts its tries
        return structs.replace(order, asked=structs.replace(order.asked, counted=counted))

    async def _call(self, life: Life) -> None:
        self._tries += 1
        self._admitted, self._left_at = False, 0.0
        ticket = await self._submitted(life, self._order())
        self._admitted = True
        if ticket is None:
            return
        run = ticket.run
        if self.run and self.run != run:
            self._must_be(run)
        self.run = run
        self.known.set()
        if self.calling.kept != "stored":
            await self._unstored(life, ticket)
            return
        readers = [life.watch_run(ticket, reading, self._after(reading)) for reading in self.calling.readers]
        if self.calling.waits:
            await self._wait(life, ticket)
        for reader in readers:
            await asyncio.wait([reader.task])

    def _must_be(self, run: str) -> None:
        """Another run than before: may that be?"""
        watch, before = self.world.watch, self.world.watch.tracks.get(self.run)
        if "key" in self.calling.joins and not self._deleted(self.run):
            watch.wrong("key", run, f"the key gave {self.run} before")
        if self.calling.kept not in ("hours", "delivery") or before is None or before.gone:
            return
        void = before.state.ended and before.state.status in ("failed", "cancelled")
        late = self.world.loop.now - self._broke_at >= self.calling.resend_s - 0.5
        # The time begins before a zombie's callers know, and at a start whose store then answers nobody.
        late |= any(fault.kind in ("zombie", "broken") for fault in self.world.plan.faults)
        if not (void or late or before.delivered_at or self.whole):
            watch.wrong("key", run, f"the same request was sent again in time, and {self.run} was not joined")

    def _deleted(self, run: str) -> bool:
        track = self.world.watch.tracks.get(run)
        return track is not None and track.deleted

    def _after(self, reading: Reading) -> int:
        """Who comes back reads on from something that was there to be seen."""
        track = self.world.watch.tracks[self.run]
        if self._tries == 1 or reading.dialect == "chat" or self.world.chance.random() < 0.5:
            return -1
        frames = frames_of(bytes(track.renderings[reading.dialect].data))
        places = [place for frame in frames if (place := position(reading.dialect, frame)) is not None]
        return self.world.chance.choice(places) if places else -1

    async def _submitted(self, life: Life, order: Order) -> Ticket | None:
        """Its ticket; None where the caller is gone before it heard of one."""
        task = life.spawn(life.engine.submit(order))
        if self.calling.gone_after and self._tries == 1:
            for _ in range(self.calling.gone_after):
                await asyncio.sleep(0)
            if not task.done():
                self.world.watch.note(f"client {self.calling.name} is gone in the middle of its request")
                self.world.watch.counts["gone_in_submit"] += 1
                self.gone = True
                task.cancel()
                await asyncio.wait([task])
                return None
        return await task

    async def _wait(self, life: Life, ticket: Ticket) -> None:
        run = ticket.run
        state = await life.engine.wait(OWNER, run)
        while state is not None and not state.ended and state.facts.asked is not None:
            state = await life.engine.wait(OWNER, run, state.facts.asked.code)
        self.whole = True
        await life.engine.close(OWNER, ticket, whole=True)
        final(self.world, run, state)

    async def _unstored(self, life: Life, ticket: Ticket) -> None:
        """A run that is not stored has one caller: it reads, or it waits for the body. A caller whose stream breaks
        asks again; one who leaves may do so too."""
        if not self.calling.readers:
            if self.calling.kept != "memory":
                return await self._wait(life, ticket)
            state = await life.engine.wait(OWNER, ticket.run)
            await life.engine.close(OWNER, ticket, whole=True)
            if state is None:
                self.world.watch.wrong("client", ticket.run, "its caller waited, and it was gone")
            return None
        reading = self.calling.readers[0]
        reader = life.watch_run(ticket, reading if self._tries == 1 else replace(reading, leaves_after=0))
        await asyncio.wait([reader.task])
        self.whole, self._left_at = reader.end == "streamended", reader.ended_at
        if self.calling.kept == "memory" or self.whole:
            return None
        if reader.end == "left" and self.calling.returns_s:
            self._away_s = self.calling.returns_s
        elif reader.end not in ("cut", "restarted"):
            return None
        raise Unanswered

    async def _follow(self) -> None:
        """The next turn, by the chain."""
        track = self.world.watch.tracks.get(self.run)
        if track is None or track.kept != "stored":
            return
        text = f"next.{self.run}"
        spec = Spec(dialect="responses", model="m", input=({"role": "user", "content": text},))
        order = order_of(spec, text, {"previous": self.run})
        for _ in range(TRIES):
            try:
                await ask(self.world, lambda life: self._next(life, order))
                return
            except Unanswered:
                await asyncio.sleep(1.0)
            except Conflict:
                return

    async def _next(self, life: Life, order: Order) -> None:
        ticket = await life.engine.submit(order)
        await life.engine.wait(OWNER, ticket.run)
        await life.engine.close(OWNER, ticket, whole=True)


def order_of(spec: Spec, text: str, joins: dict[str, str], resend_ms: int = 0) -> Order:
    """A request; `joins` says what it joins (key, previous, conversation, session)."""
    joined: dict[str, Any] = dict(joins)
    if spec.kept in ("hours", "delivery"):
        joined.update(match=f"match {text}", credential="key", resend_ms=resend_ms)
    asked = Asked(
        owner=OWNER, fingerprint=f"of {text} {sorted(joins)}", derived_session="derived", kept=spec.kept, **joined
    )
    return Order(owner=OWNER, spec=spec, asked=asked)


def final(world: World, run: str, state: RunState | None) -> None:
    """Somebody was told that a run has ended so: that is final."""
    track = world.watch.tracks.get(run)
    if track is None or (state is None and track.gone):
        return
    if state is None:
        world.watch.wrong("client", run, "it was not found, and nobody deleted it")
    elif state.ended and (not track.state.ended or track.state.seq != state.seq):
        world.watch.wrong("end", run, f"told as {state.status} at {state.seq}, committed {track.state.status}")


async def cancels(world: World, client: Client, after_s: float) -> None:
    """Somebody stops a run."""
    run = await _begun(client, after_s)
    if run:
        await cancels_now(world, run)


async def cancels_now(world: World, run: str) -> None:
    """Somebody stops a run at once."""
    world.watch.counts["cancels"] += 1
    world.watch.note(f"cancel {run[-4:]}")
    try:
        state = await ask(world, lambda life: life.engine.cancel(OWNER, run))
    except (Unanswered, Conflict):
        return
    track = world.watch.tracks.get(run)
    if state is not None and track is not None:
        if state.ended:
            final(world, run, state)
        elif not world.watch.trouble() and not track.gone and track.stored:
            world.watch.wrong("cancel", run, f"not ended after 10 s: {track.state.phase.name}")


async def steers(world: World, client: Client, moments: list[float]) -> None:
    """Somebody writes to a run while it works, and sends each steer again until it is answered."""
    if not (run := await _begun(client, 0.0)):
        return
    for n, after_s in enumerate(moments):
        await asyncio.sleep(after_s)
        text = f"steer.{run}.{n}"
        steer = Steer(id=text, messages=({"role": "user", "content": text},))
        for _ in range(TRIES):
            world.watch.steers.setdefault(run, {}).setdefault(text, False)
            try:
                await ask(world, lambda life, steer=steer: life.engine.steer(OWNER, run, steer))
            except Unanswered:
                await asyncio.sleep(0.5)
                continue
            except Conflict:
                return  # it has ended
            world.watch.counts["steers"] += 1
            world.watch.steers[run][text] = True
            world.watch.note(f"steer {run[-4:]} {n}")
            break


async def deletes(world: World, client: Client, after_s: float) -> None:
    """Somebody deletes a run."""
    run = await _begun(client, after_s)
    if not run:
        return
    world.watch.counts["deletes"] += 1
    world.watch.note(f"delete {run[-4:]}")
    asked = world._life
    try:
        gone = await ask(world, lambda life: life.engine.delete(OWNER, run))
        if world.plan.replicas > 1 or world._life is not asked:  # its holder, or heir, may hear of it a moment later
            await asyncio.sleep(PATIENCE_S)
        found = await ask(world, lambda life: life.engine.look(OWNER, run)) if gone else None
    except (Unanswered, Conflict):
        return
    if found is not None:
        world.watch.wrong("deleted", run, f"it is still shown as {found.status}")


async def _begun(client: Client, after_s: float) -> str:
    """The client's run, a while after it was told; empty where it never was."""
    try:
        async with asyncio.timeout(30.0):
            await client.known.wait()
    except TimeoutError:
        return ""
    await asyncio.sleep(after_s)
    return client.run


async def answers(world: World, track: Track, question: e.ApprovalRequested) -> None:
    """A person answers a question, late, twice or never."""
    chance = world.chance
    if chance.random() < 0.2:
        return
    world.watch.counts["answers"] += 1
    await asyncio.sleep(chance.choice((0.0, 0.01, 1.0, 4.0)))
    people = [_answer(world, track.run, question, f"person {n}") for n in range(chance.choice((1, 1, 2)))]
    given = await asyncio.gather(*people)
    if sum(given) > 1:
        world.watch.wrong("client", track.run, "two answers to one question were taken")


async def _answer(world: World, run: str, asked: e.ApprovalRequested, who: str) -> bool:
    choice = world.chance.choice(("once", *asked.takes()))
    for _ in range(TRIES):
        try:
            return bool(await ask(world, lambda life: _approve(life, run, asked.code, choice, who)))
        except Unanswered:
            await asyncio.sleep(0.5)
        except Conflict:
            return False
    return False


async def _approve(life: Life, run: str, code: str, choice: Any, who: str) -> bool:
    state = await life.engine.look(OWNER, run)
    if state is None or state.facts.asked is None or state.facts.asked.code != code:
        return False
    await life.engine.approve(OWNER, state, choice, who)
    life.world.watch.note(f"answer {run[-4:]} {choice} by {who}")
    return True
