"""The web page over HTTP. Owns: `/` and `/static/`, the headers that keep the page closed, and reading its files once.
They need no key: they hold no data, and the page fetches all of it with the key of its reader (A4). Refuses to know:
what the page shows (ninelives/web)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import not_found
from ninelives.http.describe.operations import Endpoint, Operation
from ninelives.http.routes.base import Routes

STATIC = "/static/"
FIRST = "index.html"
MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Scripts and styles come from /static/ only, none is inline, and no text can become markup (Trusted Types)."""


@cache
def web_files() -> dict[str, bytes]:
    """Every file of the page by its name. Some 45 KB, read at the first request (F3)."""
    found = files("ninelives").joinpath("web").iterdir()
    return {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in MEDIA}


class WebRoutes(Routes):
    """/ and the files that it loads."""

    tag = "Server"

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [
            Endpoint("GET", "/", self.page, PAGE),
            Endpoint("GET", STATIC + "{id}", self.file, FILE),
        ]

    async def page(self, request: Request) -> Response:
        """GET /: the address that the server prints at its start."""
        return _answer(FIRST)

    async def file(self, request: Request) -> Response:
        """GET a file of the page."""
        name = request.path_params["id"]
        if name not in web_files():
            raise not_found("file", name)
        return _answer(name)


def _answer(name: str) -> Response:
    return Response(web_files()[name], 200, HEADERS, MEDIA[name.rpartition(".")[2]])


PAGE = Operation(summary="The web page", answers={200: None}, media="text/html", open=True)
FILE = Operation(
    summary="A file of the web page",
    answers={200: None},
    media="text/javascript",
    errors=(404,),
    open=True,
)
