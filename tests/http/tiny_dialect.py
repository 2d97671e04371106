"""A dialect of another package, as small as one can be: plain text lines. tests/http/test_dialects.py installs it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ninelives.core import events as e
from ninelives.core.admission import Asked
from ninelives.core.ids import wire_id
from ninelives.core.spec import Spec, fingerprint
from ninelives.core.state import RunState
from ninelives.dialects import Dialect
from ninelives.dialects import fields as f
from ninelives.dialects.asking import Context
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import PROJECTION
from ninelives.dialects.sse import data_frame
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.routes import ServedDialect
from ninelives.http.routes.base import RunRoutes


class TinyRequest(Struct):
    """The whole request."""

    say: str
    stream: bool = False


class TinyAnswer(Struct):
    """The whole answer."""

    id: str
    said: str


class TinyView(Struct, frozen=True):
    """Where a reader stands."""

    after: int
    over: bool = False


class TinyProjection:
    """See engine.Projection. Positions are journal seqs."""

    name = "tiny"

    def view0(self, after: int) -> TinyView:
        return TinyView(after)

    def live(self, view: TinyView) -> tuple[TinyView, list[bytes]]:
        return replace(view, after=-1), []

    def step(self, view: TinyView, entry: e.Entry) -> tuple[TinyView, list[bytes]]:
        match entry.event:
            case e.TextDelta(text) if entry.seq > view.after:
                return view, [data_frame(text)]
            case e.RunCompleted() | e.RunFailed() | e.RunCancelled() | e.RunInterrupted():
                return view, [data_frame(None)]
            case _:
                return view, []


class TinyRoutes(RunRoutes):
    """/v1/tiny."""

    base = "/v1/tiny"
    noun = "tiny answer"
    deleted_object = "tiny.deleted"

    def endpoints(self) -> list[Endpoint]:
        shown = Operation(summary="Show it", answers={200: TinyAnswer})
        return [
            Endpoint("POST", "", self.create, Operation(summary="Say it", body=TinyRequest, answers={200: TinyAnswer})),
            Endpoint("GET", "/{id}", self.retrieve, shown),
            Endpoint("DELETE", "/{id}", self.delete, Operation(summary="Delete it", answers={200: None})),
        ]

    async def parse(self, raw: bytes, context: Context) -> ParsedRequest:
        request = f.decode(raw, TinyRequest)
        turn = ({"role": "user", "content": request.say},)
        spec = Spec(dialect="tiny", model=context.profile.name, input=turn, projection=PROJECTION)
        asked = Asked(owner=context.owner, fingerprint=fingerprint("tiny", {"say": request.say}, None))
        return ParsedRequest(spec, asked, request.stream)

    def body(self, state: RunState, metadata: dict[str, str] | None) -> TinyAnswer:
        return TinyAnswer(wire_id("tiny", state.facts.run), "".join(said.text for said in state.facts.messages))


TINY = ServedDialect(
    Dialect(
        name="tiny",
        tag="Tiny",
        about="Plain text lines.",
        prefix="tiny_",
        renders="tests.http.tiny_dialect:TinyProjection",
    ),
    TinyRoutes,
)
COLLIDES = ServedDialect(Dialect(name="other", tag="Other", about="", prefix="resp_"), TinyRoutes)
TWICE = ServedDialect(Dialect(name="chat", tag="Chat", about=""), TinyRoutes)
