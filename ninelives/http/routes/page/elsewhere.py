"""The health of servers elsewhere, for the web page. Owns: /api/elsewhere: which addresses are asked, the bounds, and
which fields of an answer are shown. Refuses to know: how a public address is told from a private one.

The policy of the page lets it talk to its own server only, so this server asks, for admin keys alone. It is no proxy:
it sends GET /health/detailed, then /health, without a key and without following redirects, and shows a few known fields
of the answer. A private address is asked only where `server.elsewhere` names that server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ninelives.core.errors import AgentError, ClientError
from ninelives.dialects.inspector import shapes
from ninelives.http import answering
from ninelives.http.answering import RouteParts
from ninelives.http.describe.operations import Endpoint, Operation, Param
from ninelives.http.describe.shapes import Listing
from ninelives.http.routes.base import Routes
from ninelives.tools.base import ToolRefused
from ninelives.tools.builtin.web import Resolve, Web, WebPage

SECONDS = 5.0
PATHS = ("/health/detailed", "/health")
MOST_AT_ONCE = 4


class ElsewhereRoutes(Routes):
    """/api/elsewhere."""

    tag = "Web page"
    base = "/api/elsewhere"

    def __init__(self, parts: RouteParts, resolve: Resolve | None = None) -> None:
        self._named = {origin_of(url): url for url in parts.elsewhere}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ninelives-names")
        self._public, self._any = Web(resolve or self._system), Web(resolve or self._system, any_address=True)
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    def endpoints(self) -> list[Endpoint]:
        """See Routes.endpoints."""
        return [Endpoint("GET", "", self.list, LIST), Endpoint("GET", "/health", self.health, HEALTH)]

    async def list(self, request: Request) -> Response:
        """GET the servers that the configuration names."""
        return answering.answer(Listing("list", list(self._named.values())))

    async def health(self, request: Request) -> Response:
        """GET the health of one server."""
        url = request.query_params.get("url", "")
        origin = origin_of(url)
        if not origin:
            message = "url must be the address of a server, such as https://agents.example.org."
            raise ClientError("invalid_value", message, param="url")
        web = self._any if origin in self._named else self._public
        async with self._places:
            try:
                return answering.answer(await _health(web, origin))
            except ToolRefused as refused:
                raise AgentError("not_reached", _words(str(refused), origin), status=502) from refused

    async def _system(self, host: str, port: int) -> Sequence[str]:
        look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._pool, look)
        return [str(address[0]) for *_, address in found]


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, whatever path of a server it names. Empty where it is none."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


async def _health(web: Web, origin: str) -> shapes.ServerElsewhere:
    """The detailed health, else the plain one."""
    page = await web.fetch(origin + PATHS[0], SECONDS, redirects=0)
    if page.status not in (200, 503):
        page = await web.fetch(origin + PATHS[1], SECONDS, redirects=0)
    return _read(page, origin)


def _read(page: WebPage, origin: str) -> shapes.ServerElsewhere:
    try:
        found = msgspec.json.decode(page.body, type=shapes.HealthElsewhere)
    except msgspec.MsgspecError as error:
        raise ToolRefused(f"{origin} answers, but not with the health of a server.") from error
    return shapes.ServerElsewhere(url=origin, health=found)


def _words(refused: str, origin: str) -> str:
    """The reason, with what to do about a private address."""
    private = "Only the public web can be fetched." in refused
    remedy = f"To ask it, name it in the configuration: server.elsewhere = [{origin!r}]."
    return refused.replace("Only the public web can be fetched.", remedy) if private else refused


LIST = Operation(
    summary="The servers elsewhere that the configuration names",
    doc="`server.elsewhere`. Only an admin key may ask.",
    answers={200: Listing[str]},
)
HEALTH = Operation(
    summary="The health of a server elsewhere",
    doc="Asks GET /health/detailed of that server, then /health, without a key and without redirects, for at most "
    f"{SECONDS:g} seconds each. A few known fields of its answer are shown. A server with a private address is asked "
    "only where `server.elsewhere` names it. Only an admin key may ask.",
    params=(Param("url", "The address of the server, with any path."),),
    answers={200: shapes.ServerElsewhere},
)
