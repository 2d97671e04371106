"""The description of the API over HTTP. Owns: /openapi.json and /docs, made once from the routes of the application.
They need no key: they hold no data (A4). Refuses to know: what is in them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ninelives.http.describe.docs_page import SECURITY, page
from ninelives.http.describe.openapi import Doc, document
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.routes.base import Routes


class OpenApi(msgspec.Struct):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, object]
    paths: dict[str, object]
    components: dict[str, object]


class DocsRoutes(Routes):
    """/openapi.json and /docs."""

    tag = "Server"

    def __init__(self, about: Mapping[str, str]) -> None:
        """`about` has a sentence for some of the tags."""
        self._about = about
        self._document: Doc | None = None

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "/openapi.json", self.openapi, OPENAPI),
            Endpoint("GET", "/docs", self.docs, DOCS),
        ]

    def _made(self, request: Request) -> Doc:
        if self._document is None:
            self._document = document(request.app.routes, self._about)
        return self._document

    async def openapi(self, request: Request) -> Response:
        """GET the document."""
        return Response(msgspec.json.encode(self._made(request)), 200, None, "application/json")

    async def docs(self, request: Request) -> Response:
        """GET the page: no script, nothing from elsewhere."""
        return Response(page(self._made(request)), 200, {"content-security-policy": SECURITY}, "text/html")


OPENAPI = Operation(summary="This document", answers={200: OpenApi}, open=True)
DOCS = Operation(summary="This document as a page", answers={200: None}, media="text/html", open=True)
