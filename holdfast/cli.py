"""The command line. Owns: commands, their flags and what they print. Parts are chosen and joined in assemble.py, which
is imported after the socket is bound. Refuses to know: how anything works."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__
from holdfast.config import Loaded, is_loopback, load
from holdfast.config_keys import ConfigError, ensure_key

if TYPE_CHECKING:
    import socket

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

    Durable agent runs behind the OpenAI-compatible APIs: Chat Completions, Responses and Runs."""


@main.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file (default: ./holdfast.toml).")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on; 0 picks a free one and prints it.")
@click.option("--data-dir", help="Directory of the store, the key and the workspaces.")
@click.option("--store", help="Store URL; empty is SQLite in the data directory.")
@click.option("--model-url", help="Base URL of an OpenAI-compatible upstream.")
@click.option("--model", help="Name of the model there.")
@click.option("--sandbox", type=click.Choice(["auto", "landlock", "off"]), help="Sandbox of shell and file tools.")
@click.option("--approval", type=click.Choice(["never", "on-write", "always"]), help="When a person is asked.")
@click.option("--open", "open_page", is_flag=True, help="Open the server's address in a browser.")
def serve(config: str | None, open_page: bool, **given: Any) -> None:
    """Run the server in the foreground."""
    names = {
        "host": "server.host",
        "port": "server.port",
        "data_dir": "server.data_dir",
        "store": "store.url",
        "model_url": "model.url",
        "model": "model.name",
        "sandbox": "tools.sandbox",
        "approval": "tools.approval",
    }
    loaded = settings_from(config, **{names[name]: value for name, value in given.items()})
    if loaded.settings.store.url:
        raise click.ClickException("--store: only the embedded SQLite store is built in; leave it out.")
    sock = _bind(loaded)
    raise SystemExit(_serve(loaded, sock, open_page=open_page))


def _bind(loaded: Loaded) -> socket.socket:
    from holdfast.http.server import listen

    server = loaded.settings.server
    try:
        return listen(server.host, server.port, loaded.settings.limits.keepalive_s * 2)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {server.host}:{server.port}: {error.strerror}. Choose another with --port."
        ) from error


def _give_memory_back() -> None:
    """glibc keeps what big buffers leave behind, and more of it the bigger they were; fixed thresholds return it. A run
    of 20 MB then leaves 55 MB less behind. Other C libraries have no such switch and need none."""
    import ctypes

    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 128 * 1024)
        mallopt(trim_threshold, 128 * 1024)


def _serve(loaded: Loaded, sock: socket.socket, *, open_page: bool) -> int:
    from holdfast.assemble import wall
    from holdfast.observe.log import Log

    _give_memory_back()
    log = Log(wall, json=not sys.stderr.isatty())
    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
        return loop.run(_run(loaded, sock, log, open_page=open_page))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(loaded: Loaded, sock: socket.socket, log: Log, *, open_page: bool) -> int:
    from holdfast.assemble import assemble
    from holdfast.assemble_agents import choose_model
    from holdfast.http.server import Serving
    from holdfast.journal.lock import DirectoryHeld
    from holdfast.journal.sqlite_load import NewerStore
    from holdfast.models.find import find_model

    settings = loaded.settings
    data = settings.server.data_path
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        key, made = ensure_key(settings.server.key, data)
        found = None if settings.model.url else await find_model(os.environ)
        model, spoken = choose_model(settings, found)
        built = await assemble(loaded, key, log, model)
        await built.start()
    except (DirectoryHeld, NewerStore, ConfigError) as error:
        click.echo(f"holdfast: {error}", err=True)
        return 1
    except OSError as error:
        click.echo(f"holdfast: the data directory {data} cannot be used: {error}", err=True)
        return 1
    drain_s = settings.limits.drain_s
    serving = Serving(built.app, sock, lambda: built.engine.drain(drain_s), drain_s + 5.0)
    host, port = sock.getsockname()[:2]
    _welcome(loaded, f"http://{host}:{port}", (key, made), spoken)
    if open_page:
        click.launch(f"http://{host}:{port}/health")
    await serving.run()
    await built.stop()
    log.info("stopped")
    return 0


def _welcome(loaded: Loaded, url: str, key: tuple[str, bool], spoken: str) -> None:
    """Everything a newcomer needs, once."""
    settings = loaded.settings
    secret, made = key
    name = settings.server.model_name
    key_file = settings.server.data_path / "key"
    click.echo(f"holdfast {__version__} listening on {url}")
    click.echo(f"  model     {name}, answered by {spoken}")
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
    from holdfast.cli_client import runs, status
    from holdfast.cli_doctor import doctor

    main.add_command(doctor)
    main.add_command(status)
    main.add_command(runs)


_register()
