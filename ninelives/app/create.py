"""The server as an ASGI application, for programs that bring their own HTTP server. Owns: create_app() and the
application that builds itself when its lifespan starts. Refuses to know: which HTTP server runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from socket import gethostname

from starlette.types import ASGIApp, Receive, Scope, Send

from ninelives.app.build import BuiltServer, build_server
from ninelives.app.errors import StartError
from ninelives.app.extensions import Extensions
from ninelives.app.settings import LoadedSettings, Settings, load_given
from ninelives.app.store import ProcessRole
from ninelives.core.errors import ServerError
from ninelives.engine.engine import Engine
from ninelives.http.errors import error_response
from ninelives.models.base import Model
from ninelives.observe.log import Log, UtcTimes


def create_app(
    settings: Settings | None = None,
    *,
    tools: Sequence[object] = (),
    agents: Mapping[str, object] | None = None,
    model: Model | None = None,
) -> ServerApp:
    """The server as an ASGI application. Raises ConfigError.

    `settings` default to those of the environment and the configuration file. `tools` are functions with @tool or Tool
    objects. `agents` (docs/own-agent.md) are served under their names, beside the default profile. `model` replaces the
    configured model of the default profile. The store is opened when the lifespan starts, and closed when it ends."""
    return ServerApp(load_given(settings), Extensions(tuple(tools), dict(agents or {}), model))


class ServerApp:
    """An ASGI application whose lifespan builds, starts and stops the server."""

    def __init__(self, loaded: LoadedSettings, extensions: Extensions) -> None:
        self._loaded = loaded
        self._extensions = extensions
        self._app: ASGIApp | None = None
        self._engine: Engine | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the lifespan, or answer a request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif self._app is None:
            raise RuntimeError("The server is not running. Let your HTTP server run the lifespan, or use running().")
        elif self._engine is not None and self._engine.failed:  # nothing would be stored any more
            await _failed_app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BuiltServer]:
        """The server runs inside this context. For programs that do not use the lifespan. Raises StartError."""
        log = Log(UtcTimes(), json=True)
        name = self._loaded.settings.server.replica or gethostname()
        built = await build_server(self._loaded, log, ProcessRole(name=name), self._extensions)
        if built.key_is_new:
            log.info("key_made", file=str(self._loaded.settings.server.data_path / "key"))
        self._app = built.assembled.app
        self._engine = built.assembled.engine
        try:
            yield built
        finally:
            self._app = self._engine = None
            await built.assembled.engine.drain(self._loaded.settings.limits.drain_s)
            await built.assembled.stop()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with self.running():
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except StartError as error:
            await send({"type": "lifespan.startup.failed", "message": f"ninelives: {error}"})
            return
        await send({"type": "lifespan.shutdown.complete"})


async def _failed_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers for a server whose engine failed."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1011})
        return
    words = "The server failed and must be restarted. Its log says why."
    status, headers, body = error_response(ServerError("engine_failed", words, retry_after=5))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
