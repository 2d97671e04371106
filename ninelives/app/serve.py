"""A server in the foreground. Owns: the order of a start and a stop (bind, answer /health, build, serve, drain), the
tuning of the process, and the lines that a start prints. Heavy modules are imported after the socket is bound, in a
thread, so probes are answered early (F3). Refuses to know: the command line."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from shutil import which
from socket import gethostname
from typing import TYPE_CHECKING

from ninelives import __version__
from ninelives.app.address import UNIX, address_of, publish_address, withdraw_address
from ninelives.app.descriptors import connections_within, raise_limit
from ninelives.app.environment import hide_environment
from ninelives.app.errors import StartError
from ninelives.app.known_secrets import known_secrets
from ninelives.app.settings import SECRET_ENV, LoadedSettings, Settings, load_given, without_password
from ninelives.core.hosts import is_loopback
from ninelives.observe.log import printable

if TYPE_CHECKING:
    import socket

    from ninelives.app.build import BuiltServer
    from ninelives.app.extensions import Extensions
    from ninelives.engine.engine import Engine
    from ninelives.http.edge.connection import ConnectionLimits
    from ninelives.http.edge.server import Serving
    from ninelives.http.edge.tls import Certificate
    from ninelives.journal.values import Gone
    from ninelives.models.base import Model
    from ninelives.observe.log import Log
    from ninelives.supervisor.calls import SupervisedConnections
    from ninelives.supervisor.custody import ClientCustody
    from ninelives.supervisor.reload import CodeWatch
    from ninelives.supervisor.supervised import Supervised

_OOM_SCORE = "-500"
FRAME_SLACK = 1024 * 1024
"""A websocket frame that exceeds the limit by less than this gets an error. A larger one closes its connection."""
REBUILD_S = 2.0
"""How long a restarted server leaves new connections in the backlog. Then it accepts them, and answers probes."""


def serve(
    settings: Settings | None = None,
    *,
    tools: Sequence[object] = (),
    agents: Mapping[str, object] | None = None,
    model: Model | None = None,
) -> int:
    """Run the server in the foreground, as `ninelives serve` does. The arguments are those of create_app().

    Call it in the main thread: SIGTERM and SIGINT drain and stop the server. Returns the exit code. Raises
    StartError."""
    from ninelives.app.extensions import Extensions

    loaded = load_given(settings)
    return Foreground(loaded, print_line, extensions=Extensions(tuple(tools), dict(agents or {}), model)).run()


def print_line(line: str) -> None:
    """Write one line to stdout."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Foreground:
    """One server in this process. `say` prints a line. `on_ready` gets the server's URL once it answers requests."""

    def __init__(
        self,
        loaded: LoadedSettings,
        say: Callable[[str], None],
        *,
        serves: bool = True,
        extensions: Extensions | None = None,
        on_ready: Callable[[str], object] | None = None,
        reload: bool = False,
    ) -> None:
        self._supervised: Supervised | None = None
        self._reload = reload
        self._connections: SupervisedConnections | None = None
        self._loaded = loaded
        self._say = say
        self._serves = serves
        self._extensions = extensions
        self._on_ready = on_ready

    def run(self) -> int:
        """Serve until a signal. Returns the exit code. Raises StartError."""
        sock = self._bind()
        be_killed_last()
        return self._serve(sock)

    def run_supervised(self, started: Supervised | None) -> int:
        """The same in a process that a supervisor restarts (docs/supervisor.md). `started` is the line to the
        supervisor that started this process; None makes one."""
        from ninelives.supervisor.supervised import supervise

        is_successor = started is not None
        self._supervised = started or supervise(self._bind(), spare=self._loaded.settings.server.spare)
        if is_successor:
            import_server()
        return self._serve(self._supervised.listener, is_successor=is_successor)

    def _serve(self, sock: socket.socket, *, is_successor: bool = False) -> int:
        from ninelives.observe.log import LibraryHandler, Log, UtcTimes

        _give_memory_back()
        _take_turns_often()
        settings, is_read = self._loaded.settings, sys.stderr.isatty()
        secrets = known_secrets(settings, os.environ)
        log = Log(UtcTimes(), json=not is_read, secrets=secrets, level=settings.log.level)
        logging.getLogger().addHandler(LibraryHandler(log))
        hide_environment(SECRET_ENV)
        try:
            self._load_own_code(is_successor=is_successor)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(self._run(sock, log))
        except StartError as error:
            raise type(error)(log.secrets.mask(str(error))) from error

    def _load_own_code(self, *, is_successor: bool) -> None:
        """Import the user's code before the event loop runs: a script may run its agent when it is imported. A spare,
        or the successor in a swap, waits here then; where it fails, the server of before goes on."""
        if is_successor or self._loaded.settings.own_agents:
            from ninelives.app.build import load_own_code

            load_own_code(self._loaded)
        if is_successor and self._supervised is not None:
            from ninelives.tools.entry_points import forget_entry_points

            self._supervised.wait()
            forget_entry_points()  # packages may have come and gone meanwhile

    def _bind(self) -> socket.socket:
        from ninelives.http.edge.server import listen, listen_unix

        server, limits = self._loaded.settings.server, self._loaded.settings.limits
        if server.uds:
            try:
                return listen_unix(server.uds)
            except OSError as error:
                raise StartError(
                    f"cannot listen on {server.uds}: {error.strerror}. Choose another with --uds."
                ) from error
        try:
            return listen(server.host, server.port, limits.keepalive_s * 2)
        except OSError as error:
            flag = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
            raise StartError(
                f"cannot listen on {server.host}:{server.port}: {error.strerror}. Choose another with {flag}."
            ) from error

    async def _run(self, sock: socket.socket, log: Log) -> int:
        """Answer probes at once, build the server, hand over to it, and serve."""
        from ninelives.http.edge.connection import connection_class
        from ninelives.http.edge.server import Serving
        from ninelives.http.edge.starting import StartingApp

        tls = self._tls()
        limits, shared = self._loaded.settings.limits, self._loaded.settings.store.shared
        draining: list[Engine] = []  # empty until the server is built

        async def drain() -> None:
            for engine in draining:
                self._say(stop_line(*engine.under_way(), limits.drain_s))
                await self._drain(engine, serving, custody)

        starting = StartingApp()
        longest_s, frame_bytes = limits.stop_s + 5.0, limits.body_bytes + FRAME_SLACK
        custody = self._custody(log)
        connection = connection_class(self._connection_limits(), custody)
        serving = Serving(starting, sock, drain, longest_s, connection, frame_bytes)
        serving.close_early(limits.notice_s)
        scheme = "http" if tls is None else "https"
        if tls is not None:
            serving.encrypt(tls.context)
        if self._supervised is not None:
            self._supervised.watch(serving)
        address = address_of(sock.getsockname(), scheme)
        name = self._loaded.settings.server.replica or f"{gethostname()}:{address.name}"
        building = asyncio.create_task(self._build(log, name, custody), name="building")
        if self._restarted:  # new connections wait in the socket: a request that was read would be lost by a crash now
            await asyncio.wait({building}, timeout=REBUILD_S)
        running = asyncio.create_task(serving.run(), name="serving")
        if shared:  # a build may wait for the database, and a signal must end that wait
            await asyncio.wait({building, running}, return_when=asyncio.FIRST_COMPLETED)
            if not building.done():
                building.cancel()
                await asyncio.gather(building, return_exceptions=True)
                await running
                return 0
        try:
            built = await building
        except StartError:
            running.cancel()
            raise
        draining.append(built.assembled.engine)
        starting.hand_over(built.assembled.app)
        await self._adopt(serving, built, custody, log)
        with self._published(address.local, log), _renewing(tls, log):
            return await self._until_stopped(serving, running, built, log, address.url, name)

    async def _drain(self, engine: Engine, serving: Serving, custody: ClientCustody | None) -> None:
        """Stop the work. Where a successor waits, it goes on with model calls and clients that are kept."""
        limits, shared, calls = self._loaded.settings.limits, self._loaded.settings.store.shared, self._connections
        if not serving.handed_on or (custody is None and calls is None):
            follows = shared and not serving.handed_on  # a successor listens only when this process has ended
            return await engine.drain(limits.drain_s, limits.notice_s or 0.0, follows=follows)
        if calls is not None:
            calls.leave()
        await engine.park(limits.drain_s, keeps_calls=calls is not None, keeps_clients=custody is not None)
        if custody is not None:
            custody.leave()
        engine.readers.cut()

    async def _adopt(self, serving: Serving, built: BuiltServer, custody: ClientCustody | None, log: Log) -> None:
        """Go on with the answers that the server before has left."""
        from ninelives.http.app import build_resume

        if custody is not None and (custody.left or custody.idle):
            await serving.adopt(custody.left, build_resume(built.assembled.app, built.assembled.parts, log))
            await serving.adopt_idle(custody.idle)

    def _custody(self, log: Log) -> ClientCustody | None:
        """What keeps the sockets of clients, where that is wanted and possible."""
        if self._supervised is None:
            return None
        server = self._loaded.settings.server
        if not self._supervised.keeps:
            if server.keep_clients or server.keep_calls:
                log.warning("supervisor_differs", note="stop and start the service: until then nothing is kept")
            return None
        custody = self._supervised.custody()
        why = self._why_not_kept(log) if server.keep_clients else "server.keep_clients is off"
        if why:
            custody.drop()
        return None if why else custody

    def _why_not_kept(self, log: Log) -> str:
        """Why clients cannot be kept, which is logged; empty where they can."""
        from ninelives.supervisor.kernel import why_not

        server = self._loaded.settings.server
        by_choice = "the server speaks TLS itself" if server.tls_cert else "it has a unix socket" if server.uds else ""
        why = by_choice or why_not()
        if why:
            expected = by_choice and self._loaded.origins["server.keep_clients"] == "default"
            say = log.info if expected else log.warning
            say("clients_not_kept", why=why, note="a killed server cuts its clients")
        return why

    def _tls(self) -> Certificate | None:
        from ninelives.http.edge.tls import Certificate, TlsError

        server = self._loaded.settings.server
        try:
            return Certificate(server.tls_cert, server.tls_key) if server.tls_cert else None
        except TlsError as error:
            raise StartError(str(error)) from error

    def _connection_limits(self) -> ConnectionLimits:
        from ninelives.http.edge.connection import ConnectionLimits

        limits = self._loaded.settings.limits
        return ConnectionLimits(
            connections=connections_within(raise_limit(), limits.connections, limits.concurrent_runs),
            idle_s=limits.idle_s,
            head_s=limits.head_s,
            head_bytes=limits.head_bytes,
            unread_bytes=limits.unread_bytes,
        )

    @contextmanager
    def _published(self, url: str, log: Log) -> Iterator[None]:
        """The data directory names this server while it runs, so that commands find it."""
        data = self._loaded.settings.server.data_path
        try:
            if self._serves:
                publish_address(data, url)
        except OSError as error:
            log.warning("address_not_published", why=str(error), note="commands need --url to find this server")
        yield
        withdraw_address(data, url)

    async def _until_stopped(
        self, serving: Serving, running: asyncio.Task[None], built: BuiltServer, log: Log, url: str, name: str
    ) -> int:
        engine = built.assembled.engine
        watching = asyncio.create_task(self._stop_with(engine, serving), name="engine watch")
        if serving.stopping:  # a signal came during the build, when there was nothing to drain
            await engine.drain(self._loaded.settings.limits.drain_s)
        else:
            await self._announce(built, url, name, log)
            await asyncio.to_thread(import_module, "ninelives.observe.metrics")  # before somebody asks for them
        _collect_less(own_code=self._extensions is not None or bool(self._loaded.settings.own_agents))
        await running
        watching.cancel()
        await built.assembled.stop()
        log.info("stopped")
        return int(engine.failed)

    @property
    def _restarted(self) -> bool:
        return self._supervised is not None and self._supervised.restarts > 0

    async def _announce(self, built: BuiltServer, url: str, name: str, log: Log) -> None:
        """Say that the server answers requests: to the user once, to the supervisor each time."""
        if self._supervised is not None:
            status = self._loaded.settings.server.data_path / "supervisor"
            self._supervised.ready(status, built.assembled.engine.holder)
        watch = self._watch_code(log)
        if self._restarted:
            return
        await self._greet(built, url, name)
        if watch is not None:
            self._say(f"  reload    when a file changes in {', '.join(watch.folders())}")
        if self._on_ready is not None and not url.startswith(UNIX):
            self._on_ready(url)

    def _watch_code(self, log: Log) -> CodeWatch | None:
        """With --reload a change of the user's code asks the supervisor for a swap."""
        if not self._reload or self._supervised is None:
            return None
        from ninelives.supervisor.reload import CodeWatch

        supervised = self._supervised

        def changed(name: str) -> None:
            log.info("code_changed", file=name)
            supervised.ask_swap()

        watch = CodeWatch(changed, self._loaded.file)
        watch.start()
        return watch

    async def _stop_with(self, engine: Engine, serving: Serving) -> None:
        """An engine that failed as a whole takes the server with it."""
        await engine.ended.wait()
        if not serving.stopping:
            serving.stop()

    def _kept_calls(self, supervised: Supervised, log: Log) -> SupervisedConnections | None:
        """What keeps model calls, where that is wanted and possible."""
        from ninelives.supervisor.kernel import why_not

        connections, wanted = supervised.connections(), self._loaded.settings.server.keep_calls
        why = why_not() if wanted else "server.keep_calls is off"
        if wanted and why:
            log.warning("calls_not_kept", why=why, note="a killed server drops what its models were writing")
        if why:
            connections.drop_left()
        return None if why else connections

    async def _build(self, log: Log, name: str, custody: ClientCustody | None) -> BuiltServer:
        await asyncio.to_thread(import_module, "ninelives.app.build")
        from ninelives.app.build import build_server
        from ninelives.app.extensions import NO_EXTENSIONS
        from ninelives.app.store import ProcessRole

        if self._supervised is not None and self._supervised.keeps:
            self._connections = self._kept_calls(self._supervised, log)
        holder, before = token_hex(12), tuple[str, ...]()
        if self._supervised is not None:
            self._supervised.say_name(holder)
            before = self._supervised.before
        role = ProcessRole(self._serves, name, self._connections, _runs_of(custody), before, holder)
        return await build_server(self._loaded, log, role, self._extensions or NO_EXTENSIONS)

    async def _greet(self, built: BuiltServer, url: str, name: str) -> None:
        """What a start prints: all that a newcomer needs. Whether the upstream answers is known last."""
        from ninelives.models.diagnosis import upstream_state

        worker = f"ninelives {__version__} worker {name}, health on {url}/health"
        for line in self._about(built, url) if self._serves else [worker]:
            self._say(line)
        for line in self._state(built, await upstream_state(built.assembled.agents.models[0])):
            self._say(line)
        for line in self._invitation(built, url) if self._serves else ():
            self._say(line)

    def _about(self, built: BuiltServer, url: str) -> Iterator[str]:
        settings = self._loaded.settings
        model, key_file = settings.server.model_name, settings.server.data_path / "key"
        yield f"ninelives {__version__} listening on {url}"
        yield f"  model     {model}, answered by {built.model}"
        if settings.store.shared:
            yield f"  store     {without_password(settings.store.url)}"
        yield f"  data      {settings.server.data_path}"
        if built.key_is_new:
            yield f"  key       {built.key}   (new, stored in {key_file})"
        else:
            yield f"  key       {f'in {key_file}' if settings.server.key is None else 'the configured one'}"

    def _invitation(self, built: BuiltServer, url: str) -> Iterator[str]:
        """What to do next."""
        settings, unix = self._loaded.settings, url.startswith(UNIX)
        model, stored = settings.server.model_name, f"$(cat {settings.server.data_path / 'key'})"
        shown = built.key if built.key_is_new else stored if settings.server.key is None else "$API_SERVER_KEY"
        yield "Try it:"
        yield f"  {self._command()} chat"
        base = f"--unix-socket {url.removeprefix(UNIX)} http://localhost" if unix else url
        yield f'  curl -N {base}/v1/chat/completions -H "Authorization: Bearer {shown}" \\'
        yield "    -H 'Content-Type: application/json' \\"
        yield f'    -d \'{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}\''
        if unix:
            yield "  OpenAI clients need a proxy in front of the socket, or an HTTP client that can use it"
            return
        yield f"  OpenAI clients: base_url {url}/v1, the key above, model {model}"
        if not is_loopback(settings.server.host) and not settings.server.tls_cert:
            yield "  warning   the server can be reached from other machines: put TLS in front of it"

    def _command(self) -> str:
        """How a command of another terminal finds this server."""
        program = "ninelives" if which("ninelives") else sys.argv[0]
        if self._loaded.origins["server.data_dir"] == "default":
            return program
        return f"NINELIVES_SERVER_DATA_DIR={self._loaded.settings.server.data_path.absolute()} {program}"

    def _state(self, built: BuiltServer, upstream: str) -> Iterator[str]:
        """Whether the model answers, what tools may do, and whose configuration this is."""
        agents, file = built.assembled.agents, self._loaded.file
        config = f"config {printable(str(file.absolute()))}" if file else "no config file"
        yield f"  state     {upstream}; {agents.describe_rules()}; {config}"
        if "demo model" in built.model:
            yield "  note      this is a demo: name a real model with --model-url URL"
        for off in agents.tools_off()[:1]:
            yield f"  warning   {off['why']}"


@contextmanager
def _renewing(tls: Certificate | None, log: Log) -> Iterator[None]:
    """The server uses a renewed certificate while it runs."""
    renewing = asyncio.create_task(tls.keep_current(log), name="certificate") if tls is not None else None
    yield
    if renewing is not None:
        renewing.cancel()


def _runs_of(custody: ClientCustody | None) -> frozenset[Gone]:
    """The runs (owner, run) that clients wait for whom the server before has left."""
    from ninelives.http.edge.kept import KeptRequest

    kept = [KeptRequest.read(client.note) for client in (custody.left if custody is not None else ())]
    return frozenset((each.owner, each.run) for each in kept)


def stop_line(runs: int, in_tools: int, longest_s: float) -> str:
    """What a stop waits for."""
    if not runs:
        return "Stopping: no run works."
    work = f"{runs} run{'s' if runs > 1 else ''} ({in_tools} in a tool, {runs - in_tools} with the model)"
    return (
        f"Stopping: waiting at most {longest_s:g} s for {work} to reach a safe point. Stored runs go on after the next "
        "start. Ctrl-C again ends at once; nothing that is stored is lost."
    )


def import_server() -> None:
    """Import what a server needs, before it is needed."""
    for module in ("ninelives.app.build", "ninelives.app.extensions", "ninelives.http.edge.server", "uvloop"):
        with suppress(ImportError):
            import_module(module)


def _give_memory_back() -> None:
    """Fix the thresholds of glibc's allocator, so that freed buffers go back to the system. After a run of 20 MB the
    idle process then has 121 MB instead of 202. Other C libraries have no such switch and need none. Buffers up to a
    megabyte stay: fresh pages cost a chat with 2,000 earlier messages a third of the time to its first delta. What
    larger requests leave on the heap is given back by http/body.py (A8)."""
    import ctypes

    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 1024 * 1024)
        mallopt(trim_threshold, 2 * 1024 * 1024)


def _take_turns_often() -> None:
    """Threads ask for the interpreter after 1 ms instead of 5. A request of 300 KB passes between threads six times,
    and its first delta came after 6.6 ms instead of 4.6 where another thread was busy."""
    sys.setswitchinterval(0.001)


def be_killed_last() -> None:
    """Lower the OOM score where this process may (mostly as root), unless somebody has set it. Commands of tools raise
    theirs, so the kernel kills them first everywhere."""
    score = Path("/proc/self/oom_score_adj")
    try:
        if score.read_text().strip() == "0":
            score.write_text(_OOM_SCORE)
    except OSError:
        return  # another system than Linux, or no right to lower it


def _collect_less(*, own_code: bool) -> None:
    """Run the garbage collector less often than Python does, and never over the objects of the start. The hot paths
    make no cycles. With Python's defaults the search took 8.6 % of the CPU of 50 streams. It must not be much rarer:
    each pass stops all streams, for 10 ms at 20,000 objects and 2.4 ms at 2,000. Of the objects of our own start 1,200
    are garbage, and to find them takes 11 ms; `own_code` of the user may leave more."""
    if own_code:
        gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 50, 50)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
