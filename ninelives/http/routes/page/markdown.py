"""Markdown for the web page. Owns: /api/markdown, its bounds, and the thread that renders long texts. Refuses to know:
what a text becomes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import ClientError
from ninelives.dialects import fields
from ninelives.dialects.inspector import shapes
from ninelives.http import answering
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.routes.base import Routes

MOST_TEXTS = 100
MOST_CHARS = 262_144
LONG = 2_000
"""Longer texts are rendered in a thread: 2,000 characters take about 2 ms."""


class MarkdownRoutes(Routes):
    """/api/markdown."""

    tag = "Web page"

    def __init__(self, parts: RouteParts) -> None:
        self._parts = parts
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ninelives-markdown")

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("POST", "/api/markdown", self.render, RENDER)]

    async def render(self, request: Request) -> Response:
        """POST texts: each as a tree of elements."""
        given = fields.decode(await answering.body_of(request, self._parts), shapes.MarkdownTexts)
        size = sum(map(len, given.texts))
        if len(given.texts) > MOST_TEXTS or size > MOST_CHARS:
            message = f"Send at most {MOST_TEXTS} texts with {MOST_CHARS:,} characters in all."
            raise ClientError("invalid_value", message, param="texts")
        if size <= LONG:
            return answering.answer(shapes.MarkdownTrees(_trees(given.texts)))
        work = partial(_trees, given.texts)
        return answering.answer(
            shapes.MarkdownTrees(await asyncio.get_running_loop().run_in_executor(self._pool, work))
        )


def _trees(texts: list[str]) -> list[list[object]]:
    from ninelives.dialects.inspector.markdown import tree  # 20 ms to import, and most servers never need it

    return [tree(text) for text in texts]


RENDER = Operation(
    summary="Markdown as a tree of elements",
    doc="A node is a text, or [element, attributes, children]. HTML in a text stays text. Links lead to http, https "
    "and mailto only. Texts that are too long stay as they are.",
    body=shapes.MarkdownTexts,
    answers={200: shapes.MarkdownTrees},
    example={"texts": ["**Hello**"]},
)
