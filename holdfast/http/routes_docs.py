"""The API's description over HTTP (A4: open, they hold no data). Owns: /openapi.json and /docs, made once from the
routes of the application that is asked. Refuses to know: what is in them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.http.describe import Operation, described
from holdfast.http.docs_page import SECURITY, page
from holdfast.http.openapi import Doc, document


class OpenApi(msgspec.Struct):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, object]
    paths: dict[str, object]
    components: dict[str, object]


class DocsRoutes:
    """/openapi.json and /docs, and / which leads there."""

    def __init__(self) -> None:
        self._document: Doc | None = None

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/", self.front, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
            Route("/docs", self.docs, methods=["GET"]),
        ]

    def _made(self, request: Request) -> Doc:
        if self._document is None:
            self._document = document(request.app.routes)
        return self._document

    @described(Operation(tag="Server", summary="Where a browser begins", answers={307: None}, open=True))
    async def front(self, request: Request) -> Response:
        """GET /: the address that a start prints, opened by a person."""
        return RedirectResponse("/docs")

    @described(Operation(tag="Server", summary="This document", answers={200: OpenApi}, open=True))
    async def openapi(self, request: Request) -> Response:
        """GET the document."""
        return Response(msgspec.json.encode(self._made(request)), 200, None, "application/json")

    @described(
        Operation(tag="Server", summary="This document as a page", answers={200: None}, media="text/html", open=True)
    )
    async def docs(self, request: Request) -> Response:
        """GET the page: no script, nothing from elsewhere."""
        return Response(page(self._made(request)), 200, {"content-security-policy": SECURITY}, "text/html")
