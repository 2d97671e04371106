"""The command line. Owns: commands, their flags and what they print. Parts are chosen and joined in assemble.py, which
is imported after the socket is bound. Refuses to know: how anything works."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from secrets import token_urlsafe
from socket import gethostname
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__
from holdfast.config import Loaded, is_loopback, load, without_password
from holdfast.config_keys import MAKE_KEY, ConfigError, ensure_key

FRAME_SLACK = 1024 * 1024
"""A frame that is this much too large is answered with an error; a larger one closes its websocket."""

if TYPE_CHECKING:
    import socket

    from holdfast.assemble import Assembled
    from holdfast.observe.log import Log


def settings_from(config: str | None, **flags: object) -> Loaded:
    """Settings, or the end of the program with a line that says what is wrong."""
    try:
        return load(Path(config) if config else None, os.environ, flags)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """The agent server you can kill -9.

    Durable agent runs behind the OpenAI-compatible APIs (Chat Completions, Responses, Conversations, Runs) and
    Anthropic's Messages."""


_NAMES = {
    "host": "server.host",
    "port": "server.port",
    "data_dir": "server.data_dir",
    "store": "store.url",
    "wait_store": "store.wait_s",
    "worker": "server.worker",
    "model_url": "model.url",
    "model": "model.name",
    "sandbox": "tools.sandbox",
    "approval": "tools.approval",
}


def _run_options(command: Any) -> Any:
    """The options of everything that carries out runs."""
    options = [
        click.option("--config", type=click.Path(dir_okay=False), help="Configuration file (./holdfast.toml)."),
        click.option("--host", help="Address to listen on."),
        click.option("--port", type=int, help="Port to listen on; 0 picks a free one and prints it."),
        click.option("--data-dir", help="Directory of workspaces, and of the store and the key where they are here."),
        click.option("--store", help="postgresql://user:password@host/db; empty is SQLite in the data directory."),
        click.option("--wait-store", type=float, help="Seconds to wait for a database that is down at the start (30)."),
        click.option("--model-url", help="Base URL of an OpenAI-compatible upstream."),
        click.option("--model", help="Name of the model there."),
        click.option(
            "--sandbox", type=click.Choice(["auto", "landlock", "off"]), help="Sandbox of shell and file tools."
        ),
        click.option("--approval", type=click.Choice(["never", "on-write", "always"]), help="When a person is asked."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@main.command()
@_run_options
@click.option(
    "--no-worker", "worker", flag_value=False, default=None, help="Answer requests only; workers carry out stored runs."
)
@click.option("--open", "open_page", is_flag=True, help="Open the server's address in a browser.")
def serve(config: str | None, open_page: bool, **given: Any) -> None:
    """Run the server in the foreground.

    With --store postgresql://... any number of them, on any machines, are one server: put a load balancer in front and
    give all of them the same key (API_SERVER_KEY)."""
    raise SystemExit(_serve(_loaded(config, given), serves=True, open_page=open_page))


@main.command(short_help="Carry out stored runs, and answer only for its health.")
@_run_options
def worker(config: str | None, **given: Any) -> None:
    """Carry out stored runs, and answer nothing but /health and /health/detailed.

    For a store on PostgreSQL: requests come in at `holdfast serve` (with --no-worker where workers do all of it)."""
    loaded = _loaded(config, given)
    if not loaded.settings.store.shared:
        raise click.ClickException("a worker needs a store that servers share: --store postgresql://...")
    raise SystemExit(_serve(loaded, serves=False, open_page=False))


def _loaded(config: str | None, given: dict[str, Any]) -> Loaded:
    # Until the loop owns the signals, nothing has begun that would have to be wound down (A9).
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    return settings_from(config, **{_NAMES[name]: value for name, value in given.items()})


def _bind(loaded: Loaded) -> socket.socket:
    from holdfast.http.server import listen

    server = loaded.settings.server
    try:
        return listen(server.host, server.port, loaded.settings.limits.keepalive_s * 2)
    except OSError as error:
        flag = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise click.ClickException(
            f"cannot listen on {server.host}:{server.port}: {error.strerror}. Choose another with {flag}."
        ) from error


def _give_memory_back() -> None:
    """glibc keeps what big buffers leave behind, and more of it the bigger they were; fixed thresholds return it. A run
    of 20 MB then leaves about 80 MB less behind (202 against 121 MB at rest). Other C
    libraries have no such switch and need none."""
    import ctypes

    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 128 * 1024)
        mallopt(trim_threshold, 128 * 1024)


def _collect_less() -> None:
    """Look for cycles less often, and not among what was there at the start: our hot paths make none, and the search
    was 8.6 % of the CPU of 50 streams at Python's own pace. Not much less often: during each of them all streams stand
    still (10 ms for 20,000 objects, 2.4 ms for 2,000)."""
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 50, 50)


def _serve(loaded: Loaded, *, serves: bool, open_page: bool) -> int:
    from holdfast.observe.log import Log

    sock = _bind(loaded)
    _give_memory_back()
    log = Log(_wall, json=not sys.stderr.isatty())
    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        return loop.run(_run(loaded, sock, log, serves=serves, open_page=open_page))


def _wall() -> str:
    """The wall clock, for logs."""
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(loaded: Loaded, sock: socket.socket, log: Log, *, serves: bool, open_page: bool) -> int:
    """Answer /health at once, put the server together beside it, hand over, serve."""
    from holdfast.http.front import Front
    from holdfast.http.server import Serving

    front, drain_s = Front(early=not loaded.settings.store.shared), loaded.settings.limits.drain_s
    host, port = sock.getsockname()[:2]
    name = loaded.settings.server.replica or f"{gethostname()}:{port}"
    drains: list[Callable[[float], Awaitable[None]]] = []

    async def drain() -> None:
        for each in drains:
            await each(drain_s)

    limits = loaded.settings.limits
    serving = Serving(front, sock, drain, drain_s + 5.0, limits.head_s, limits.body_bytes + FRAME_SLACK)
    running = asyncio.create_task(serving.run(), name="serving")
    building = asyncio.create_task(_build(loaded, log, name, serves=serves), name="building")
    if loaded.settings.store.shared:  # it may wait for a database: told to stop, it does
        await asyncio.wait({building, running}, return_when=asyncio.FIRST_COMPLETED)
        if not building.done():
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)
            await running
            return 0
    try:
        built, key, spoken = await building
    except Refused as refused:
        click.echo(f"holdfast: {refused}", err=True)
        running.cancel()
        return 1
    drains.append(built.engine.drain)
    built.engine.fallen = lambda: None if serving.stopping else serving.stop()
    front.hand_over(built.app)
    _collect_less()
    if built.engine.failed:
        built.engine.fallen()
    if serving.stopping:  # told to stop while it was being put together: there was nothing to drain then
        await drain()
    elif not serves:
        click.echo(f"holdfast {__version__} worker {name}, health on http://{host}:{port}/health")
    else:
        _welcome(loaded, f"http://{host}:{port}", key, spoken)
        if open_page:
            click.launch(f"http://{host}:{port}/")
    await running
    await built.stop()
    log.info("stopped")
    return int(built.engine.failed)


class Refused(Exception):
    """The server cannot start; the text says why and what to do."""


async def _build(loaded: Loaded, log: Log, name: str, *, serves: bool) -> tuple[Assembled, tuple[str, bool], str]:
    """The server, its key and how to speak of its model. Imports run in a thread, so that /health answers meanwhile."""
    await asyncio.to_thread(import_module, "holdfast.assemble")
    from holdfast.assemble import assemble
    from holdfast.assemble_agents import choose_model
    from holdfast.assemble_store import Role, StoreDown
    from holdfast.core.errors import Damaged
    from holdfast.journal.base import StoreUnavailable
    from holdfast.journal.lock import DirectoryHeld
    from holdfast.journal.sqlite_load import NewerStore
    from holdfast.models.find import find_model

    settings = loaded.settings
    data = settings.server.data_path
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = _key_for(loaded, log, serves=serves)
        found = None if settings.model.url else await find_model(os.environ)
        model, spoken = choose_model(settings, found)
        built = await assemble(loaded, key[0], log, model, Role(serves, name))
        await built.start()
    except (DirectoryHeld, NewerStore, ConfigError, StoreDown) as error:
        raise Refused(str(error)) from error
    except Damaged as error:
        raise Refused(
            f"the store in {data} is damaged: {error}. It was not changed. `holdfast store check` says more; then "
            "`holdfast store restore BACKUP --replace`, or `holdfast store set-aside` to begin with an empty one."
        ) from error
    except (OSError, StoreUnavailable) as error:
        if isinstance(error, StoreUnavailable) and settings.store.shared:
            raise Refused(f"the database cannot be used: {error}") from error
        why = "it is a file" if isinstance(error, FileExistsError) else error
        raise Refused(f"the data directory {data} cannot be used: {why}. Choose another with --data-dir.") from error
    return built, key, spoken


def _key_for(loaded: Loaded, log: Log, *, serves: bool) -> tuple[str, bool]:
    """The key, and whether it was made now. None is made for one replica of many: the others would refuse it."""
    server = loaded.settings.server
    if not loaded.settings.store.shared:
        return ensure_key(server.key, server.data_path)
    if server.key is not None:
        return server.key, False
    if not serves:
        return token_urlsafe(32), False  # nobody can use it: a worker shows its health to all, and more to nobody
    if not (server.data_path / "key").exists():
        raise ConfigError(f"all replicas of one database need the same key: set API_SERVER_KEY on each. {MAKE_KEY}")
    log.warning("key_of_this_machine", note="give the same to the other replicas (API_SERVER_KEY), or they refuse it")
    return ensure_key(None, server.data_path)


def _welcome(loaded: Loaded, url: str, key: tuple[str, bool], spoken: str) -> None:
    """Everything a newcomer needs, once."""
    settings = loaded.settings
    secret, made = key
    name = settings.server.model_name
    key_file = settings.server.data_path / "key"
    click.echo(f"holdfast {__version__} listening on {url}")
    click.echo(f"  model     {name}, answered by {spoken}")
    if settings.store.shared:
        click.echo(f"  store     {without_password(settings.store.url)}")
    click.echo(f"  data      {settings.server.data_path}")
    if made:
        click.echo(f"  key       {secret}   (made now, kept in {key_file})")
    elif settings.server.key is None:
        click.echo(f"  key       in {key_file}")
    else:
        click.echo("  key       the one you configured")
    if "demo model" in spoken:
        click.echo("  note      this is a demo: point at a real model with --model-url URL --model NAME")
    shown = secret if made else f"$(cat {key_file})" if settings.server.key is None else "$API_SERVER_KEY"
    click.echo("Try it:")
    click.echo(f'  curl -N {url}/v1/chat/completions -H "Authorization: Bearer {shown}" \\')
    click.echo("    -H 'Content-Type: application/json' \\")
    click.echo(f'    -d \'{{"model":"{name}","stream":true,"messages":[{{"role":"user","content":"hello"}}]}}\'')
    click.echo(f"  OpenAI clients: base_url {url}/v1, the key above, model {name}")
    if not is_loopback(settings.server.host):
        click.echo("  warning   the server listens beyond this machine: put TLS in front of it")


@main.group()
def config() -> None:
    """Look at the configuration."""


@config.command("show")
@click.option("--config", "path", type=click.Path(dir_okay=False), help="Configuration file.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def config_show(path: str | None, as_json: bool) -> None:
    """Every option, its value and where it came from."""
    import msgspec

    rows = settings_from(path).describe()
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    width = max(len(row.key) for row in rows)
    for row in rows:
        click.echo(f"{row.key:{width}}  {row.value or '-':30}  {row.origin:12}  {row.doc}")


def _register() -> None:
    from holdfast.cli_bench import bench
    from holdfast.cli_client import runs, status
    from holdfast.cli_doctor import doctor
    from holdfast.cli_drill import drill
    from holdfast.cli_migrate import migrate
    from holdfast.cli_store import store

    main.add_command(bench)
    main.add_command(doctor)
    main.add_command(drill)
    main.add_command(status)
    main.add_command(runs)
    main.add_command(store)
    main.add_command(migrate)


_register()
