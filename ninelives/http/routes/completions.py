"""Completions, the legacy API, over HTTP. Owns: its route. Refuses to know: what a piece looks like."""

from __future__ import annotations

from ninelives.core.errors import NinelivesError
from ninelives.core.state import RunState
from ninelives.dialects.asking import Context
from ninelives.dialects.completions import body, parse, shapes
from ninelives.dialects.parsed import ParsedRequest
from ninelives.dialects.shared import refusal
from ninelives.http.describe.operations import CREATING, Endpoint, Operation
from ninelives.http.routes.base import RunRoutes


class CompletionsRoutes(RunRoutes):
    """/v1/completions. This API has no retrieval: runs are watched on /v1/runs, by their cmpl- id too."""

    base = "/v1/completions"
    noun = "completion"
    eager = False

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("POST", "", self.create, CREATE)]

    async def parse(self, raw: bytes, context: Context) -> ParsedRequest:
        """See RunRoutes.parse."""
        return await self.parts.aside.run(len(raw), parse.parse, raw, context, self.parts.max_parts)

    def body(self, state: RunState, metadata: dict[str, str] | None) -> shapes.TextCompletion:
        """See RunRoutes.body: a text completion shows no metadata."""
        return body.body(state)

    def refusal(self, state: RunState) -> NinelivesError | None:
        """See RunRoutes.refusal."""
        return refusal(state)


CREATE = Operation(
    summary="Create a text completion (the legacy API)",
    doc="A chat with the prompt as its one message.",
    body=parse.CompletionRequest,
    required=("prompt",),
    params=CREATING,
    answers={200: shapes.TextCompletion},
    stream="text_completion objects with pieces of text, then [DONE].",
    errors=(404, 409, 429, 502, 504),
    example={"model": "hermes-agent", "prompt": "Say hello."},
)
