"""The eye that sees every commit, every byte that is told and every deed, and judges at once. Owns: a second account of
all runs (Track), kept from what the store committed alone, and the invariants that can be broken by a single step. What
can only be judged at the end is checks.py. Refuses to know: engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from ninelives.core import codec
from ninelives.core import events as e
from ninelives.core.errors import ClientError, Damaged, IllegalEvent
from ninelives.core.state import RunState, apply, start, waiting
from ninelives.dialects import DIALECTS
from ninelives.journal.values import Attached, Claim, Opened, Opening, Record, Signal, Slice, Verdict
from ninelives.models.scripted import text_of
from tests.sim.dice import EFFECTS

Kind = Literal[
    "numbers", "end", "told", "rerun", "stuck", "references", "body", "key", "cancel", "deleted", "logged", "reader",
    "client", "leak", "judge", "claim", "steer",
]  # fmt: skip
RENDERED = ("responses", "runs")
PATIENCE_S = 12.0
"""So long after a durable wish to stop (and the last start of a server, and the last trouble of the store) a run may
still do something."""


class Finding(NamedTuple):
    """One broken invariant."""

    kind: Kind
    run: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: run {self.run or '-'}: {self.text}"


class Home(Protocol):
    """A process."""

    dead: bool


class Rendering:
    """What a reader from zero must have been told, in one dialect, after what is committed."""

    def __init__(self, dialect: str) -> None:
        self._projection = DIALECTS[dialect].projection()
        self._view = self._projection.view0(-1)
        self.data = bytearray()

    def add(self, entry: e.Entry) -> None:
        """One more entry is committed."""
        self._view, frames = self._projection.step(self._view, entry)
        for frame in frames:
            self.data += frame


@dataclass
class Track:
    """A run, as the commits tell it."""

    run: str
    owner: str
    stored: bool
    key: str | None
    conversation: str | None
    state: RunState
    renderings: dict[str, Rendering]
    entries: list[e.Entry] = field(default_factory=list)
    started: set[str] = field(default_factory=set)
    deleted: bool = False
    match: str = ""
    kept: str = "stored"
    delivered_at: float = 0.0
    forgotten: bool = False
    cancel_at: float | None = None
    cancel_home: Home | None = None
    """The process whose memory alone holds the wish to stop."""
    abandoned: bool = False
    """It was claimed when the store knew that the process of its caller is dead, and nobody has asked for it since."""
    home: Home | None = None
    """The process that a run which is not stored lives and dies with."""

    @property
    def cancel_lost(self) -> bool:
        """Did the only memory of the wish to stop die?"""
        return self.cancel_home is not None and self.cancel_home.dead

    @property
    def gone(self) -> bool:
        """Was it deleted or forgotten?"""
        return self.deleted or self.forgotten

    @property
    def open(self) -> bool:
        """May something still come?"""
        return not self.gone and not self.state.ended and (self.home is None or not self.home.dead)


class Watch:
    """Sees all, forgets nothing."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.findings: list[Finding] = []
        self.tracks: dict[str, Track] = {}
        self.deeds: Counter[str] = Counter()
        self.late: list[str] = []
        self.calm_since = now()
        """The last time that a server started or the store was in trouble."""
        self.leased = False
        """Do processes know by a lease what is their own?"""
        self.counts: Counter[str] = Counter()
        self.steers: dict[str, dict[str, bool]] = {}
        """The steers that were sent to each run, in order: were they accepted?"""
        self.trace: list[str] | None = None
        self.accepted: Callable[[Track], None] = lambda track: None
        self.asked: Callable[[Track, e.ApprovalRequested], None] = lambda track, question: None

    def wrong(self, kind: Kind, run: str, text: str) -> None:
        """An invariant is broken."""
        finding = Finding(kind, run, text)
        self.note(f"!!! {finding}")
        if len(self.findings) < 30:
            self.findings.append(finding)

    def note(self, text: str) -> None:
        """For the trace."""
        if self.trace is not None:
            self.trace.append(f"{self._now() - 1000.0:9.3f} {text}")

    # commits

    def opened(self, opening: Opening, result: Opened | Attached, home: Home | None) -> None:
        """The store has opened a run, or found one by its key; `home` where it is not the durable store."""
        asked, stored = opening.asked, home is None
        if isinstance(result, Attached):
            track = self.tracks.get(result.run)
            if track is None or track.deleted or track.key != asked.key or track.match != asked.match:
                self.wrong("key", result.run, f"{asked.key or asked.match} attaches to a run that is not its own")
            elif result.again:
                self.joins(track)
            return
        talk = result.resolved.conversation if asked.kept == "stored" else None
        self._not_twice(asked.owner, asked.key, talk, result.run, stored)
        entries = [_entry(result.run, record) for record in result.records]
        first = entries[0]
        state = start(first)
        track = Track(
            result.run, asked.owner, stored, asked.key, talk, state, {name: Rendering(name) for name in RENDERED}
        )
        track.home, track.match, track.kept = home, asked.match, asked.kept
        self.tracks[result.run] = track
        self.counts["runs"] += 1
        self._take(track, first)
        for entry in entries[1:]:
            self._add(track, entry)
        self.accepted(track)

    def _not_twice(self, owner: str, key: str | None, talk: str | None, run: str, stored: bool) -> None:
        for other in self.tracks.values():
            if other.deleted or not other.stored or other.owner != owner or other.run == run:
                continue
            if stored and key is not None and other.key == key:
                self.wrong("key", run, f"the key {key} has the run {other.run} already")
            if talk is not None and other.conversation == talk and not other.state.ended:
                self.wrong("references", run, f"{other.run} is active in the conversation {talk}")

    def refused(self, opening: Opening, error: Exception) -> None:
        """The store did not open a run: was it right?"""
        if not isinstance(error, ClientError) or error.code != "conversation_response_not_completed":
            return
        if not any(track.open and track.conversation and track.stored for track in self.tracks.values()):
            self.wrong("references", "", f"refused ({error.message}), and no conversation has an active run")

    def appended(self, slices: Sequence[Slice], verdicts: Sequence[Verdict]) -> None:
        """The store has taken slices."""
        for part, verdict in zip(slices, verdicts, strict=True):
            track = self.tracks.get(part.run)
            if verdict is not Verdict.WRITTEN or track is None:
                continue
            if track.deleted:
                self.wrong("deleted", part.run, "written after it was deleted")
            if part.records and part.attempt != track.state.facts.attempt:
                self.wrong("claim", part.run, f"attempt {part.attempt} wrote after {track.state.facts.attempt} began")
            for record in part.records:
                self._add(track, _entry(part.run, record))
            if part.mark is not None and part.mark.ended and not track.state.ended:
                self.wrong("end", part.run, "marked as ended, without a terminal entry")
            if track.state.ended and (part.mark is None or not part.mark.ended):
                self.wrong("end", part.run, "ended, and not marked so")

    def claimed(self, claim: Claim | None) -> None:
        """The store has given a claim."""
        if claim is not None:
            track = self.tracks[claim.run]
            if track.deleted:
                self.wrong("deleted", claim.run, "claimed after it was deleted")
            self._add(track, _entry(claim.run, claim.record))

    def signalled(self, signal: Signal, taken: bool, home: Home | None = None) -> None:
        """A store has kept a wish: the durable one, or the memory of a life (`home`), with which it is gone."""
        track = self.tracks.get(signal.run)
        if taken and track is not None and signal.kind == "cancel":
            if track.cancel_at is None or track.cancel_lost:
                track.cancel_at, track.cancel_home = self._now(), home
            elif home is None:
                track.cancel_home = None

    def removed(self, run: str, gone: bool) -> None:
        """The store has hidden a run."""
        track = self.tracks.get(run)
        if gone and track is not None:
            if track.deleted:
                self.wrong("deleted", run, "deleted twice")
            track.deleted = True
            self.note(f"deleted {run[-4:]}")

    def joins(self, track: Track) -> None:
        """A caller that asks again gets this run."""
        self.counts["joined"] += 1
        self.note(f"joined {track.run[-4:]}")
        if track.delivered_at:
            self.wrong("key", track.run, "a delivered answer is given again")

    def delivered(self, runs: Sequence[str]) -> None:
        """The answers of these runs were handed over."""
        for run in runs:
            self.note(f"delivered {run[-4:]}")
            if (track := self.tracks.get(run)) is not None:
                track.delivered_at = self._now() if track.state.ended else 0.0

    def forgotten(self, runs: Sequence[str]) -> None:
        """The store has forgotten runs: was it right?"""
        for run in runs:
            track = self.tracks[run]
            self.counts["forgotten"] += 1
            self.note(f"forgotten {run[-4:]}")
            if track.kept == "stored" or not track.state.ended:
                self.wrong("deleted", run, f"it is forgotten, kept {track.kept}, {track.state.phase.name}")
            track.forgotten = True

    def _add(self, track: Track, entry: e.Entry) -> None:
        if track.state.ended:
            self.wrong("end", track.run, f"{type(entry.event).__name__} after the end")
            return
        if entry.seq != track.state.seq + 1:
            self.wrong("numbers", track.run, f"entry {entry.seq} follows {track.state.seq}")
            return
        try:
            track.state = apply(track.state, entry)
        except (IllegalEvent, Damaged) as error:
            self.wrong("numbers", track.run, f"entry {entry.seq} cannot be folded: {error}")
            return
        self._take(track, entry)

    def _take(self, track: Track, entry: e.Entry) -> None:
        self.counts["events"] += 1
        if self.trace is not None:
            name = type(entry.event).__name__
            self.note(f"commit {track.run[-4:]} #{entry.seq} a{entry.attempt} {name} {_short(entry.event)}")
        track.entries.append(entry)
        for rendering in track.renderings.values():
            rendering.add(entry)
        match entry.event:
            case e.ToolStarted(call=call):
                track.started.add(call.id)
                self._stops(track, f"{call.name} was started")
            case e.MessageCompleted():
                self._stops(track, "a message was completed")
            case e.RunCompleted():
                self._stops(track, "it completed")
            case e.ApprovalRequested() as question:
                self.asked(track, question)

    def _stops(self, track: Track, what: str) -> None:
        if track.cancel_at is None or track.cancel_lost:
            return
        late = self._now() - max(track.cancel_at, self.calm_since)
        if late > PATIENCE_S:
            self.wrong("cancel", track.run, f"{what} {late:.1f} s after a wish to stop was durable")

    # what leaves the process

    def heard(self, run: str, dialect: str, place: int, data: bytes) -> None:
        """A reader from zero has been told these bytes, after `place` others."""
        track = self.tracks.get(run)
        if track is None or dialect not in track.renderings:
            return
        expected = track.renderings[dialect].data[place : place + len(data)]
        if expected != data:
            at = next((n for n, (a, b) in enumerate(zip(expected, data, strict=False)) if a != b), len(expected))
            was, told = bytes(expected[at : at + 80]), data[at : at + 80]
            self.wrong("told", run, f"a {dialect} reader was told at byte {place + at} {told!r}; committed is {was!r}")

    def did(self, call: str, tool: str, astray: Callable[[Track], bool]) -> None:
        """A tool begins to act. `astray`: in a process that does not have the run; only one that cannot know (it has
        the store to itself, and was thought dead) may do that."""
        self.deeds[call] += 1
        track = next((track for track in self.tracks.values() if call.startswith(f"call_{track.run}")), None)
        fenced = track is not None and astray(track)
        self.note(f"deed {tool} {call[-12:]}{' in a zombie' if fenced else ''}")
        if track is None:
            return
        if fenced and self.leased and not track.deleted:
            self.wrong("claim", track.run, f"{call} is begun by a process that does not have the run")
        if self.misses_caller(track):
            self.wrong("claim", track.run, f"{call} is begun, and its caller has not come back (B6)")
        if call not in track.started:
            self.wrong("rerun", track.run, f"{call} is carried out before its start is committed")
        if call in track.state.facts.results and not fenced:
            self.late.append(call)
            self.wrong("rerun", track.run, f"{call} is carried out again: it was finished")
        asks = sum(1 for entry in track.entries if _is_yes(entry.event, call))
        if EFFECTS.get(tool) == "write" and self.deeds[call] > 1 + asks:
            self.wrong("rerun", track.run, f"the write {call} is carried out {self.deeds[call]} times")

    def misses_caller(self, track: Track) -> bool:
        """Does it wait for its caller, whose server died? A death is no leave: a run that another process drives then
        goes on, and so does one that is claimed before anybody can know of the death. One that a person was asked about
        goes on with the answer."""
        asked = any(isinstance(entry.event, e.ApprovalRequested) for entry in track.entries)
        return track.kept == "delivery" and track.abandoned and not asked

    def asking(self, text: str) -> list[Track]:
        """The runs whose last word of a user this is."""
        return [t for t in self.tracks.values() if text_of(t.state.facts.accepted.spec.input[-1]) == text]

    def trouble(self) -> bool:
        """Was there any, a short while ago?"""
        return self._now() - self.calm_since < PATIENCE_S

    def stands(self, track: Track, now_ms: int) -> str:
        """Why a run that has not ended may stand still; empty where it may not."""
        asked = track.state.facts.asked
        if waiting(track.state) and asked is not None and asked.expires_at > now_ms:
            return "a person is asked"
        return ""


def _is_yes(event: e.AnyEvent, call: str) -> bool:
    """A person who is asked about an unknown outcome may have a write repeated (on_unknown: ask)."""
    return isinstance(event, e.ApprovalGiven) and event.call_id == call and event.choice not in ("deny", "expired")


def _entry(run: str, record: Record) -> e.Entry:
    return e.Entry(run, record.seq, record.at, record.attempt, codec.decode(record.data))


def _short(event: e.AnyEvent) -> str:
    match event:
        case e.ToolStarted(call=call):
            return f"{call.name} {call.arguments}"
        case e.ToolFinished():
            return f"{event.call_id[-6:]} {event.outcome} {event.output[:40]!r}"
        case e.MessageCompleted():
            return f"{event.text[:30]!r} {[call.name for call in event.calls]}"
        case e.RunFailed():
            return f"{event.reason}: {event.message[:60]}"
        case e.TextDelta() | e.ReasoningDelta():
            return repr(event.text)
        case e.CallBegun(name=name):
            return name
        case e.AttemptStarted():
            return "clean" if event.clean else "unclean"
        case e.ApprovalGiven():
            return event.choice
        case _:
            return ""
